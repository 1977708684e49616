"""What is known of files is used again, until they change."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from PIL import Image

from dept.data import images as images_module
from dept.data.images import decodable, find_images
from dept.data.index import FileIndex


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in "abc":
        Image.new("RGB", (4, 4)).save(tmp_path / f"{name}.png")
    (tmp_path / "bad.png").write_bytes(b"no image")
    return tmp_path


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of files that are decoded."""
    names: list[str] = []
    real = images_module.decode_problem

    def noted(path: Path, channels: int = 3) -> str | None:
        names.append(path.name)
        return real(path, channels)

    monkeypatch.setattr(images_module, "decode_problem", noted)
    return names


def test_a_file_is_decoded_again_only_if_it_has_changed(folder: Path, decoded: list[str]) -> None:
    first = FileIndex()
    good = decodable(find_images(folder), index=first)
    assert sorted(decoded) == ["a.png", "b.png", "bad.png", "c.png"]
    decoded.clear()
    later = FileIndex(first.tables)
    assert decodable(find_images("."), index=later).skipped[0][1] == good.skipped[0][1] and not decoded
    os.utime(folder / "a.png", ns=(1, 1))  # another time
    Image.new("RGB", (40, 40)).save(folder / "b.png")
    Image.new("RGB", (4, 4)).save(folder / "new.png")
    (folder / "c.png").unlink()
    again = decodable(find_images(folder), index=FileIndex(later.tables))
    assert sorted(decoded) == ["a.png", "b.png", "new.png"] and again.names() == ["a.png", "b.png", "new.png"]


def test_what_decodes_in_colour_may_not_in_grey(folder: Path, decoded: list[str]) -> None:
    index = FileIndex()
    decodable(find_images(folder), index=index)
    decoded.clear()
    decodable(find_images(folder), index=index, channels=1)
    assert len(decoded) == 4


def test_a_file_that_is_gone_is_not_known(folder: Path) -> None:
    images, index = find_images(folder), FileIndex()
    decodable(images, index=index)
    (folder / "a.png").unlink()
    seen = index.look(images.places, 3)
    assert seen.known.tolist() == [False, True, True, True] and seen.unread() == [0] and list(seen.problems) == [2]
