"""Small images for a page: thumbnails, and heat maps over them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

SIDE = 104
_BILINEAR, _BICUBIC, _NEAREST = Image.Resampling.BILINEAR, Image.Resampling.BICUBIC, Image.Resampling.NEAREST

# Dark violet, magenta, orange, pale yellow: lightness increases, so that it reads without colour too.
_RAMP = np.array([[20, 11, 52], [132, 32, 107], [229, 92, 48], [252, 255, 164]], dtype=np.float64)


def thumbnail(image: Image.Image, side: int = SIDE) -> Image.Image:
    """The image as RGB, `side` px wide. Tiny images keep visible pixels."""
    method = _NEAREST if 2 * image.width <= side else _BILINEAR
    return image.convert("RGB").resize((side, side), method, reducing_gap=2.0 if image.width > side else None)


def heat_over(image: Image.Image, heat: NDArray[np.floating[Any]]) -> Image.Image:
    """A map of patches (rows, columns), from its own minimum to its maximum, over the greyed image."""
    scaled = (heat - heat.min()) / max(float(heat.max() - heat.min()), 1e-12)
    large = Image.fromarray((255 * scaled).astype(np.uint8)).resize(image.size, _BICUBIC)
    level = np.asarray(large, dtype=np.float64) / 255
    places = np.linspace(0, 1, len(_RAMP))
    colour = np.stack([np.interp(level, places, _RAMP[:, channel]) for channel in range(3)], axis=-1)
    grey = np.asarray(image.convert("L"), dtype=np.float64)[:, :, None]
    return Image.fromarray((0.45 * grey + 0.55 * colour).round().astype(np.uint8))
