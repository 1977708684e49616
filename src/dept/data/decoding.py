"""One image file to pixels. Files come from anywhere: the header is judged before anything large is allocated."""

from __future__ import annotations

import io
import threading
from contextlib import ExitStack
from typing import IO, Any

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from dept.data.files import contents
from dept.data.places import Place
from dept.errors import DataError

FORMATS = ("JPEG", "PNG", "BMP", "WEBP", "TIFF", "PPM", "GIF")
"""Pillow's names of our suffixes. It would try all it knows, and run Ghostscript on an EPS file named x.jpg."""
MAX_PIXELS = 80_000_000
"""decoders need up to 16 bytes per pixel (WebP), so the worst image takes 1.3 GB"""
MAX_ASPECT = 100
"""long side over short side: resizing the short side multiplies the long one"""
LARGE = 16_000_000
"""pixels from which images are decoded one at a time"""

_one_large_image = threading.Lock()


def open_image(path: Place) -> Image.Image:
    """An image file with its header read and found acceptable; nothing is decoded yet. A DataError if it is not."""
    return _opened(contents(path), MAX_PIXELS)


def _opened(source: Place | IO[bytes], most: int) -> Image.Image:
    image = Image.open(source, formats=FORMATS)
    try:
        _check_size(image, most)
    except DataError:
        image.close()
        raise
    return image


def decode(path: Place, channels: int = 3) -> Image.Image:
    """Read an image file as `upright` gives it."""
    with ExitStack() as turn:
        return _read(path, channels, turn)


def decode_bytes(data: bytes, channels: int = 3, *, most: int = MAX_PIXELS) -> Image.Image:
    """`decode` for the content of a file, of at most so many pixels. A DataError says why it cannot be decoded."""
    try:
        with ExitStack() as turn, _opened(io.BytesIO(data), min(most, MAX_PIXELS)) as image:
            return _loaded(image, channels, turn)
    except UnidentifiedImageError as error:  # whose message is about the buffer
        raise DataError(f"not an image of a format that is read ({', '.join(FORMATS)})") from error
    except Exception as error:  # as in `decode_problem`
        raise DataError(reason(error)) from error


def suffix_of(data: bytes) -> str | None:
    """The suffix that files of this content have; None if its header is not that of an acceptable image."""
    try:
        with _opened(io.BytesIO(data), MAX_PIXELS) as image:
            return f".{str(image.format).lower()}"
    except Exception:  # as in `decode_problem`
        return None


def _read(path: Place, channels: int, turn: ExitStack) -> Image.Image:
    """`decode`, where a large image keeps the others waiting until `turn` ends: decoders free memory late."""
    with open_image(path) as image:
        return _loaded(image, channels, turn)


def _loaded(image: Image.Image, channels: int, turn: ExitStack) -> Image.Image:
    if _pixels(image) > LARGE:
        turn.enter_context(_one_large_image)
    ImageOps.exif_transpose(image, in_place=True)  # a copy would double the memory
    return _plain(image, channels)


def decode_again(path: Place, channels: int = 3) -> Image.Image:
    """`decode` for a file that was found to decode before; a DataError says that it no longer does."""
    try:
        return decode(path, channels)
    except Exception as error:  # as in `decode_problem`
        raise DataError(
            f"{path} cannot be read ({reason(error)}). Was it moved or changed in the meantime? Put it back."
        ) from error


def decode_problem(path: Place, channels: int = 3) -> str | None:
    """Why a file cannot be decoded, or None if it can."""
    try:
        with ExitStack() as turn:
            _read(path, channels, turn)
    except Exception as error:  # Pillow raises many types for broken files; the reason is what matters
        return reason(error)
    return None


def reason(error: Exception) -> str:
    """Why a file does not decode, in one line."""
    text = str(error) if isinstance(error, DataError) else f"{type(error).__name__}: {error}"
    return text.splitlines()[0]


def upright(image: Image.Image, channels: int = 3) -> Image.Image:
    """An image with its EXIF orientation applied, as RGB, or grey for one channel, with 8 bits."""
    _check_size(image, MAX_PIXELS)
    return _plain(ImageOps.exif_transpose(image), channels)


def _check_size(image: Image.Image, most: int) -> None:
    size = f"{image.width} x {image.height} pixels"
    if (pixels := _pixels(image)) > most:
        raise DataError(
            f"{size}, to decode {pixels / 10**6:,.0f} megapixels; the limit is {most / 10**6:g}. Make it smaller"
        )
    if max(image.size) > MAX_ASPECT * min(image.size):
        raise DataError(f"{size}, one side more than {MAX_ASPECT} times the other. Crop it")


def _pixels(image: Image.Image) -> int:
    """Pixels to decode. The tiles of a TIFF have a size of their own, and a small image may have a huge one."""
    tags: Any = getattr(image, "tag_v2", {})
    tile: int = tags.get(322, 0) * tags.get(323, 0)
    return max(image.width * image.height, tile)


def _plain(image: Image.Image, channels: int) -> Image.Image:
    """RGB, or grey for one channel. Pillow's own conversion cuts off what is above 255: a white image."""
    if image.mode.startswith("I"):
        image = _from_integers(image)
    elif image.mode == "F":
        image = _from_floats(image)
    return image.convert("L" if channels == 1 else "RGB")


def _from_integers(image: Image.Image) -> Image.Image:
    """16 bits -> 8 bits. Mode I has 32, of which only the values of 16 bits have a known meaning."""
    values = np.asarray(image)
    if image.mode == "I" and not (values.min() >= 0 and values.max() <= 65535):
        raise DataError(
            f"32-bit integers from {values.min()} to {values.max()}, and nothing says which is white; "
            "convert it to 8 or 16 bits"
        )
    # round(x / 257) without floats and without leaving 16 bits: 65407 + 128 is the largest value there is.
    shifted = np.minimum(values, 65407).astype(np.uint16)
    shifted += 128
    shifted //= 257
    return Image.fromarray(shifted.astype(np.uint8))


def _from_floats(image: Image.Image) -> Image.Image:
    """Floats from 0 to 1, as everywhere, -> 8 bits."""
    values = np.array(image)
    low, high = float(values.min()), float(values.max())
    if not 0 <= low <= high <= 1:  # false for NaN too
        raise DataError(f"floats from {low:g} to {high:g}, expected 0 to 1; convert it to 8 bits")
    values *= 255
    return Image.fromarray(values.round(out=values).astype(np.uint8))
