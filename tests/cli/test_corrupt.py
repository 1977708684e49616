from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dept.cli.main import main
from dept.data.corruptions.tree import write_tree
from dept.data.images import find_images


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    folder = tmp_path / "in" / "n01"
    folder.mkdir(parents=True)
    ramp = np.linspace(0, 255, 64, dtype=np.uint8)
    picture = np.stack([np.tile(ramp, (48, 1))] * 3, axis=2)
    for name in ("a.png", "b.png"):
        Image.fromarray(picture).save(folder / name)
    (folder / "broken.png").write_bytes(b"no image")
    return tmp_path / "in"


def corrupted(photos: Path, out: Path, *more: str) -> int:
    return main(["corrupt", str(photos), str(out), "--size", "32", "--workers", "1", *more])


def test_layout_size_and_noise(photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    arguments = ["--type", "gaussian_noise", "contrast", "--severity", "1", "5", "--quality", "0"]
    assert corrupted(photos, out, *arguments) == 0
    assert "broken.png" in capsys.readouterr().err
    files = sorted(path.relative_to(out).as_posix() for path in out.rglob("*.png"))
    assert len(files) == 8 and files[0] == "contrast/1/n01/a.png"
    first, second = (np.asarray(Image.open(out / "gaussian_noise/5/n01" / n)) for n in ("a.png", "b.png"))
    assert first.shape == (32, 32, 3) and not np.array_equal(first, second)  # equal pictures, own noise each
    again = tmp_path / "again"
    assert corrupted(photos, again, *arguments) == 0
    assert all((again / name).read_bytes() == (out / name).read_bytes() for name in files)


def test_jpeg_by_default(photos: Path, tmp_path: Path) -> None:
    assert corrupted(photos, tmp_path / "out", "--type", "contrast") == 0
    assert sorted(p.name for p in (tmp_path / "out" / "contrast" / "5").rglob("*.JPEG")) == ["a.JPEG", "b.JPEG"]


def test_wrong_requests_are_sentences(photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert corrupted(photos, tmp_path / "out", "--type", "rain") == 2
    assert "There is no corruption 'rain'" in capsys.readouterr().err
    assert corrupted(photos, tmp_path / "out", "--severity", "6") == 2
    assert "--severity must be from 1 to 5" in capsys.readouterr().err
    assert main(["corrupt", str(tmp_path / "none"), str(tmp_path / "out")]) == 3
    capsys.readouterr()
    for size in ("-4", "31"):
        assert corrupted(photos, tmp_path / "out", "--size", size) == 2
        assert "--size must be 0 (images as they are) or at least 32" in capsys.readouterr().err
    for quality in ("-1", "900"):
        assert corrupted(photos, tmp_path / "out", "--quality", quality) == 2
        assert "--quality must be from 1 to 100" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_small_images_are_listed_and_left_out(photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small = photos / "n01" / "aa.png"
    Image.new("RGB", (30, 40)).save(small)
    out = tmp_path / "out"
    assert corrupted(photos, out, "--type", "contrast", "--size", "0") == 0
    assert f"skipped {small}: 30 x 40 pixels, and each side needs at least 32" in capsys.readouterr().err
    assert sorted(path.name for path in out.rglob("*.JPEG")) == ["a.JPEG", "b.JPEG"]
    assert main(["corrupt", str(small), str(out), "--size", "0"]) == 3
    assert "large enough to be corrupted (first: aa.png: 30 x 40" in capsys.readouterr().err


def test_copies_never_go_among_the_images(photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = sorted(photos.rglob("*"))
    for out in (photos, photos / "n01" / "out"):
        assert corrupted(photos, out, "--type", "contrast") == 2
        assert "among the images" in capsys.readouterr().err
    assert sorted(photos.rglob("*")) == before
    assert corrupted(photos, tmp_path / "out", "--type", "contrast") == 0
    assert corrupted(tmp_path / "out" / "contrast" / "5", tmp_path / "out", "--type", "contrast") == 2


def test_another_quality_replaces_the_files(photos: Path, tmp_path: Path) -> None:
    for quality, suffix in (("85", "JPEG"), ("0", "png"), ("85", "JPEG")):
        assert corrupted(photos, tmp_path / "out", "--type", "contrast", "--quality", quality) == 0
        files = sorted(path.name for path in (tmp_path / "out").rglob("*") if path.is_file())
        assert files == [f"a.{suffix}", f"b.{suffix}"]


def test_ctrl_c_leaves_no_part_of_a_file(photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(self: Image.Image, path: Path, **settings: object) -> None:
        path.write_bytes(b"a part")
        raise KeyboardInterrupt

    monkeypatch.setattr(Image.Image, "save", stopped)
    with pytest.raises(KeyboardInterrupt):
        write_tree(find_images(photos / "n01" / "a.png"), tmp_path / "out", ["contrast"], [5], size=32, workers=0)
    assert not [path for path in (tmp_path / "out").rglob("*") if path.is_file()]


def test_a_list_of_images_elsewhere_never_touches_them(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    image = photos / "n01" / "a.png"
    before, lists = image.read_bytes(), tmp_path / "lists"
    lists.mkdir()
    for line in (str(image), "../in/n01/a.png"):
        (lists / "val.txt").write_text(f"{line}\n")
        assert corrupted(lists / "val.txt", tmp_path / "out", "--type", "contrast", "--quality", "0") == 3
        assert "lies outside" in capsys.readouterr().err
    assert image.read_bytes() == before and not (tmp_path / "out").exists()


def test_names_that_differ_in_their_suffix_only(photos: Path, tmp_path: Path) -> None:
    Image.open(photos / "n01" / "a.png").save(photos / "n01" / "a.jpg")
    assert corrupted(photos, tmp_path / "out", "--type", "contrast") == 0
    names = sorted(path.name for path in (tmp_path / "out").rglob("*.JPEG"))
    assert names == ["a.jpg.JPEG", "a.png.JPEG", "b.JPEG"]


@pytest.mark.parametrize("quality", ["85", "0"])
def test_inputs_are_never_removed_or_replaced(tmp_path: Path, capsys: pytest.CaptureFixture[str], quality: str) -> None:
    """An image, or a list of images, that lies where the copies go."""
    place = tmp_path / "x" / "contrast" / "5"
    place.mkdir(parents=True)
    for name in ("cat.png", "dog.png"):
        Image.new("RGB", (40, 40)).save(place / name)
    (place / "list.txt").write_text("cat.png\ndog.png\n")
    before = {path: path.read_bytes() for path in place.iterdir()}
    for given in (place / "cat.png", place / "list.txt"):
        assert corrupted(given, tmp_path / "x", "--type", "brightness", "contrast", "--quality", quality) == 2
        assert "which is one of the images" in capsys.readouterr().err
    assert {path: path.read_bytes() for path in place.iterdir()} == before
    assert not (tmp_path / "x" / "brightness").exists()  # refused before anything was written


def test_a_linked_input_is_an_input(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = tmp_path / "x" / "contrast" / "5"
    place.mkdir(parents=True)
    Image.new("RGB", (40, 40)).save(place / "cat.JPEG")
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "cat.png").symlink_to(place / "cat.JPEG")
    before = (place / "cat.JPEG").read_bytes()
    assert corrupted(tmp_path / "links", tmp_path / "x", "--type", "contrast") == 2
    assert "would replace" in capsys.readouterr().err and (place / "cat.JPEG").read_bytes() == before


def test_long_images_are_skipped(photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The shorter side is resized, which multiplies the longer one: 118 bytes took 5 GB."""
    Image.new("L", (1, 20_000)).save(photos / "n01" / "long.png")
    assert corrupted(photos, tmp_path / "out", "--type", "contrast") == 0
    assert "long.png: 1 x 20000 pixels, one side more than 100 times the other" in capsys.readouterr().err
