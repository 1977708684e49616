from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dept.data import datasets as benchmarks
from dept.data.corruptions import CORRUPTIONS, EXTRA
from dept.data.datasets import Benchmark
from dept.data.datasets.check import Finding, overall
from dept.data.datasets.derived import Domains
from dept.data.datasets.find import imagenet_classes
from dept.data.datasets.table import DOMAINNET_CLASSES, OFFICE_HOME_CLASSES, PACS_CLASSES, VISDA_CLASSES
from dept.errors import DataError, UsageError

WNIDS = ("n01440764", "n01443537", "n15075141")  # ranks 0, 1, 999


def put(root: Path, *names: str) -> None:
    """Empty files: a check looks at names only."""
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")


def fill(folder: Path, classes: Iterable[str], per_class: int = 1, suffix: str = ".jpg") -> Path:
    put(folder, *(f"{name}/{n}{suffix}" for name in classes for n in range(per_class)))
    return folder


def small(name: str, images: int, **changes: Any) -> Benchmark:
    """A data set of the table whose domains are expected to hold `images` images each."""
    benchmark = benchmarks.get(name)
    return replace(benchmark, domains=tuple(replace(d, images=images) for d in benchmark.domains), **changes)


def finding(benchmark: Benchmark, root: Path, domain: str) -> Finding:
    (one,) = benchmark.check(root, [domain])
    return one


def refused(benchmark: Benchmark, root: Path, domain: str, **options: Any) -> str:
    with pytest.raises(DataError) as caught:
        benchmark.load(root, domain, **options)
    return str(caught.value)


# ---- the table ----


def test_official_counts() -> None:
    counts = {b.name: {d.name: d.images for d in b.domains} for b in benchmarks.TABLE}
    assert counts["visda"] == {"train": 152_397, "validation": 55_388, "test": 72_372}
    assert counts["domainnet-126"] == {"real": 69_622, "clipart": 18_523, "painting": 30_042, "sketch": 24_147}
    assert counts["pacs"] == {"photo": 1_670, "art_painting": 2_048, "cartoon": 2_344, "sketch": 3_929}
    assert sum(n or 0 for n in counts["office-home"].values()) == 15_588
    assert counts["imagenet"] == {"val": 50_000, "train": 1_281_167}


def test_imagenet_c_has_nineteen_corruptions_of_which_fifteen_count() -> None:
    domains = benchmarks.get("imagenet-c").domains
    assert len(domains) == 95 and {d.images for d in domains} == {50_000}
    assert [d.name for d in domains if not d.optional] == [f"{c}/{s}" for c in CORRUPTIONS for s in range(1, 6)]
    assert {d.name.split("/")[0] for d in domains if d.optional} == set(EXTRA)


@pytest.mark.parametrize(
    ("classes", "count"), [(VISDA_CLASSES, 12), (PACS_CLASSES, 7), (OFFICE_HOME_CLASSES, 65), (DOMAINNET_CLASSES, 126)]
)
def test_class_names(classes: tuple[str, ...], count: int) -> None:
    assert len(classes) == len(set(classes)) == count


def test_published_indices_of_domainnet() -> None:
    known = {"bird": 11, "flower": 53, "power_outlet": 89, "The_Eiffel_Tower": 115, "The_Great_Wall_of_China": 116}
    assert {name: DOMAINNET_CLASSES.index(name) for name in known} == known


def test_every_entry_says_where_to_get_it_and_under_which_terms() -> None:
    for benchmark in benchmarks.TABLE:
        assert benchmark.home.startswith("https://") and benchmark.licence
        assert benchmark.home in benchmark.where() and repr(benchmark.folders[0]) in benchmark.where()
    names = [name.lower() for benchmark in benchmarks.TABLE for name in benchmark.folders]
    assert len(names) == len(set(names))  # else one folder would pass for two data sets


def test_unknown_names() -> None:
    with pytest.raises(UsageError, match=r"no data set 'visda-x'.*visda, imagenet-c"):
        benchmarks.get("visda-x")
    with pytest.raises(UsageError, match=r"PACS has no domain 'photos'.*photo, art_painting, cartoon, sketch"):
        benchmarks.get("pacs")["photos"]


# ---- class folders: PACS, Office-Home ----


@pytest.mark.parametrize("layout", ["pacs", "PACS/kfold", "pacs/pacs_data/pacs_data"])
def test_pacs_in_its_layouts(tmp_path: Path, layout: str) -> None:
    for domain in ("photo", "art_painting", "cartoon", "sketch"):
        fill(tmp_path / layout / domain, reversed(PACS_CLASSES), 2)
    pacs = small("pacs", 14)
    assert overall(pacs.check(tmp_path)) == "complete"
    images = pacs.load(tmp_path, "sketch")
    assert images.classes == PACS_CLASSES and images.labels == tuple(n for n in range(7) for _ in range(2))
    # Names, and with them the hash of the list, do not depend on the layout.
    assert images.root == tmp_path / layout / "sketch" and images.names()[:2] == ["dog/0.jpg", "dog/1.jpg"]
    assert all(path.is_file() for path in images.paths)


@pytest.mark.parametrize("layout", ["pacs", "PACS/kfold", "pacs/pacs_data/pacs_data"])
def test_benchmarks_find_pacs_where_the_check_does(
    tmp_path: Path, layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(tmp_path / layout / "photo", PACS_CLASSES, 2)
    with pytest.raises(DataError, match="PACS, photo, is partial: 14 of 1,670"):
        Domains(tmp_path, tmp_path / "work").load("pacs", "photo")
    pacs = small("pacs", 14)
    monkeypatch.setattr(benchmarks, "get", lambda _: pacs)
    assert Domains(tmp_path, tmp_path / "work").load("pacs", "photo").names()[0] == "dog/0.jpg"


def test_the_root_may_be_the_data_set_itself(tmp_path: Path) -> None:
    fill(tmp_path / "pacs" / "photo", PACS_CLASSES)
    pacs = small("pacs", 7)
    assert pacs.load(tmp_path / "pacs", "photo") == pacs.load(tmp_path, "photo")


def test_a_folder_without_domains_does_not_hide_the_one_that_has_them(tmp_path: Path) -> None:
    fill(tmp_path / "pacs" / "pacs" / "photo", PACS_CLASSES)
    assert small("pacs", 7).load(tmp_path / "pacs", "photo").root == tmp_path / "pacs" / "pacs" / "photo"
    put(tmp_path, "pacs/pacs/kfold/readme.txt")
    assert small("pacs", 7).load(tmp_path / "pacs", "photo").root == tmp_path / "pacs" / "pacs" / "photo"


def test_office_home_with_its_space_and_its_upper_case(tmp_path: Path) -> None:
    fill(tmp_path / "OfficeHomeDataset_10072016" / "Real World", OFFICE_HOME_CLASSES)
    images = small("office-home", 65).load(tmp_path, "Real World")
    assert images.labels == tuple(range(65))
    assert images.paths[OFFICE_HOME_CLASSES.index("TV")].parent.name == "TV"
    assert OFFICE_HOME_CLASSES.index("TV") < OFFICE_HOME_CLASSES.index("Table")


def test_suffixes_in_any_case_and_files_that_are_none_of_ours(tmp_path: Path) -> None:
    photo = fill(tmp_path / "pacs" / "photo", PACS_CLASSES, suffix=".JPG")
    put(photo, "dog/a.JPEG", "dog/b.Png", "dog/notes.txt", "dog/.hidden.jpg", "list.txt", ".DS_Store")
    put(photo, "__MACOSX/dog/0.jpg")
    assert finding(small("pacs", 9), tmp_path, "photo").complete
    assert len(small("pacs", 9).load(tmp_path, "photo")) == 9


def test_partial_data_is_refused_with_a_sentence(tmp_path: Path) -> None:
    fill(tmp_path / "pacs" / "photo", PACS_CLASSES[:5], 2)
    pacs = small("pacs", 14)
    text = refused(pacs, tmp_path, "photo")
    for part in ("PACS, photo, is partial", "10 of 14 images", str(tmp_path / "pacs" / "photo"), "house, person"):
        assert part in text
    assert pacs.home in text and "allow_partial=True" in text
    images = pacs.load(tmp_path, "photo", allow_partial=True)
    assert len(images) == 10 and images.classes == PACS_CLASSES
    assert not finding(pacs, tmp_path, "photo").complete


def test_one_image_too_many_is_not_the_official_data(tmp_path: Path) -> None:
    fill(tmp_path / "pacs" / "photo", PACS_CLASSES, 2)
    assert finding(small("pacs", 14), tmp_path, "photo").state == "complete"
    put(tmp_path, "pacs/photo/dog/extra.jpg")
    assert finding(small("pacs", 14), tmp_path, "photo").state == "partial"


def test_a_class_folder_of_another_name(tmp_path: Path) -> None:
    fill(tmp_path / "pacs" / "photo", [*PACS_CLASSES[1:], "hound"])
    found = finding(small("pacs", 7), tmp_path, "photo")
    assert found.unknown_folders == ("hound",) and found.missing_classes == ("dog",) and found.found == 6
    assert "none of its classes: hound" in refused(small("pacs", 7), tmp_path, "photo")
    images = small("pacs", 7).load(tmp_path, "photo", allow_partial=True)
    assert images.labels == (1, 2, 3, 4, 5, 6)  # the others keep their official numbers
    put(tmp_path, "pacs/photo/dog/0.jpg")
    found = finding(small("pacs", 7), tmp_path, "photo")
    assert found.found == found.expected and not found.complete  # all is there, and something else besides


def test_the_right_count_in_the_wrong_classes_is_not_complete(tmp_path: Path) -> None:
    fill(tmp_path / "pacs" / "photo", PACS_CLASSES[:6])
    put(tmp_path, "pacs/photo/dog/extra.jpg")
    found = finding(small("pacs", 7), tmp_path, "photo")
    assert found.found == found.expected == 7 and not found.complete


def test_what_is_not_there_at_all(tmp_path: Path) -> None:
    pacs = benchmarks.get("pacs")
    text = refused(pacs, tmp_path, "photo", allow_partial=True)
    assert f"PACS was not found: {tmp_path} is not" in text and pacs.home in text
    (tmp_path / "pacs" / "photo" / "dog").mkdir(parents=True)
    text = refused(pacs, tmp_path, "photo", allow_partial=True)
    assert "PACS, photo, is missing: 0 of 1,670 images" in text and "allow partial" not in text
    assert refused(pacs, tmp_path, "cartoon").startswith("PACS, cartoon, is missing")
    assert overall(pacs.check(tmp_path)) == "missing"
    assert overall(pacs.check(tmp_path / "nowhere")) == "missing"


# ---- list files: VisDA-C, DomainNet-126 ----


def visda(root: Path, split: str = "validation") -> Path:
    """Two images per class, listed as in the release: a list inside the split's folder."""
    folder = fill(root / "visda-c" / split, VISDA_CLASSES, 2)
    lines = [f"{name}/{n}.jpg {label}" for n in (1, 0) for label, name in enumerate(VISDA_CLASSES)]
    (folder / "image_list.txt").write_text("\n".join(lines) + "\n")
    return folder


def test_visda_keeps_the_order_of_its_list(tmp_path: Path) -> None:
    visda(tmp_path)
    images = small("visda", 24).load(tmp_path, "validation")
    assert images.classes == VISDA_CLASSES and images.labels == tuple(range(12)) * 2
    assert images.names()[0] == "validation/aeroplane/1.jpg" and images.names()[12] == "validation/aeroplane/0.jpg"


def test_a_list_beside_the_folder_gives_the_same_images(tmp_path: Path) -> None:
    folder = visda(tmp_path)
    inside = small("visda", 24).load(tmp_path, "validation")
    lines = (folder / "image_list.txt").read_text().splitlines()
    (folder / "image_list.txt").unlink()
    (tmp_path / "visda-c" / "validation_list.txt").write_text("\n".join(f"validation/{line}" for line in lines))
    assert small("visda", 24).load(tmp_path, "validation") == inside


def test_visda_without_a_list_is_read_from_its_folders_but_the_test_images_are_not(tmp_path: Path) -> None:
    (visda(tmp_path, "train") / "image_list.txt").unlink()
    assert small("visda", 24).load(tmp_path, "train").labels == tuple(n for n in range(12) for _ in range(2))
    put(tmp_path, "visda-c/test/trunk01/abc.jpg")
    text = refused(small("visda", 1), tmp_path, "test")
    assert "list file" in text and "image_list.txt is missing" in text
    (tmp_path / "visda-c" / "test" / "image_list.txt").write_text("trunk01/abc.jpg 11\n")
    images = small("visda", 1).load(tmp_path, "test", allow_partial=True)
    assert images.labels == (11,) and images.names() == ["test/trunk01/abc.jpg"]


def test_visda_is_complete_without_its_test_images(tmp_path: Path) -> None:
    visda(tmp_path, "train")
    assert overall(small("visda", 24).check(tmp_path)) == "partial"
    visda(tmp_path, "validation")
    assert overall(small("visda", 24).check(tmp_path)) == "complete"


def domainnet(root: Path, domain: str = "real") -> Path:
    folder = root / "domainnet-126"
    fill(folder / domain, [*DOMAINNET_CLASSES, "sweater"])  # DomainNet has more classes than the 126
    lines = [f"{domain}/{name}/0.jpg {label}" for label, name in reversed(list(enumerate(DOMAINNET_CLASSES)))]
    (folder / f"{domain}_list.txt").write_text("\n".join(lines))
    return folder


def test_domainnet_takes_exactly_what_its_list_names(tmp_path: Path) -> None:
    domainnet(tmp_path)
    images = small("domainnet-126", 126).load(tmp_path, "real")
    assert len(images) == 126 and images.labels == tuple(reversed(range(126)))
    assert images.names()[0] == "real/zebra/0.jpg"


def test_domainnet_without_its_list(tmp_path: Path) -> None:
    folder = domainnet(tmp_path)
    (folder / "real_list.txt").unlink()
    text = refused(small("domainnet-126", 126), tmp_path, "real", allow_partial=True)
    assert f"the list file {folder / 'real_list.txt'} is missing" in text and "AdaContrast" in text


def test_a_list_that_names_files_that_do_not_exist(tmp_path: Path) -> None:
    folder = domainnet(tmp_path)
    (folder / "real" / "zebra" / "0.jpg").unlink()
    found = finding(small("domainnet-126", 126), tmp_path, "real")
    assert found.missing_files == ("real/zebra/0.jpg",) and found.missing_classes == ("zebra",)
    assert "1 listed files do not exist (first: real/zebra/0.jpg)" in refused(
        small("domainnet-126", 126), tmp_path, "real"
    )
    assert len(small("domainnet-126", 126).load(tmp_path, "real", allow_partial=True)) == 125


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("real/zebra/0.jpg", "not 'relative/path label'"),
        ("real/zebra/0.jpg 126", "a label from 0 to 125"),
        ("real/zebra/0.jpg zebra", "(first: line 1)"),
        ("real/zebra/0.jpg 3", "contradict the class folder (first: line 1)"),
    ],
)
def test_a_list_with_a_bad_line(tmp_path: Path, line: str, complaint: str) -> None:
    file = domainnet(tmp_path) / "real_list.txt"
    file.write_text("\n".join([line, *file.read_text().splitlines()[1:]]))
    assert complaint in refused(small("domainnet-126", 126), tmp_path, "real")


def test_a_list_that_repeats_itself(tmp_path: Path) -> None:
    file = domainnet(tmp_path) / "real_list.txt"
    file.write_text("\n".join([*file.read_text().splitlines()[:-1], "real/zebra/0.jpg 125"]))
    assert "1 images are listed more than once" in refused(small("domainnet-126", 126), tmp_path, "real")


def test_names_with_spaces_in_a_list(tmp_path: Path) -> None:
    folder = domainnet(tmp_path)
    put(folder, "real/zebra/a b.jpg")
    file = folder / "real_list.txt"
    file.write_text("./real/zebra/a b.jpg 125\n" + file.read_text())
    assert small("domainnet-126", 127).load(tmp_path, "real").names()[0] == "real/zebra/a b.jpg"


def test_a_list_that_cannot_be_read(tmp_path: Path) -> None:
    file = domainnet(tmp_path) / "real_list.txt"
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DataError, match=r"real_list\.txt cannot be read as a list file"):
        benchmarks.get("domainnet-126").check(tmp_path)


# ---- ImageNet and its relatives ----


def test_index_is_the_rank_of_the_wnid() -> None:
    wnids = imagenet_classes()
    assert len(wnids) == 1000 and list(wnids) == sorted(wnids)
    assert [wnids.index(w) for w in WNIDS] == [0, 1, 999]


def test_imagenet_c(tmp_path: Path) -> None:
    fill(tmp_path / "ImageNet-C" / "fog" / "5", imagenet_classes(), suffix=".JPEG")
    fill(tmp_path / "ImageNet-C" / "snow" / "5", WNIDS, suffix=".JPEG")
    benchmark = small("imagenet-c", 1000)
    states = {f.domain: f.state for f in benchmark.check(tmp_path)}
    assert (
        states.pop("fog/5") == "complete" and states.pop("snow/5") == "partial" and set(states.values()) == {"missing"}
    )
    images = benchmark.load(tmp_path, "fog/5")
    assert images.classes == imagenet_classes() and images.labels == tuple(range(1000))
    assert images.names()[0] == "n01440764/0.JPEG"
    assert "3 of 1,000 classes" in refused(benchmark, tmp_path, "snow/5")
    assert benchmark.load(tmp_path, "snow/5", allow_partial=True).labels == (0, 1, 999)  # ranks among all 1000


@pytest.mark.parametrize("layout", ["imagenet/val", "imagenet-val"])
def test_imagenet_in_its_layouts(tmp_path: Path, layout: str) -> None:
    fill(tmp_path / layout, imagenet_classes(), suffix=".JPEG")
    fill(tmp_path / "imagenet" / "train", imagenet_classes(), suffix=".JPEG")
    assert small("imagenet", 1000).load(tmp_path, "val").root == tmp_path / layout
    assert small("imagenet", 1000).load(tmp_path, "train").root == tmp_path / "imagenet" / "train"
    clean = Domains(tmp_path, tmp_path / "work", allow_partial=True).load("imagenet-c", "clean")
    assert clean.root == tmp_path / "imagenet" / "train"


def test_validation_images_that_nobody_sorted(tmp_path: Path) -> None:
    put(tmp_path, "imagenet/val/ILSVRC2012_val_00000001.JPEG", "imagenet/val/ILSVRC2012_val_00000002.JPEG")
    text = refused(benchmarks.get("imagenet"), tmp_path, "val", allow_partial=True)
    assert "2 images lie directly in" in text and "instead of in class folders" in text


def test_a_wnid_that_imagenet_does_not_have(tmp_path: Path) -> None:
    fill(tmp_path / "imagenet", ["n00000001", *imagenet_classes()[:999]])
    with pytest.raises(DataError, match=r"n00000001 in .* are none of ImageNet's 1,000"):
        small("imagenet", 1000).load(tmp_path, "val")


# ---- records ----


def test_a_record_is_short_json(tmp_path: Path) -> None:
    import json

    folder = domainnet(tmp_path)
    for name in DOMAINNET_CLASSES[:30]:
        (folder / "real" / name / "0.jpg").unlink()
    record = finding(small("domainnet-126", 126), tmp_path, "real").record()
    assert json.loads(json.dumps(record)) == record
    assert record["state"] == "partial" and record["missing_files"] == 30 and len(record["first_missing_files"]) == 20
