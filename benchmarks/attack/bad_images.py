"""Bad images: every file decodes or has a reason, in bounded time and memory."""

from __future__ import annotations

import io
import os
import random
import struct
import zlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
from PIL import Image, PngImagePlugin

from attack.stage import CLASSES, MEMORY, TINY, Row, Stage, forked
from dept.inference import predict
from dept.models.model import Model, create_model

FORMATS = {"jpg": "JPEG", "png": "PNG", "bmp": "BMP", "webp": "WEBP", "tif": "TIFF", "ppm": "PPM", "gif": "GIF"}
EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\nshowpage\n%%EOF\n"


def attack(stage: Stage, count: int, seed: int) -> Iterator[Row]:
    """One row: each kind once, or the first `count` of them in a random order."""
    row = Row("bad images: decoded, or skipped with a reason")
    folder = stage.root / "bad"
    folder.mkdir(exist_ok=True)
    files = _written(folder, random.Random(seed))
    random.Random(seed).shuffle(files)
    models = {channels: _model(channels) for channels in (3, 1)}
    for file in files[:count]:
        (folder / "list.txt").write_text(f"{file.name}\n")
        for channels, model in models.items():
            # Through a list, because a folder leaves out what is not a regular file.
            outcome = forked(lambda model=model: len(predict(model, folder / "list.txt", device="cpu")), 30, MEMORY)
            problem = None if outcome.clean else f"{outcome.kind}: {outcome.value}"
            if outcome.clean and "MemoryError" in str(outcome.value):
                problem = "more memory than allowed"
            row.add(problem and f"{file.name}, {channels} channels: {problem}", outcome.kind)
    yield row


def _model(channels: int) -> Model:
    """A model that resizes the shorter side, which makes long images longer."""
    model = create_model("vit_tiny_patch16_224", CLASSES, stages=0, prompts=0, in_chans=channels, **TINY).eval()
    values = (0.5,) * channels
    pre = replace(model.card.preprocess, size=32, resize=36, rule="shorter", mean=values, std=values)
    model.card = replace(model.card, preprocess=pre)
    return model


def _written(folder: Path, rng: random.Random) -> list[Path]:
    """All kinds of bad files."""
    made = [*_broken(rng), *_modes(), *_sizes(), *_other()]
    for name, data in made:
        (folder / name).write_bytes(data)
    files = [folder / name for name, _ in made]
    links = {"dangling.png": "nowhere.png", "loop.png": "loop.png", "device.png": "/dev/zero", "dir.png": "."}
    for name, target in links.items():
        if not (folder / name).is_symlink():
            (folder / name).symlink_to(target)
        files.append(folder / name)
    if not (folder / "fifo.jpg").exists():
        os.mkfifo(folder / "fifo.jpg")
    return [*files, folder / "fifo.jpg", folder / "missing.png", folder / ("long" * 100 + ".png")]


def _encoded(image: Image.Image, form: str) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, form)
    return buffer.getvalue()


def _broken(rng: random.Random) -> Iterator[tuple[str, bytes]]:
    """Truncated, damaged and misnamed files of every format."""
    image = Image.fromarray(np.random.default_rng(0).integers(0, 255, (48, 48, 3), dtype=np.uint8))
    for suffix, form in FORMATS.items():
        data = _encoded(image, form)
        for share in (0.02, 0.3, 0.9):
            yield f"cut{share}.{suffix}", data[: int(share * len(data))]
        for number in range(4):
            damaged = bytearray(data)
            for _ in range(1 + 5 * number):
                damaged[rng.randrange(len(damaged))] ^= 1 << rng.randrange(8)
            yield f"damaged{number}.{suffix}", bytes(damaged)
        yield f"{form.lower()}-named.{'png' if suffix != 'png' else 'jpg'}", data
        yield f"zeros.{suffix}", bytes(500)
        yield f"empty.{suffix}", b""


def _modes() -> Iterator[tuple[str, bytes]]:
    grey = np.random.default_rng(1).integers(0, 65535, (40, 40), dtype=np.uint16)
    yield "grey16.png", _encoded(Image.fromarray(grey), "PNG")
    yield "grey16.tif", _encoded(Image.fromarray(grey), "TIFF")
    yield "grey32.tif", _encoded(Image.fromarray(grey.astype(np.int32)), "TIFF")
    yield "float.tif", _encoded(Image.fromarray(grey.astype(np.float32)), "TIFF")
    yield "nan.tif", _encoded(Image.fromarray(np.full((40, 40), np.nan, dtype=np.float32)), "TIFF")
    rgb = Image.fromarray((grey[..., None] >> 8).repeat(3, axis=-1).astype(np.uint8))
    for mode in ("1", "L", "LA", "P", "PA", "RGBA", "CMYK", "LAB", "YCbCr", "I;16B"):
        for suffix, form in FORMATS.items():
            try:
                yield f"mode-{mode.replace(';', '')}.{suffix}", _encoded(rgb.convert(mode), form)
            except (OSError, ValueError, KeyError):
                continue  # the format has no such mode


def _png(width: int, height: int, depth: int = 8, colour: int = 2, data: bytes = b"") -> bytes:
    """A PNG by hand: its header may say anything."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    head = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(data)) + chunk(b"IEND", b"")


def _sizes() -> Iterator[tuple[str, bytes]]:
    """Headers that promise much, and images that really are odd."""
    for width, height in ((0, 5), (5, 0), (2**31 - 1, 2**31 - 1), (100_000, 100_000), (30_000, 30_000), (2**31 - 1, 1)):
        yield f"header{width}x{height}.png", _png(width, height)
    for width, height in ((1, 1), (1, 20_000), (20_000, 1), (1, 65_000), (3, 9000), (2, 2)):
        yield f"real{width}x{height}.png", _encoded(Image.new("RGB", (width, height), (9, 99, 200)), "PNG")
    side = 13_370  # just below the limit at which Pillow refuses by itself
    packed = zlib.compressobj(9)
    body = b"".join(packed.compress(bytes(1 + 2 * side)) for _ in range(side)) + packed.flush()
    yield "large16.png", _png(side, side, 16, 0).replace(zlib.compress(b""), body)
    yield "large1.png", _encoded(Image.new("1", (side, side)), "PNG")
    yield "large.gif", _encoded(Image.new("P", (6000, 6000)), "GIF")


def _other() -> Iterator[tuple[str, bytes]]:
    """What is not an image, or not one of ours."""
    image = Image.new("RGB", (32, 32), (10, 200, 30))
    yield "eps.jpg", EPS
    yield "svg.png", b'<svg xmlns="http://www.w3.org/2000/svg"><rect width="9" height="9"/></svg>'
    yield "text.png", b"no image\n" * 100
    yield "html.jpg", b"<html><script>1</script></html>"
    yield "zip.png", b"PK\x03\x04" + bytes(200)
    yield "gzip.tif", b"\x1f\x8b" + bytes(200)
    for form in ("TGA", "PCX", "ICO", "DDS", "SGI", "ICNS", "PDF"):
        try:
            yield f"{form.lower()}.png", _encoded(image, form)
        except (OSError, ValueError, KeyError):
            continue
    text = PngImagePlugin.PngInfo()
    text.add_text("bomb", "x" * 30_000_000, zip=True)
    buffer = io.BytesIO()
    image.save(buffer, "PNG", pnginfo=text)
    yield "text-bomb.png", buffer.getvalue()
    exif = image.getexif()
    exif[0x0112] = 99
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", exif=exif)
    yield "orientation99.jpg", buffer.getvalue()
    yield "two-jpegs.jpg", _encoded(image, "JPEG") * 2
    yield "tail.png", _encoded(image, "PNG") + bytes(1000)
