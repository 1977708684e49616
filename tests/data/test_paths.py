"""Places of very many images: the same names, order and hashes as with one Path object each, in little memory."""

from __future__ import annotations

import hashlib
import os
import pickle
import tracemalloc
from pathlib import Path

import pytest
from PIL import Image

from dept.data.images import ImageSet, files_state, find_images, find_labelled, list_hash
from dept.data.paths import Paths
from dept.data.places import Url, as_place, sort_key, suffix_of
from dept.errors import UsageError

ODD_LINES = (
    "a.png", "./a.png", "sub//b.png", "sub/./c.png", "sub/../d.png", "../e.png", "dir/", ".hidden/f.png", "g.", "h/.",
    "/far/away/i.png", "-.png", "sp ace/j.png", "ü/日.png",
)  # fmt: skip


def slow_names(images: ImageSet) -> list[str]:
    """Relative names by pathlib."""
    root = images.root
    return [p.relative_to(root).as_posix() if p.is_relative_to(root) else p.as_posix() for p in images.paths]


def slow_hash(images: ImageSet) -> str:
    return hashlib.sha256(os.fsencode("\n".join(slow_names(images)))).hexdigest()


def test_a_sequence_of_places_is_like_a_tuple_of_them() -> None:
    given = (Path("a/b.png"), Path("/c/d.png"), Path(os.fsdecode(b"\xff.png")), Path("ü.png"), Url("memory://x/y.png"))
    paths = Paths.of(given)
    assert paths == given and tuple(paths) == given and hash(paths) == hash(given) and len(paths) == 5
    assert paths[1] == given[1] and paths[-1] == given[-1] and paths[1:3] == given[1:3] and paths[::-1] == given[::-1]
    assert paths.take([3, 0]) == (given[3], given[0]) and given[2] in paths and paths.index(given[2]) == 2
    assert paths + given[:1] == given + given[:1] and paths != given[:4] and paths != Paths.of(given[:4])
    assert pickle.loads(pickle.dumps(paths)) == given
    assert Paths.unpacked(*paths.take([4, 2, 2]).packed()) == (given[4], given[2], given[2])
    with pytest.raises(IndexError):
        paths[5]


@pytest.mark.parametrize("root", [Path(), Path("/data"), Path("rel/x"), Path("/")])
def test_names_are_those_of_pathlib(root: Path) -> None:
    given = tuple(root / line for line in ODD_LINES)
    images = ImageSet(root, given)
    assert images.paths == given and images.names() == slow_names(images) and list_hash(images) == slow_hash(images)
    below = ImageSet(root, Paths(root, ["a/b.png", "c.png"]))
    assert below.paths == (root / "a/b.png", root / "c.png") and below.names() == slow_names(below)


@pytest.mark.parametrize("where", ["absolute", "relative"])
def test_lists_are_read_as_pathlib_would(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    monkeypatch.chdir(tmp_path)
    file = (tmp_path if where == "absolute" else Path()) / "list.txt"
    inside = f"{tmp_path}/inside.png"
    file.write_text("".join(f"{line}\r\n" for line in (*ODD_LINES, inside, "x\u2028y.png", "")), encoding="utf-8")
    images = find_images(file)
    lines = [*ODD_LINES, inside, "x", "y.png"]
    assert images.paths == tuple(file.parent / line for line in lines)
    assert images.names() == slow_names(images) and list_hash(images) == slow_hash(images)


def test_folders_come_in_the_order_of_their_paths(tmp_path: Path) -> None:
    """Component by component: a/z.png before a-b.png, whatever the letters' codes."""
    names = ["a/z.png", "a-b.png", "a.png", "a/b/c.png", "a b/x.png", "Z.png", os.fsdecode(b"\xff.png"), "é.png"]
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (2, 2)).save(tmp_path / name)
    images = find_images(tmp_path)
    assert list(images.paths) == sorted(tmp_path / name for name in names)
    assert sorted(names, key=sort_key) == images.names()
    states = [(path.stat().st_size, path.stat().st_mtime_ns) for path in images.paths]
    assert files_state(images) == hashlib.sha256(repr(states).encode()).hexdigest()
    images.paths[0].unlink()  # type: ignore[union-attr]
    assert files_state(images) == hashlib.sha256(repr([None, *states[1:]]).encode()).hexdigest()


def test_fifty_thousand_places_take_little_memory(tmp_path: Path) -> None:
    """At most 300 bytes each while they are read, of names with 40 letters; a Path object alone takes 1,000."""
    count, file = 50_000, tmp_path / "list.txt"
    lines = (f"camera-{n % 100:04}/2024-06-{n % 28 + 1:02}/frame_{n:09}.jpg {n % 9}\n" for n in range(count))
    file.write_text("".join(lines))
    tracemalloc.start()
    images = find_labelled(file)
    list_hash(images)
    images.take(range(0, count, 2))
    size, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(images) == count and size / count < 150 and peak / count < 300


@pytest.mark.parametrize("name", ["a.png", "a.b.PNG", ".png", "a.", "a", "x.y/b", "x.y/b.jpg", "x/.png", "..png", ""])
def test_suffixes_are_those_of_pathlib(name: str) -> None:
    assert suffix_of(name) == Path(name).suffix.lower()


def test_addresses_are_told_from_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for text in ("s3://bucket/a b/c.png", "simplecache::gs://bucket/x", "hf://datasets/me/set@main/x.tar/k.jpg"):
        url = as_place(text)
        assert isinstance(url, Url) and str(url) == text and as_place(Path(text)) == url  # as a parser may give it
        assert str(url / "d") == f"{text}/d" and url.absolute() == url and str(url.parent / url.name) == text
    assert as_place("file:///data/x") == as_place(Path("file:///data/x")) == Path("/data/x")
    for text in ("a/b", "/a", "C:/x", "odd:name/x"):
        assert as_place(text) == Path(text) and isinstance(as_place(text), Path)
    (tmp_path / "site:").mkdir()
    assert isinstance(as_place(Path("site:/x")), Url) and as_place(Path("site:/")) == Path("site:")
    with pytest.raises(UsageError, match="holds a password"):
        as_place("ftp://me:secret@host/images")
