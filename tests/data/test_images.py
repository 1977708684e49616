from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dept.data.decoding import decode
from dept.data.images import ImageSet, concatenated, decodable, find_images, find_labelled, reported
from dept.errors import DataError
from support import write_labelled, write_unlabelled


def save(path: Path, colour: tuple[int, int, int] = (200, 10, 10), size: tuple[int, int] = (8, 6)) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, colour).save(path)
    return path


# ---- finding ----


def test_any_nesting_sorted_without_labels(tmp_path: Path) -> None:
    root = write_unlabelled(tmp_path / "root", 10)
    (root / "notes.txt").write_text("not an image")
    save(root / ".hidden.png")
    save(root / "folder" / ".ipynb_checkpoints" / "copy.png")
    images = find_images(root)
    assert len(images) == 10 and images.labels is None and images.classes == ()
    assert images.names() == sorted(images.names()) or list(images.paths) == sorted(images.paths)
    assert {name.count("/") for name in images.names()} == {0, 1, 2, 3}


def test_suffixes_in_any_case(tmp_path: Path) -> None:
    for name in ("a.PNG", "b.Jpg", "c.jpeg", "d.bmp", "e.webp", "f.tif", "g.ppm", "h.gif"):
        save(tmp_path / name)
    assert len(decodable(find_images(tmp_path))) == 8


def test_one_image(tmp_path: Path) -> None:
    path = save(tmp_path / "one.png")
    images = find_images(path)
    assert images.paths == (path,) and images.names() == ["one.png"]


def test_one_image_has_no_label(tmp_path: Path) -> None:
    path = save(tmp_path / "a.JPG")
    with pytest.raises(DataError, match=r"a.JPG is one image, and nothing says its label.*<class>/<image>"):
        find_labelled(path)


def test_labelled_tree(tmp_path: Path) -> None:
    root = write_labelled(tmp_path / "root", 2)
    save(root / "red" / "deep" / "er" / "x.png")
    images = find_labelled(root)
    assert images.classes == ("blue", "green", "red") and len(images) == 7
    for path, label in zip(images.paths, images.labels, strict=True):
        assert path.relative_to(root).parts[0] == images.classes[label]


def test_a_models_class_order_rules(tmp_path: Path) -> None:
    root = write_labelled(tmp_path / "root", 1)
    order = ("yellow", "red", "green", "blue")  # one more than there are folders
    images = find_labelled(root, order)
    assert images.classes == order
    assert {path.parent.name: order[label] for path, label in zip(images.paths, images.labels, strict=True)} == {
        "blue": "blue", "green": "green", "red": "red",
    }  # fmt: skip


def test_unknown_classes_show_both_lists(tmp_path: Path) -> None:
    root = write_labelled(tmp_path / "root", 1)
    with pytest.raises(DataError, match=r"\[blue, green, red\].*model's are \[blue, cat\].*\[green, red\] cannot"):
        find_labelled(root, ("blue", "cat"))


def test_long_class_lists_are_shortened(tmp_path: Path) -> None:
    root = write_labelled(tmp_path / "root", 1)
    with pytest.raises(DataError, match=r"… \(100 in all\)"):
        find_labelled(root, [f"class{n}" for n in range(100)])


def test_missing_and_empty_places(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"does not exist\. Give a folder of images"):
        find_images(tmp_path / "nowhere")
    with pytest.raises(DataError, match=r"holds no images \(looked for .*\.png"):
        find_images(tmp_path)
    with pytest.raises(DataError, match=r"has no sub-folders\. Labelled images are expected as"):
        find_labelled(tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="holds no images"):
        find_labelled(tmp_path)


def test_links_are_followed(tmp_path: Path) -> None:
    save(tmp_path / "far" / "deep" / "x.png")
    root = save(tmp_path / "root" / "sub" / "a.png").parents[1]
    (root / "linked").symlink_to(tmp_path / "far")
    (root / "b.png").symlink_to(tmp_path / "far" / "deep" / "x.png")
    assert find_images(root).names() == ["b.png", "linked/deep/x.png", "sub/a.png"] and not find_images(root).skipped
    (root / "green").symlink_to(root / "sub")
    for name in ("b.png", "linked"):
        (root / name).unlink()
    # Two classes may share a folder; below one class every folder counts once.
    assert find_labelled(root).names() == ["green/a.png", "sub/a.png"]


def test_loops_end_and_folders_keep_their_own_names(tmp_path: Path) -> None:
    root = save(tmp_path / "root" / "sub" / "a.png").parents[1]
    for name, target in (("sub/up", root), ("another", root / "sub"), ("self", root / "self")):
        (root / name).symlink_to(target)
    images = find_images(root)
    assert images.names() == ["sub/a.png"]
    again = "the folder is read already, under another name"
    assert images.skipped == (
        (root / "another", again), (root / "self", "the link leads nowhere"), (root / "sub" / "up", again),
    )  # fmt: skip


def test_many_links_to_the_same_folders_do_not_multiply(tmp_path: Path) -> None:
    for number in range(30):  # 2^30 ways to the last one
        save(tmp_path / str(number) / "x.png")
        for name in "ab":
            (tmp_path / str(number) / name).symlink_to(tmp_path / str(number + 1))
    assert len(find_images(tmp_path / "0")) == 30


def test_what_is_not_read_is_named(tmp_path: Path) -> None:
    save(tmp_path / "a.png")
    for name in ("b.HEIC", "c.avif", "notes.txt"):
        (tmp_path / name).write_bytes(b"")
    (tmp_path / "d.png").symlink_to(tmp_path / "missing.png")
    (tmp_path / "folder").symlink_to(tmp_path / "missing")
    os.mkfifo(tmp_path / "e.png")
    images = find_images(tmp_path)
    assert images.names() == ["a.png"]
    assert [(path.name, why) for path, why in images.skipped] == [
        ("b.HEIC", ".heic files are not read; convert it to JPEG or PNG"),
        ("c.avif", ".avif files are not read; convert it to JPEG or PNG"),
        ("d.png", "the link leads nowhere"),
        ("e.png", "not a regular file"),
        ("folder", "the link leads nowhere"),
    ]
    (tmp_path / "a.png").unlink()
    with pytest.raises(DataError, match=r"holds no images .*Skipped: b.HEIC: .heic files .*… \(5 in all\)"):
        find_images(tmp_path)


def test_images_beside_the_class_folders_are_named(tmp_path: Path) -> None:
    root = write_labelled(tmp_path / "root", 1)
    save(root / "loose.png")
    (root / "yellow").symlink_to(tmp_path / "missing")
    images = decodable(find_labelled(root))
    assert len(images) == 3
    assert dict(images.skipped) == {
        root / "loose.png": "it is not in a class folder", root / "yellow": "the link leads nowhere",
    }  # fmt: skip


# ---- list files ----


def write_list(tmp_path: Path, text: str) -> Path:
    for name in ("a.png", "sub dir/b.png", "c.png"):
        save(tmp_path / name)
    path = tmp_path / "list.txt"
    path.write_text(text)
    return path


def test_list_with_numbers(tmp_path: Path) -> None:
    images = find_labelled(write_list(tmp_path, "a.png 0\nsub dir/b.png 2\n\nc.png 1\n"))
    assert images.labels == (0, 2, 1) and images.classes == ("0", "1", "2")
    assert images.names() == ["a.png", "sub dir/b.png", "c.png"] and len(decodable(images)) == 3


def test_list_with_numbers_for_a_models_classes(tmp_path: Path) -> None:
    images = find_labelled(write_list(tmp_path, "a.png 1\nc.png 0\n"), ("cat", "dog"))
    assert images.labels == (1, 0) and images.classes == ("cat", "dog")


def test_list_with_names(tmp_path: Path) -> None:
    path = write_list(tmp_path, "a.png dog\nsub dir/b.png cat\nc.png dog\n")
    assert find_labelled(path).classes == ("cat", "dog") and find_labelled(path).labels == (1, 0, 1)
    assert find_labelled(path, ("owl", "dog", "cat")).labels == (1, 2, 1)


def test_list_with_numeric_class_names(tmp_path: Path) -> None:
    """Folders named 1..3 (no 0): the label 3 is a name, not an index beyond the end."""
    images = find_labelled(write_list(tmp_path, "a.png 1\nsub dir/b.png 3\nc.png 2\n"), ("1", "2", "3"))
    assert images.labels == (0, 2, 1)


def test_list_without_labels(tmp_path: Path) -> None:
    path = write_list(tmp_path, "a.png\nc.png\n")
    images = find_images(path)
    assert images.labels is None and len(decodable(images)) == 2
    with pytest.raises(DataError, match=r"line 1: expected 'relative/path label'"):
        find_labelled(path, ("cat", "dog"))
    with pytest.raises(DataError, match=r"line 1: expected 'relative/path label'"):
        find_labelled(path)


def test_paths_of_a_list_may_have_spaces(tmp_path: Path) -> None:
    images = find_images(write_list(tmp_path, "my photo.png\n\nyour  photo.png\n"))
    assert images.names() == ["my photo.png", "your  photo.png"]
    labelled = write_list(tmp_path, "my photo.png 1\nyour photo.png 0\n")
    assert find_images(labelled).names() == find_labelled(labelled).names() == ["my photo.png", "your photo.png"]
    with pytest.raises(DataError, match=r"line 3: expected 'relative/path label', found 'c.png'"):
        find_labelled(write_list(tmp_path, "a.png 0\n\nc.png\n"))


def test_labels_of_a_list_are_dropped_for_adaptation(tmp_path: Path) -> None:
    images = find_images(write_list(tmp_path, "a.png 0\nc.png 1\n"))
    assert images.labels is None and images.names() == ["a.png", "c.png"]


def test_labels_that_the_model_does_not_know(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"labels \['horse'\] that the model does not know.*\[cat, dog\]"):
        find_labelled(write_list(tmp_path, "a.png horse\n"), ("cat", "dog"))
    with pytest.raises(DataError, match=r"labels \[7\]"):
        find_labelled(write_list(tmp_path, "a.png 7\n"), ("cat", "dog"))


@pytest.mark.parametrize("label", ["99999999999", "30000000", "1000000", "9" * 5000])
def test_a_label_that_is_far_too_large(tmp_path: Path, label: str) -> None:
    path = write_list(tmp_path, f"a.png 0\n\nc.png {label}\n")
    for classes in (None, ("cat", "dog")):
        with pytest.raises(
            DataError, match=rf"list.txt, line 3: the label {label[:20]} is too large.*at most 6 digits"
        ):
            find_labelled(path, classes)
    assert len(find_images(path)) == 2  # where labels are not used, they are not read
    assert find_labelled(path, ("0", label)).labels == (0, 1)  # a folder may have such a name


@pytest.mark.parametrize("find", [find_images, find_labelled])
def test_empty_and_unreadable_lists(tmp_path: Path, find: object) -> None:
    with pytest.raises(DataError, match="no images"):
        find(write_list(tmp_path, "\n"))  # type: ignore[operator]
    (tmp_path / "binary.bin").write_bytes(bytes(range(128, 256)))
    with pytest.raises(DataError, match="cannot be read as a list file"):
        find(tmp_path / "binary.bin")  # type: ignore[operator]


# ---- decoding ----


def broken_images(root: Path) -> dict[str, Path]:
    whole = save(root / "whole.jpg", size=(64, 64)).read_bytes()
    (root / "truncated.jpg").write_bytes(whole[: len(whole) // 2])
    (root / "zero.png").write_bytes(b"")
    (root / "text.png").write_text("hello")
    (root / "gone.png").symlink_to(root / "missing.png")
    return {path.name: path for path in root.iterdir()}


def test_broken_images_are_set_aside_with_a_reason(tmp_path: Path) -> None:
    broken_images(tmp_path)
    images = decodable(find_images(tmp_path))
    assert images.names() == ["whole.jpg"]
    reasons = {path.name: reason for path, reason in images.skipped}
    assert reasons.keys() == {"truncated.jpg", "zero.png", "text.png", "gone.png"}
    assert "truncated" in reasons["truncated.jpg"].lower() and "UnidentifiedImageError" in reasons["zero.png"]
    assert all("\n" not in reason for reason in reasons.values())


def test_labels_stay_with_their_images_when_some_are_skipped(tmp_path: Path) -> None:
    root = write_labelled(tmp_path / "root", 2)
    (root / "green" / "0.png").write_bytes(b"")
    images = decodable(find_labelled(root))
    assert [images.classes[label] for label in images.labels] == ["blue", "blue", "green", "red", "red"]


def test_listed_files_that_do_not_exist_are_skipped(tmp_path: Path) -> None:
    images = decodable(find_labelled(write_list(tmp_path, "a.png 0\nnope.png 1\n")))
    assert images.names() == ["a.png"] and "FileNotFoundError" in images.skipped[0][1]


def test_nothing_decodable_is_a_data_error(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"")
    with pytest.raises(DataError, match=r"None of the 1 images in .* can be decoded \(first: a.png: Unid"):
        decodable(find_images(tmp_path))


def test_exif_orientation(tmp_path: Path) -> None:
    """Orientation 6: stored rotated, to be turned clockwise. The red left edge of the raw file becomes the top."""
    pixels = np.zeros((40, 60, 3), np.uint8)
    pixels[:, :20, 0] = 255
    raw = Image.fromarray(pixels)
    exif = Image.Exif()
    exif[274] = 6
    raw.save(tmp_path / "a.jpg", exif=exif, quality=95)
    upright = decode(tmp_path / "a.jpg")
    assert upright.size == (40, 60)
    red = np.asarray(upright)[..., 0]
    assert red[:15].mean() > 200 and red[30:].mean() < 30


@pytest.mark.parametrize("mode", ["L", "P", "RGBA", "LA", "1", "CMYK"])
def test_every_mode_becomes_rgb_or_grey(tmp_path: Path, mode: str) -> None:
    path = tmp_path / ("a.tif" if mode == "CMYK" else "a.png")
    Image.new("RGB", (5, 4), (255, 255, 255)).convert(mode).save(path)
    image = decode(path)
    assert image.mode == "RGB" and np.asarray(image).min() == 255
    assert decode(path, channels=1).mode == "L"


@pytest.mark.parametrize("suffix", ["png", "tif"])
def test_sixteen_bits_keep_their_shades(tmp_path: Path, suffix: str) -> None:
    shades = np.array([[0, 257, 128 * 257], [60_000, 65_535, 300]], np.uint16)
    Image.fromarray(shades).save(tmp_path / f"camera.{suffix}")
    expected = [[0, 1, 128], [233, 255, 1]]
    assert np.asarray(decode(tmp_path / f"camera.{suffix}", channels=1)).tolist() == expected
    assert np.asarray(decode(tmp_path / f"camera.{suffix}"))[..., 2].tolist() == expected


def test_grey_images_for_colour_models_repeat_the_channel(tmp_path: Path) -> None:
    Image.fromarray(np.arange(20, dtype=np.uint8).reshape(4, 5)).save(tmp_path / "a.png")
    pixels = np.asarray(decode(tmp_path / "a.png"))
    assert (pixels[..., 0] == np.arange(20).reshape(4, 5)).all() and (pixels == pixels[..., :1]).all()


# ---- image sets ----


def test_take_and_unlabelled() -> None:
    images = ImageSet(Path("r"), tuple(Path(f"r/{n}") for n in "abc"), (0, 1, 0), ("x", "y"))
    part = images.take([2, 1])
    assert part.names() == ["c", "b"] and part.labels == (0, 1) and part.classes == ("x", "y")
    bare = part.unlabelled()
    assert bare.labels is None and bare.classes == () and bare.paths == part.paths
    assert bare.take([0]).labels is None


def test_names_of_joined_sets_do_not_tell_where_they_lie() -> None:
    """Or the hash of a list would be another one on every machine."""
    one, two = (
        concatenated([ImageSet(Path(at) / name, (Path(at) / name / "x.png",)) for name in ("photo", "sketch")])
        for at in ("/data/pacs", "/home/me/pacs")
    )
    assert one.names() == two.names() == ["photo/x.png", "sketch/x.png"]
    assert concatenated([ImageSet(Path("a"), (Path("a/x.png"),))] * 2).names() == ["x.png", "x.png"]


def test_names_outside_the_root_are_kept_whole() -> None:
    assert ImageSet(Path("/r"), (Path("/elsewhere/a.png"),)).names() == ["/elsewhere/a.png"]


def test_a_long_pass_says_how_far_it_is(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """After a second, then every five; a short one says nothing."""
    clock = iter([0.0, 0.5, 1.1, 3.0, 6.2, 7.0])
    monkeypatch.setattr("dept.data.images.time.monotonic", lambda: next(clock))
    with caplog.at_level("INFO", logger="dept.progress.pass"):
        assert list(reported("abcde", 5000, "Checking images")) == list("abcde")
    assert caplog.messages == ["Checking images: 1 of 5,000", "Checking images: 3 of 5,000"]
