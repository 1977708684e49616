from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path

import pytest

from dept.data.images import ImageSet, find_labelled
from dept.data.sources import Sources, domain_keys, find_sources
from dept.errors import DataError, UsageError
from support import CLASSES, write_labelled


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """photo: 3 per class; art: 2 per class."""
    folder = tmp_path_factory.mktemp("domains")
    write_labelled(folder / "photo", 3)
    write_labelled(folder / "art", 2, seed=1)
    return folder


def copied(root: Path, to: Path, *names: str) -> Path:
    """The art domain with only these of its classes; "Red=red" renames one."""
    for name in names:
        new, _, old = name.partition("=")
        shutil.copytree(root / "art" / (old or new), to / new)
    return to


# ---- finding them ----


def test_one_source_is_what_it_was(root: Path) -> None:
    for given in (root / "photo", str(root / "photo"), [root / "photo"], find_labelled(root / "photo")):
        sources = find_sources(given)
        assert sources.names == ("photo",) and sources.union is sources.parts[0]
        assert sources.union == find_labelled(root / "photo")
        assert sources.missing_classes() == []


def test_several_folders_are_named_like_them(root: Path) -> None:
    sources = find_sources([root / "photo", root / "art"])
    assert sources.names == ("photo", "art") and [len(part) for part in sources.parts] == [9, 6]
    assert all(part.classes == CLASSES for part in sources.parts)
    assert sources.owners == [0] * 9 + [1] * 6
    union = sources.union
    assert union.paths == (*sources.parts[0].paths, *sources.parts[1].paths)
    assert union.labels == (*sources.parts[0].labels, *sources.parts[1].labels) and union.classes == CLASSES
    assert find_sources(sources) is sources


def test_equal_names_are_told_apart_by_their_parents(root: Path, tmp_path: Path) -> None:
    other = copied(root, tmp_path / "site" / "photo", *CLASSES)
    names = find_sources([root / "photo", other, root / "art"]).names
    assert names == (f"{root.name}/photo", "site/photo", f"{root.name}/art")


def test_names_may_be_given(root: Path) -> None:
    images = find_labelled(root / "photo")
    halves = {"even": images.take(range(0, 9, 2)), "odd": images.take(range(1, 9, 2))}
    assert find_sources(halves).names == ("even", "odd")
    assert find_sources({"only": images}).names == ("only",)
    with pytest.raises(UsageError, match="name them"):
        find_sources(list(halves.values()))


def test_list_files(root: Path, tmp_path: Path) -> None:
    """Numbered labels keep their numeric order, also beyond nine."""
    for name, numbers in (("a", (0, 2, 10)), ("b", (0, 10))):
        rows = [f"{root / 'photo' / 'red' / f'{name}{number}.png'} {number}\n" for number in numbers]
        (tmp_path / f"{name}.txt").write_text("".join(rows))
    sources = find_sources([tmp_path / "a.txt", tmp_path / "b.txt"])
    assert sources.names == ("a.txt", "b.txt")
    assert sources.parts[0].classes == tuple(str(number) for number in range(11))
    assert sources.parts[0].labels == (0, 2, 10) and sources.parts[1].labels == (0, 10)


# ---- what does not fit ----


def test_nothing_given() -> None:
    with pytest.raises(UsageError, match="at least one"):
        find_sources([])


def test_the_same_folder_twice(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="given twice"):
        find_sources([root / "photo", root / "photo"])
    monkeypatch.chdir(root)
    with pytest.raises(UsageError, match=r"photo is given twice, also as .*photo"):
        find_sources(["photo", root / "photo"])


def test_a_folder_inside_another(root: Path) -> None:
    for order in (1, -1):
        with pytest.raises(UsageError, match=r"photo/red lies inside the source .*photo"):
            find_sources([root / "photo", root / "photo" / "red"][::order])


def test_images_in_two_domains(root: Path) -> None:
    images = find_labelled(root / "photo")
    with pytest.raises(UsageError, match=r"first and second have 3 images in common.*leave it out"):
        find_sources({"first": images.take(range(6)), "second": images.take(range(3, 9))})


def test_a_domain_without_images_or_without_folder(root: Path, tmp_path: Path) -> None:
    (tmp_path / "empty" / "red").mkdir(parents=True)
    with pytest.raises(DataError, match="empty holds no images"):
        find_sources([root / "photo", tmp_path / "empty"])
    with pytest.raises(DataError, match="nowhere does not exist"):
        find_sources([root / "photo", tmp_path / "nowhere"])
    (tmp_path / "broken" / "red").mkdir(parents=True)
    (tmp_path / "broken" / "red" / "1.png").write_bytes(b"nothing")
    with pytest.raises(DataError, match=r"None of the 1 images in .*broken can be decoded"):
        find_sources([root / "photo", tmp_path / "broken"]).decodable()


def test_missing_classes_are_allowed_and_named(root: Path, tmp_path: Path) -> None:
    partial = copied(root, tmp_path / "sketch", "red")
    sources = find_sources([root / "photo", partial])
    assert sources.parts[1].classes == CLASSES and set(sources.parts[1].labels) == {2}
    (note,) = sources.missing_classes()
    assert f"sketch ({partial}) has no image of blue, green; the model learns them from the other domains" in note


def test_a_class_folder_without_images_counts_as_missing(root: Path, tmp_path: Path) -> None:
    partial = copied(root, tmp_path / "sketch", "red", "blue")
    (partial / "green").mkdir()
    assert "no image of green; the model learns it" in find_sources([root / "photo", partial]).missing_classes()[0]


def test_the_union_of_classes_is_sorted_and_labels_follow(root: Path, tmp_path: Path) -> None:
    """Each folder by itself would number its classes from 0."""
    first, second = copied(root, tmp_path / "a", "green", "red"), copied(root, tmp_path / "b", "blue", "red")
    sources = find_sources([first, second])
    assert [part.classes for part in sources.parts] == [CLASSES, CLASSES]
    for part in sources.parts:
        assert [CLASSES[label] for label in part.labels] == [path.parent.name for path in part.paths]


def test_no_class_in_common_is_refused(root: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"a \(.*\) has the classes blue, green, the others have red: none in common"):
        find_sources([copied(root, tmp_path / "a", "green", "blue"), copied(root, tmp_path / "b", "red")])


def test_two_spellings_of_a_class_are_refused(root: Path, tmp_path: Path) -> None:
    other = copied(root, tmp_path / "b", "Red=red", "blue")
    with pytest.raises(DataError, match=r"'Red' \(in b\) and 'red' \(in photo\) look like one class"):
        find_sources([root / "photo", other])
    both = copied(root, tmp_path / "c", "Red=red", "red", "blue")  # whoever has both means two classes
    assert "Red" in find_sources([root / "photo", both]).parts[0].classes


def test_the_models_classes_decide(root: Path) -> None:
    with pytest.raises(DataError, match=r"\[blue, green, red\].*\[cat, dog\]"):
        find_sources([root / "photo", root / "art"], ("cat", "dog"))
    images = {name: find_labelled(root / name) for name in ("photo", "art")}
    with pytest.raises(DataError, match=r"\[red, green, blue\], in this order"):
        find_sources(images, ("red", "green", "blue"))
    with pytest.raises(DataError, match="in this order"):
        find_sources(find_sources(images), ("red", "green", "blue"))
    with pytest.raises(DataError, match="have no labels"):
        find_sources([images["photo"].unlabelled(), images["art"]])


# ---- splitting and drawing ----


def test_the_split_is_per_domain(root: Path) -> None:
    sources = find_sources([root / "photo", root / "art"])
    training, held_out = sources.split(0.34, seed=0)
    assert [len(part) for part in training.parts] == [6, 4] and [len(part) for part in held_out.parts] == [3, 2]
    assert training.names == sources.names
    for whole, one, other in zip(sources.parts, training.parts, held_out.parts, strict=True):
        assert sorted(one.paths + other.paths) == sorted(whole.paths)


def test_a_domain_of_one_image_cannot_be_split() -> None:
    one = ImageSet(Path("lonely"), (Path("lonely/red/1.png"),), (0,), ("red",))
    with pytest.raises(DataError, match="lonely has 1 image"):
        Sources(("lonely",), (one,)).split(0.1, seed=0)


def test_every_batch_has_the_same_number_of_every_domain() -> None:
    sizes, share = [5, 3, 11], 4
    drawn = list(domain_keys(sizes, share, range(15), seed=0))
    ranges = [range(0, 5), range(5, 8), range(8, 19)]
    for keys in drawn:
        assert [sum(index in r for _, index in keys) for r in ranges] == [share] * 3
    for number, own in enumerate(ranges):  # a short domain starts over; no image is left out or preferred
        seen = [(epoch, index) for keys in drawn for epoch, index in keys if index in own]
        assert len(set(seen)) == len(seen)
        whole = len(seen) // sizes[number]
        assert Counter(index for epoch, index in seen if epoch < whole) == {index: whole for index in own}


def test_drawing_is_seeded_and_can_start_anywhere() -> None:
    whole = list(domain_keys([5, 3], 2, range(9), seed=4))
    assert list(domain_keys([5, 3], 2, range(6, 9), seed=4)) == whole[6:]
    assert list(domain_keys([5, 3], 2, range(9), seed=5)) != whole


def test_domains_of_equal_size_are_shuffled_differently() -> None:
    keys = next(domain_keys([50, 50], 50, range(1), seed=0))
    assert [index for _, index in keys[:50]] != [index - 50 for _, index in keys[50:]]
