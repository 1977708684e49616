"""Tar archives of images: read in place, with labels; hostile ones never reach the disk, and are named."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from dept.data import shards
from dept.data.decoding import decode
from dept.data.images import decodable, files_state, find_images, find_labelled, list_hash
from dept.data.places import sort_key
from dept.data.shards import archive_of
from dept.errors import DataError


def png(value: int = 0, side: int = 8) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (side, side), (value, 0, 0)).save(buffer, "PNG")
    return buffer.getvalue()


def add(tar: tarfile.TarFile, name: str, data: bytes = b"", **header: Any) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(data)
    for field, value in header.items():
        setattr(member, field, value)
    tar.addfile(member, io.BytesIO(data))


def write_tar(path: Path, files: dict[str, bytes], **settings: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w", **settings) as tar:
        for name, data in files.items():
            add(tar, name, data)
    return path


def red(place: Any) -> int:
    return int(np.asarray(decode(place))[0, 0, 0])


def test_an_archive_is_read_like_a_folder(tmp_path: Path) -> None:
    long = "deep/" * 30 + "name.png"  # needs a second header
    files = {"b.png": png(2), "./sub/a.PNG": png(1), ".hidden.png": png(), "notes.txt": b"x", long: png(3)}
    path = write_tar(tmp_path / "site.tar", files)
    images = find_images(path)
    assert (
        images.names() == ["b.png", long, "sub/a.PNG"] == sorted(images.names(), key=sort_key)
        and images.root == path
        and not images.skipped
    )
    assert [red(place) for place in images.paths] == [2, 3, 1] and len(decodable(images)) == 3
    assert list(tmp_path.iterdir()) == [path], "nothing is unpacked"
    assert archive_of(str(images.paths[2])) == (path, "sub/a.PNG") and archive_of(str(path)) is None


def test_a_folder_of_archives(tmp_path: Path) -> None:
    for number in (2, 0, 1):
        write_tar(tmp_path / "shards" / f"{number:04}.tar", {"x.png": png(number), "broken.png": b"nothing"})
    images = decodable(find_images(tmp_path))
    assert images.names() == [f"shards/{n:04}.tar/x.png" for n in range(3)]
    where = [tmp_path / "shards" / f"{n:04}.tar" / "broken.png" for n in range(3)]
    why = "UnidentifiedImageError: cannot identify image file"
    assert images.skipped == tuple((place, f"{why} {str(place)!r}") for place in where)
    assert [red(place) for place in images.paths] == [0, 1, 2]
    Image.new("RGB", (8, 8)).save(tmp_path / "loose.png")  # perhaps the archives unpacked: they do not count twice
    images = find_images(tmp_path)
    assert images.names() == ["loose.png"] and len(images.skipped) == 3 and "beside images" in images.skipped[0][1]


def test_a_folder_that_is_called_like_an_archive(tmp_path: Path) -> None:
    place = tmp_path / "odd.tar" / "a.png"
    place.parent.mkdir()
    place.write_bytes(png(7))
    assert red(find_images(tmp_path).paths[0]) == 7
    inner = write_tar(tmp_path / "odd.tar" / "x.tar", {"y.tar/k.png": png(9)})
    assert find_images(inner).names() == ["y.tar/k.png"] and red(find_images(inner).paths[0]) == 9


def test_labels_lie_beside_the_images(tmp_path: Path) -> None:
    files = {"1.png": png(), "1.cls": b"2\n", "sub/2.jpg.png": png(), "sub/2.json": b'{"label": 0, "x": [1]}'}
    files |= {"3.png": png(), "3.json": b'{"class": "1"}', "4.png": png(), "4.json": b"[" * 100_000, "5.png": png()}
    images = find_labelled(write_tar(tmp_path / "a.tar", files), ("cat", "dog", "owl"))
    assert images.names() == ["1.png", "3.png", "sub/2.jpg.png"] and images.labels == (2, 1, 0)
    why = "neither key.cls nor key.json gives a label"
    assert {path.name: reason for path, reason in images.skipped} == {"4.png": why, "5.png": why}
    named = {"1.png": png(), "1.cls": b"dog", "2.png": png(), "2.cls": b"cat", "2.json": b'{"label": "owl"}'}
    write_tar(tmp_path / "shards" / "b.tar", named)
    assert find_labelled(tmp_path / "shards").classes == ("cat", "dog")
    assert find_labelled(tmp_path / "shards").labels == (1, 0) and find_images(tmp_path / "shards").labels is None


def test_labels_that_are_missing_or_not_known(tmp_path: Path) -> None:
    bare = write_tar(tmp_path / "bare.tar", {"1.png": png(), "1.cls": b"\xff"})
    with pytest.raises(DataError, match=r"None of the 1 images in .*bare.tar has a label \(first: 1.png: neither"):
        find_labelled(bare, ("cat",))
    foreign = write_tar(tmp_path / "foreign.tar", {"1.png": png(), "1.cls": b"horse"})
    with pytest.raises(DataError, match=r"foreign.tar has labels \['horse'\] that the model does not know"):
        find_labelled(foreign, ("cat", "dog"))
    huge = write_tar(tmp_path / "huge.tar", {"1.png": png(), "1.cls": b"9" * 5000})
    with pytest.raises(DataError, match=r"huge.tar: the label 99999999999999999999 is too large"):
        find_labelled(huge)


def test_what_an_archive_must_not_do(tmp_path: Path) -> None:
    """Links, devices, names that lead out: named with a reason, and the rest is read."""
    path, outside = tmp_path / "bad.tar", tmp_path / "secret.png"
    outside.write_bytes(png())
    with tarfile.open(path, "w") as tar:
        add(tar, "link.png", type=tarfile.SYMTYPE, linkname=str(outside))
        add(tar, "hard.png", type=tarfile.LNKTYPE, linkname="good.png")
        add(tar, "device.png", type=tarfile.CHRTYPE, devmajor=1, devminor=5)
        add(tar, "pipe.png", type=tarfile.FIFOTYPE)
        add(tar, "../secret.png", png())
        add(tar, str(outside), png())
        add(tar, "phone.heic", b"x")
        add(tar, "good.png", png(5))
    images = find_images(path)
    assert images.names() == ["good.png"] and red(images.paths[0]) == 5
    assert {place.name: why for place, why in images.skipped if "secret" not in place.name} == {
        "link.png": "a link; links inside an archive are not followed",
        "hard.png": "a link; links inside an archive are not followed",
        "device.png": "not a regular file",
        "pipe.png": "not a regular file",
        "phone.heic": ".heic files are not read; convert it to JPEG or PNG",
    }
    assert [why for place, why in images.skipped if "secret" in place.name] == ["its name leads out of the archive"] * 2


def sparse(path: Path) -> Path:
    """A member with GNU's header for files with holes: 10 GB in one block."""
    with tarfile.open(path, "w") as tar:
        add(tar, "good.png", png())
    header = bytearray(tarfile.TarInfo("holes.png").tobuf(tarfile.GNU_FORMAT))
    header[156:157] = tarfile.GNUTYPE_SPARSE
    header[386:410] = b"00000000000\0" + b"00000000000\0"
    header[483:495] = b"112402762000"  # octal: real size
    header[148:156] = b" " * 8
    header[148:156] = f"{sum(header):06o}\0 ".encode()
    data = path.read_bytes().rstrip(b"\0")
    data += bytes(-len(data) % 512)
    path.write_bytes(data + header + bytes(1024))
    return path


def test_sparse_files_are_not_read(tmp_path: Path) -> None:
    images = find_images(sparse(tmp_path / "s.tar"))
    assert images.names() == ["good.png"] and images.skipped[0][1].startswith("a sparse file")


def test_a_truncated_archive_gives_what_is_whole(tmp_path: Path) -> None:
    data = png() + bytes(700)
    one = member("0.png", data)
    whole = b"".join(member(f"{n}.png", data) for n in range(4))  # without the zeros that end an archive
    path = tmp_path / "cut.tar"
    for size in range(100, len(whole) + 1, 206):
        path.write_bytes(whole[:size])
        found = shards.shard(path)
        assert len(found.images) == sum(n * len(one) + 512 + len(data) <= size for n in range(4)), size
        assert all(red(path / name) == 0 for name in found.images.names())
        assert bool(found.skipped) == bool(size % len(one)), size
    path.write_bytes(whole[:1000])
    with pytest.raises(
        DataError, match=r"holds no images.*damaged after 0 of its files \(it ends in the middle of 0.png"
    ):
        find_images(path)


def pax(records: dict[str, str], size: int | None = None) -> bytes:
    """A raw PAX header, whose size may lie."""
    body = b""
    for key, value in records.items():
        text, length = f" {key}={value}\n", 0
        while length != len(f"{length}{text}"):
            length = len(f"{length}{text}")
        body += f"{length}{text}".encode()
    info = tarfile.TarInfo("././@PaxHeader")
    info.type, info.size = tarfile.XHDTYPE, len(body) if size is None else size
    return info.tobuf(tarfile.GNU_FORMAT) + body + bytes(-len(body) % 512)


def member(name: str, data: bytes, size: int | None = None) -> bytes:
    info = tarfile.TarInfo(name)
    info.size = len(data) if size is None else size
    return info.tobuf(tarfile.GNU_FORMAT) + data + bytes(-len(data) % 512)


@pytest.mark.parametrize(
    ("headers", "why"),
    [
        (pax({"comment": "x"}, size=10**12), "a header asks for more than 1 MB"),
        (pax({"size": "-512"}) + member("back.png", b""), "its headers lead in a circle"),
        (pax({"size": "-100"}) + member("back.png", b""), "its headers lead in a circle"),
        (member("circle.png", b"", size=-1024), "its headers lead in a circle"),
        (member("huge.png", b"x", size=10**11), "it ends in the middle of huge.png"),
        (pax({"size": "9" * 30}) + member("huge.png", b""), "it ends in the middle of huge.png"),
        (pax({"comment": "x"}) * 3000 + member("deep.png", b""), "recursion"),
        (b"\x01" * 512, "what follows is not a header"),
    ],
    ids=["pax-bomb", "back", "slightly-back", "circle", "huge", "huger", "nested", "garbage"],
)
def test_headers_that_lie(tmp_path: Path, headers: bytes, why: str) -> None:
    """Such archives have made readers loop for ever or ask for all memory; what came before is still read."""
    path = tmp_path / "lies.tar"
    path.write_bytes(member("good.png", png(4)) + headers + bytes(1024))
    images = find_images(path)
    assert images.names()[-1] == "good.png" and red(images.paths[-1]) == 4
    assert "the archive is damaged after" in images.skipped[-1][1] and why in images.skipped[-1][1]


def test_an_image_that_is_too_large_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "MAX_BYTES", 100)
    images = find_images(write_tar(tmp_path / "a.tar", {"large.png": bytes(101), "small.png": bytes(99)}))
    assert images.names() == ["small.png"] and images.skipped[0][1] == "0 MB; the limit is 0"


@pytest.mark.parametrize("name", ["x.tar.gz", "x.tgz", "x.zip"])
def test_packed_archives_are_refused_with_advice(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"\x1f\x8b")
    for find in (find_images, find_labelled):
        with pytest.raises(DataError, match=r"is a packed archive.*make a plain .tar"):
            find(tmp_path / name)
    write_tar(tmp_path / "lie.tar", {"a.png": png()})
    with tarfile.open(tmp_path / "lie.tar", "w:gz") as tar:
        add(tar, "a.png", png())
    with pytest.raises(DataError, match=r"holds no images.*the archive is damaged after 0 of its files"):
        find_images(tmp_path / "lie.tar")


def test_a_changed_archive_is_noticed(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "a.tar", {"a.png": png(1), "b.png": png(2)})
    images = find_images(path)
    before = files_state(images)
    assert list_hash(images) == list_hash(find_images(path)) and files_state(images) == before
    write_tar(path, {"c.png": png(3), "a.png": png(4)})
    assert files_state(images) != before and red(images.paths[0]) == 4
    assert len(decodable(images)) == 1 and "the archive does not hold it" in decodable(images).skipped[0][1]
    assert find_images(path).names() == ["a.png", "c.png"]


def test_of_two_members_with_one_name_the_last_counts(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        add(tar, "a.png", png(1))
        add(tar, "a.png", png(2))
    images = find_images(tmp_path / "a.tar")
    assert images.names() == ["a.png"] and red(images.paths[0]) == 2


def test_json_labels_of_any_shape_do_no_harm(tmp_path: Path) -> None:
    values = (None, True, [1], {"label": {"a": 1}}, {"label": [1]}, 3.5, {}, "", {"label": None})
    files = {}
    for number, value in enumerate(values):
        files |= {f"{number}.png": png(), f"{number}.json": json.dumps(value).encode()}
    with pytest.raises(DataError, match="has a label"):
        find_labelled(write_tar(tmp_path / "a.tar", files), ("cat",))
