"""The data of the embedded demo: digits rendered from fonts (source), real handwritten ones (target).

    write_digits(Path("rendered"), rendered_digits(5000, seed=0))
    write_digits(Path("real"), real_digits())

Synthetic to real, as in VisDA-C, in miniature, and nothing to download: the fonts come with matplotlib, the
handwriting with scikit-learn. Images are grey, a bright digit on a dark ground.

A glyph is kept as its signed distance field (how far a point lies inside the outline), drawn once per
process. Distances survive rotation and scaling, so stroke weight is an offset to them and edge softness a
slope: neither needs a filter, nor supersampling. The ranges below were chosen by looking at images, before
any target accuracy was known.
"""

from __future__ import annotations

import importlib
import logging
import math
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFont

from dept.errors import missing_extra

__all__ = ["FONTS", "font_files", "real_digits", "rendered_digits", "write_digits"]

Images = npt.NDArray[np.uint8]
Labels = npt.NDArray[np.int64]
Ink = npt.NDArray[np.float32]
Digits = tuple[Images, Labels]

log = logging.getLogger(__name__)

FONTS = (
    *("DejaVuSans", "DejaVuSans-Oblique", "DejaVuSans-Bold", "DejaVuSans-BoldOblique"),
    *("DejaVuSansMono", "DejaVuSansMono-Oblique", "DejaVuSansMono-Bold", "DejaVuSansMono-BoldOblique"),
    *("DejaVuSerif", "DejaVuSerif-Italic", "DejaVuSerif-Bold", "DejaVuSerif-BoldItalic"),
    *("STIXGeneral", "STIXGeneralItalic", "STIXGeneralBol", "STIXGeneralBolIta"),
    *("cmr10", "cmb10", "cmti10", "cmss10", "cmtt10", "cmmi10"),
)
"""Fonts of matplotlib that draw ten digits; the others there hold symbols, or a box for every letter."""

GLYPH = 80  # height of a digit in its distance field, in field pixels
FIELD = 128  # side of the field: the widest digit and `REACH` around it
REACH = 16  # distances beyond this are "far outside"; more than the boldest stroke and softest edge add
BOLDEST = 0.1 * GLYPH  # half a stroke may grow to this; a bold font's own stroke is wider and stays


class Look(NamedTuple):
    """How one digit is drawn; each number uniform between `LEAST` and `MOST`."""

    turn: float  # rotation, degrees; kept small enough that 6 and 9 stay apart
    slant: float  # shear: horizontal shift per unit of height
    stretch: float  # width relative to the font's own, as in condensed and extended faces
    fill: float  # longer side of the digit / side of the image
    shift_x: float  # of the centre / side of the image
    shift_y: float
    stroke: float  # 0: a fifth thinner than the font's; 1: `BOLDEST`
    blur: float  # width of the edge ramp / side of the image
    detail: float  # pixels a poor camera has for the longer side / side of the image: 8 to 32 at 32
    dark: float  # grey level of the ground
    bright: float  # grey level of the digit
    noise: float  # standard deviation, grey levels


LEAST = Look(-15, -0.2, 0.85, 0.70, -0.08, -0.08, 0.0, 1 / 32, 0.25, 0, 190, 0)
MOST = Look(+15, +0.2, 1.15, 1.00, +0.08, +0.08, 1.0, 2 / 32, 1.00, 50, 255, 8)


class Glyph(NamedTuple):
    """One digit of one font."""

    field: Image.Image  # mode F (FIELD, FIELD): signed distance + REACH, at least 0; the digit is centred
    half: tuple[float, float]  # half its width and height, field pixels
    stroke: float  # half its widest stroke, field pixels


def rendered_digits(count: int, *, seed: int, size: int = 32) -> Digits:
    """Digits drawn from fonts, each with its own font, pose, stroke, softness, contrast and noise.

    Pure in (count, seed, size), given the installed fonts; a longer call begins with a shorter one's images.
    Returns images (count, size, size) uint8 and labels (count,) int64, classes uniform at random.
    """
    if count < 0:
        raise ValueError(f"rendered_digits: count is {count}; it must be at least 0.")
    if size < 16:
        raise ValueError(f"rendered_digits: size is {size}; a digit with room around it needs at least 16.")
    glyphs = _glyphs(font_files())
    # One stream per kind of draw: each is consumed image by image, hence the common beginning.
    picks, poses, grain = np.random.default_rng(seed).spawn(3)
    chosen = picks.integers(len(glyphs), size=count)
    looks = np.array(LEAST) + poses.random((count, len(LEAST))) * (np.array(MOST) - np.array(LEAST))
    images = np.empty((count, size, size), np.uint8)
    for i, (which, numbers) in enumerate(zip(chosen.tolist(), looks.tolist(), strict=True)):
        look = Look(*numbers)
        noise = look.noise * grain.standard_normal((size, size), dtype=np.float32)
        ink = _degrade(_draw(glyphs[which], look, size), look)
        images[i] = np.rint(np.clip(look.dark + (look.bright - look.dark) * ink + noise, 0, 255))
    return images, chosen.astype(np.int64) % 10


def real_digits(size: int = 32) -> Digits:
    """The 1,797 handwritten digits of scikit-learn, 8x8 in 17 grey levels, enlarged (bicubic).

    Returns images (1797, size, size) uint8 and labels (1797,) int64, in scikit-learn's order.
    """
    bunch = _extra("sklearn.datasets").load_digits()
    small = np.rint(bunch.images * (255 / 16)).astype(np.uint8)
    images = [np.asarray(Image.fromarray(s).resize((size, size), Image.Resampling.BICUBIC)) for s in small]
    return np.stack(images), np.asarray(bunch.target, np.int64)


def write_digits(root: Path, digits: Digits) -> None:
    """Write (images, labels) as `<root>/<digit>/<nnnnn>.png`, a labelled folder for the ordinary commands.

    `nnnnn` counts over all digits, so sorted names give the order back; files of the same name are replaced.
    """
    images, labels = digits
    if len(images) != len(labels):
        raise ValueError(f"write_digits: {len(images)} images, {len(labels)} labels; give one label per image.")
    for label in np.unique(labels).tolist():
        (Path(root) / str(label)).mkdir(parents=True, exist_ok=True)
    for i, (image, label) in enumerate(zip(images, labels.tolist(), strict=True)):
        Image.fromarray(image).save(Path(root) / str(label) / f"{i:05d}.png")


def font_files() -> tuple[Path, ...]:
    """The files of `FONTS` in the installed matplotlib, in that order."""
    folder = Path(_extra("matplotlib").get_data_path()) / "fonts" / "ttf"
    found = tuple(path for path in (folder / f"{name}.ttf" for name in FONTS) if path.is_file())
    if not found:
        raise FileNotFoundError(f"None of our fonts is in {folder}; reinstall matplotlib with pip.")
    if len(found) < len(FONTS):
        # Some distributions strip fonts: the demo still works, but its images differ from ours.
        log.warning("%d of %d fonts are missing in %s", len(FONTS) - len(found), len(FONTS), folder)
    return found


def _extra(module: str) -> Any:
    """Import a module of the optional extra, late, so that `dept` itself does not need it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise missing_extra(module.split(".")[0], "report") from error


@lru_cache(maxsize=2)
def _glyphs(fonts: tuple[Path, ...]) -> list[Glyph]:
    """Ten glyphs per font; the digit of entry i is i % 10."""
    return [_glyph(font, digit) for font in fonts for digit in "0123456789"]


def _glyph(font: Path, digit: str) -> Glyph:
    """Draw a digit `GLYPH` pixels high and take its signed distance field."""
    # Every digit is scaled to one height: old-style figures (cmmi10) would otherwise have half the size.
    # Basic layout, because the other engine is not in every build of Pillow.
    at_100 = ImageFont.truetype(str(font), 100, layout_engine=ImageFont.Layout.BASIC)
    _, top, _, bottom = at_100.getbbox(digit)
    face = at_100.font_variant(size=100 * GLYPH / (bottom - top))
    left, top, right, bottom = face.getbbox(digit)
    canvas = Image.new("L", (FIELD, FIELD))
    corner = ((FIELD - left - right) / 2, (FIELD - top - bottom) / 2)
    ImageDraw.Draw(canvas).text(corner, digit, fill=255, font=face)
    inside = np.asarray(canvas) >= 128
    distance = _extra("scipy.ndimage").distance_transform_edt
    signed = (distance(inside) - distance(~inside)).astype(np.float32)
    field = Image.fromarray(np.maximum(signed + REACH, 0))
    return Glyph(field, ((right - left) / 2, (bottom - top) / 2), float(signed.max()))


def _draw(glyph: Glyph, look: Look, size: int) -> Ink:
    """The digit in its pose, wholly inside the image. Returns ink (size, size) in 0..1."""
    thin, bold = 0.8 * glyph.stroke, max(glyph.stroke, BOLDEST)
    grow = thin + look.stroke * (bold - thin) - glyph.stroke
    cos, sin = math.cos(math.radians(look.turn)), math.sin(math.radians(look.turn))
    pose = np.array([[cos, -sin], [sin, cos]]) @ [[look.stretch, look.slant], [0, 1]]  # rotation @ shear @ stretch
    # Half the extent of the turned bounding box: |pose| maps half sides to half sides.
    extent = np.abs(pose) @ (np.array(glyph.half) + grow)
    scale = look.fill * size / (2 * extent.max())
    room = np.maximum(size / 2 - scale * extent, 0)
    shift = np.clip(np.array([look.shift_x, look.shift_y]) * size, -room, room)
    # Pillow wants the way back, from a pixel of the image to a point of the field.
    back = np.linalg.inv(scale * pose)
    start = FIELD / 2 - back @ (size / 2 + shift)
    data = (*back[0].tolist(), float(start[0]), *back[1].tolist(), float(start[1]))
    posed = glyph.field.transform((size, size), Image.Transform.AFFINE, data, Image.Resampling.BILINEAR)
    inside = (np.asarray(posed, np.float32) - REACH + grow) * scale
    ink: Ink = np.clip(0.5 + inside / (look.blur * size), 0, 1).astype(np.float32)
    return ink


def _degrade(ink: Ink, look: Look) -> Ink:
    """See the image through fewer pixels: average down, enlarge again. (size, size) to (size, size)."""
    size = len(ink)
    # Divided by `fill`: a small digit keeps as many pixels as a large one. Nobody can read a 9 of 5 pixels.
    coarse = min(max(round(look.detail * size / look.fill), 8), size)
    small = Image.fromarray(ink).resize((coarse, coarse), Image.Resampling.BOX)
    seen: Ink = np.maximum(np.asarray(small.resize((size, size), Image.Resampling.BICUBIC)), 0)
    # Exposed to full range, as a camera does: thin strokes lose most of their ink in few pixels.
    seen /= seen.max()
    return seen
