"""Files from anywhere: what a header may ask for, which files are opened at all, and what odd pixels mean."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
import threading
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dept.data import decoding, views
from dept.data.decoding import MAX_PIXELS, decode, decode_problem, upright
from dept.data.images import decodable, find_images
from dept.errors import DataError


def png_header(path: Path, width: int, height: int, rows: bytes = b"") -> Path:
    """A PNG that claims a size; one bit per pixel."""
    chunks = [(b"IHDR", struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)), (b"IDAT", zlib.compress(rows))]
    parts = [
        struct.pack(">I", len(d)) + k + d + struct.pack(">I", zlib.crc32(k + d)) for k, d in [*chunks, (b"IEND", b"")]
    ]
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(parts))
    return path


def tiled_tiff(path: Path, side: int) -> Path:
    """A TIFF of 16 x 16 pixels in one deflated tile of `side` x `side`."""
    data = zlib.compress(bytes(side * side))
    tags = [(256, 16), (257, 16), (258, 8), (259, 8), (262, 1), (277, 1), (322, side), (323, side), (324, 0), (325, 0)]
    values = dict(tags) | {324: 10 + 12 * len(tags) + 4, 325: len(data)}
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in values.items())
    path.write_bytes(struct.pack("<2sHIH", b"II", 42, 8, len(tags)) + entries + bytes(4) + data)
    return path


# ---- what a header may ask for ----


@pytest.mark.parametrize(
    ("width", "height", "why"),
    [
        (1, 20_000, "1 x 20000 pixels, one side more than 100 times the other"),
        (65_000, 1, "one side more than 100 times"),
        (9_000, 9_000, "9000 x 9000 pixels, to decode 81 megapixels; the limit is 80"),
        (13_370, 13_370, "to decode 179 megapixels"),
    ],
)
@pytest.mark.filterwarnings("ignore:Image size")
def test_too_large_or_too_long_is_refused_by_the_header(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, width: int, height: int, why: str
) -> None:
    def decoded(self: Image.Image) -> None:
        raise AssertionError("decoded")

    path = png_header(tmp_path / "a.png", width, height)
    monkeypatch.setattr("PIL.ImageFile.ImageFile.load", decoded)
    assert why in (decode_problem(path) or "")


def test_long_images_within_the_limit_still_decode(tmp_path: Path) -> None:
    Image.new("RGB", (200, 2)).save(tmp_path / "a.png")
    assert decode(tmp_path / "a.png").size == (200, 2)


def test_images_in_memory_have_the_same_limits() -> None:
    with pytest.raises(DataError, match="one side more than 100 times"):
        upright(Image.new("L", (1, 101)))


def test_resizing_has_the_same_limit() -> None:
    with pytest.raises(DataError, match=r"9 x 900 pixels would be resized to 1000 x 100000, more than 80 megapixels"):
        views.test_view(Image.new("L", (9, 900)), views.Preprocess(1000, 1000, "shorter"))


def test_tiles_count_for_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tiled_tiff(tmp_path / "a.tif", 64)
    assert decode(path).size == (16, 16)
    monkeypatch.setattr(decoding, "MAX_PIXELS", 1000)
    assert "16 x 16 pixels, to decode" in (decode_problem(path) or "")


@pytest.mark.parametrize("mode", ["RGBA", "I;16", "F"])
def test_memory_of_the_largest_image(tmp_path: Path, mode: str) -> None:
    """In a process of its own, because a peak never goes down."""
    made = Image.new(mode, (4000, 4000))
    made.save(tmp_path / ("a.png" if mode != "F" else "a.tif"))
    code = f"""
import resource
from pathlib import Path
from dept.data.decoding import decode
from PIL import PngImagePlugin, TiffImagePlugin
path = next(Path({str(tmp_path)!r}).iterdir())
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
decode(path)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    per_pixel = int(done.stdout) * 1024 / 4000**2
    assert per_pixel * MAX_PIXELS < 1.4e9, f"{per_pixel:.1f} bytes per pixel"


def test_large_images_are_decoded_one_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(6):
        Image.new("RGB", (40, 40)).save(tmp_path / f"{number}.png")
    active, most, real, lock = 0, 0, decoding._plain, threading.Lock()

    def slow(image: Image.Image, channels: int) -> Image.Image:
        nonlocal active, most
        with lock:
            active, most = active + 1, max(most, active + 1)
        threading.Event().wait(0.02)
        with lock:
            active -= 1
        return real(image, channels)

    monkeypatch.setattr(decoding, "_plain", slow)
    monkeypatch.setattr(decoding, "LARGE", 1000)
    assert len(decodable(find_images(tmp_path))) == 6 and most == 1


# ---- which files are opened ----


def test_only_regular_files_are_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo.jpg")
    (tmp_path / "folder.png").mkdir()
    (tmp_path / "link.jpg").symlink_to(tmp_path / "fifo.jpg")
    with ThreadPoolExecutor(1) as pool:
        for path in (tmp_path / "fifo.jpg", tmp_path / "link.jpg", tmp_path / "folder.png", Path("/dev/zero")):
            assert pool.submit(decode_problem, path).result(timeout=5) == "not a regular file"
    Image.new("RGB", (4, 4)).save(tmp_path / "good.png")
    (tmp_path / "list.txt").write_text("good.png\nfifo.jpg\n")
    images = decodable(find_images(tmp_path / "list.txt"))
    assert images.names() == ["good.png"] and images.skipped == ((tmp_path / "fifo.jpg", "not a regular file"),)


def test_other_formats_are_not_even_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An EPS named x.jpg would start Ghostscript."""
    Image.new("RGB", (4, 4)).save(tmp_path / "x.eps")
    (tmp_path / "x.eps").rename(tmp_path / "x.jpg")
    (tmp_path / "gs").write_text(f"#!/bin/sh\necho run > {tmp_path}/ran\n")
    (tmp_path / "gs").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr("PIL.EpsImagePlugin.gs_binary", None)
    assert "UnidentifiedImageError" in (decode_problem(tmp_path / "x.jpg") or "")
    assert not (tmp_path / "ran").exists()
    Image.new("RGB", (4, 4)).save(tmp_path / "really.tga")
    (tmp_path / "really.tga").rename(tmp_path / "really.png")
    assert "UnidentifiedImageError" in (decode_problem(tmp_path / "really.png") or "")


def test_a_wrong_suffix_among_our_own_is_no_problem(tmp_path: Path) -> None:
    Image.new("RGB", (4, 4)).save(tmp_path / "a.webp")
    (tmp_path / "a.webp").rename(tmp_path / "a.jpg")
    assert decode(tmp_path / "a.jpg").size == (4, 4)


# ---- what is checked is what is run ----


def test_what_decodes_depends_on_the_channels(tmp_path: Path) -> None:
    Image.new("LAB", (4, 4)).save(tmp_path / "lab.tif")
    Image.new("RGB", (4, 4)).save(tmp_path / "rgb.png")
    assert decodable(find_images(tmp_path)).names() == ["lab.tif", "rgb.png"]
    grey = decodable(find_images(tmp_path), channels=1)
    assert grey.names() == ["rgb.png"] and "LAB" in grey.skipped[0][1]


# ---- odd pixels ----


@pytest.mark.parametrize("mode", ["I;16", "I;16B", "I"])
def test_sixteen_bits_are_rounded_as_ever(mode: str) -> None:
    values = np.arange(65536).reshape(256, 256)
    image = Image.fromarray(values.astype({"I;16": "<u2", "I;16B": ">u2", "I": np.int32}[mode]))
    assert image.mode == mode
    expected = (values.astype(np.float64) / 257).round().astype(np.uint8)
    assert (np.asarray(upright(image, 1)) == expected).all()


def test_floats_from_zero_to_one(tmp_path: Path) -> None:
    values = np.linspace(0, 1, 16, dtype=np.float32).reshape(4, 4)
    Image.fromarray(values).save(tmp_path / "a.tif")
    assert np.asarray(decode(tmp_path / "a.tif", 1)).ravel().tolist() == list(range(0, 256, 17))


@pytest.mark.parametrize(
    ("values", "why"),
    [
        (np.float32([0, np.nan]), "floats from nan to nan, expected 0 to 1"),
        (np.float32([0.5, np.inf]), "floats from 0.5 to inf"),
        (np.float32([-1, 1]), "floats from -1 to 1"),
        (np.float32([0, 255]), "floats from 0 to 255, expected 0 to 1; convert it to 8 bits"),
        (np.int32([0, 70_000]), "32-bit integers from 0 to 70000, and nothing says which is white"),
        (np.int32([-5, 10]), "32-bit integers from -5 to 10"),
    ],
)
def test_values_without_a_known_range_are_refused(tmp_path: Path, values: np.ndarray, why: str) -> None:
    Image.fromarray(values[None]).save(tmp_path / "a.tif")
    assert (decode_problem(tmp_path / "a.tif") or "").startswith(why)
