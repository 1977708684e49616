"""Images behind addresses, through fsspec. memory:// stands for all of them."""

from __future__ import annotations

import sys
import tarfile
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dept.data.decoding import decode
from dept.data.images import decodable, files_state, find_images, find_labelled
from dept.data.index import FileIndex
from dept.data.loader import Views, batches, ordered_keys
from dept.data.places import Url
from dept.data.views import Preprocess
from dept.errors import DataError, UsageError

fsspec = pytest.importorskip("fsspec")


def png(value: int = 0) -> bytes:
    buffer = BytesIO()
    Image.new("RGB", (8, 8), (value, 0, 0)).save(buffer, "PNG")
    return buffer.getvalue()


@pytest.fixture
def bucket(tmp_path: Path) -> Iterator[str]:
    """An empty place behind an address."""
    yield f"memory://{tmp_path.name}"
    fsspec.filesystem("memory").store.clear()


def put(url: str, files: dict[str, bytes]) -> None:
    system = fsspec.filesystem("memory")
    for name, data in files.items():
        system.pipe(f"{url}/{name}", data)


def red(place: Url) -> int:
    return int(np.asarray(decode(place))[0, 0, 0])


def test_an_address_is_read_like_a_folder(bucket: str) -> None:
    put(
        bucket, {"b/2.png": png(2), "a-1.jpg": png(1), "b/.x/3.png": png(), "n.txt": b"", "c.heic": b"", "bad.png": b""}
    )
    images = find_images(bucket)
    assert images.names() == ["a-1.jpg", "b/2.png", "bad.png"] and str(images.paths[1]) == f"{bucket}/b/2.png"
    good = decodable(images)
    assert [red(place) for place in good.paths] == [1, 2]
    assert [str(place) for place, _ in good.skipped] == [f"{bucket}/c.heic", f"{bucket}/bad.png"]
    assert find_images(f"{bucket}/b/2.png").names() == ["2.png"]
    assert find_images(f"simplecache::{bucket}/b").names() == ["2.png"]
    assert find_images(Path(bucket)) == images, "as a command line gives it"


def test_workers_read_it_too(bucket: str) -> None:
    put(bucket, {f"{n}.png": png(n) for n in range(4)})
    views = Views(Preprocess(size=8, resize=8, mean=(0.0,) * 3, std=(1 / 255,) * 3))
    made = list(batches(find_images(bucket), "t", views, ordered_keys(4, 2), workers=1))
    assert [round(float(image[0].mean())) for _, (stack,) in made for image in stack] == [0, 1, 2, 3]


def test_class_folders(bucket: str) -> None:
    put(bucket, {"dog/1.png": png(), "cat/x/2.png": png(), "cat/3.png": png(), "loose.png": png()})
    images = find_labelled(bucket)
    assert images.classes == ("cat", "dog") and images.labels == (0, 0, 1)
    assert images.names() == ["cat/3.png", "cat/x/2.png", "dog/1.png"]
    assert images.skipped == ((Url(f"{bucket}/loose.png"), "it is not in a class folder"),)
    with pytest.raises(DataError, match=r"\[dog\] cannot be mapped"):
        find_labelled(bucket, ("cat",))


def test_archives_behind_an_address(bucket: str) -> None:
    for number in range(2):
        file = BytesIO()
        with tarfile.open(fileobj=file, mode="w") as tar:
            for name, data in (("k.png", png(number)), ("k.cls", str(number).encode()), ("bad.png", b"")):
                info = tarfile.TarInfo(name)
                info.size = len(data)
                tar.addfile(info, BytesIO(data))
        put(bucket, {f"s/{number}.tar": file.getvalue()})
    images = find_labelled(bucket)
    assert images.names() == ["s/0.tar/k.png", "s/1.tar/k.png"] and images.labels == (0, 1)
    assert [red(place) for place in images.paths] == [0, 1]
    assert find_images(f"{bucket}/s/1.tar").names() == ["bad.png", "k.png"]
    put(bucket, {"s/2.tar": b"no archive" * 100})
    assert "damaged after 0" in find_images(bucket).skipped[-1][1]


def test_a_list_may_name_addresses(bucket: str, tmp_path: Path) -> None:
    put(bucket, {"a.png": png(3)})
    (tmp_path / "list.txt").write_text(f"{bucket}/a.png\n{bucket}/gone.png\nlocal.png\n")
    images = find_images(tmp_path / "list.txt")
    assert images.names() == [f"{bucket}/a.png", f"{bucket}/gone.png", "local.png"] and red(images.paths[0]) == 3
    assert [type(place).__name__ for place, _ in decodable(images).skipped] == ["Url", "PosixPath"]


def test_a_changed_object_is_noticed(bucket: str) -> None:
    put(bucket, {"a.png": png(1), "b.png": b""})
    images, index = find_images(bucket), FileIndex()
    before = files_state(images)
    decodable(images, index=index)
    seen = index.look(images.places, 3)
    assert seen.known.tolist() == [True, False], "a failed read may have been the network's fault: it is tried again"
    put(bucket, {"a.png": png(2)})
    assert files_state(images) != before and not index.look(images.places, 3).known.any()


def test_file_addresses_are_paths(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(png())
    images = find_images(tmp_path.as_uri())
    assert images.paths == (tmp_path / "a.png",) and isinstance(images.root, Path)


def test_what_is_missing_is_a_sentence(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataError, match="does not exist, or holds nothing"):
        find_images(f"{bucket}/nowhere")
    with pytest.raises(UsageError, match="not an address that fsspec knows"):
        find_images("warp://bucket/x")
    put(bucket, {"list.txt": b"a.png"})
    with pytest.raises(DataError, match="A list file must lie on a local disk"):
        find_images(f"{bucket}/list.txt")
    monkeypatch.setitem(sys.modules, "s3fs", None)
    with pytest.raises(UsageError, match="s3:// needs one package more: pip install s3fs"):
        find_images("s3://bucket/x")
    monkeypatch.setitem(sys.modules, "fsspec.core", None)
    with pytest.raises(UsageError, match=r"pip install 'dept\[remote\]'"):
        find_images(bucket)
