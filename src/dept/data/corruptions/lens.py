"""Spatter: water or mud on the lens. Constants of Hendrycks & Dietterich (ICLR 2019)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .filters import Floats, Pixels, gaussian, ndimage, to_pixels, to_unit


class Spatter(NamedTuple):
    """Constants of spatter: drops are smoothed noise above a threshold."""

    mean: float
    std: float
    sigma: float
    threshold: float
    strength: float
    """Opacity of water; sigma that softens the edge of mud."""
    mud: bool


SPATTER = (
    Spatter(0.65, 0.3, 4, 0.69, 0.6, mud=False),
    Spatter(0.65, 0.3, 3, 0.68, 0.6, mud=False),
    Spatter(0.65, 0.3, 2, 0.68, 0.5, mud=False),
    Spatter(0.65, 0.3, 1, 0.65, 1.5, mud=True),
    Spatter(0.67, 0.4, 1, 0.65, 1.5, mud=True),
)

WATER = np.array([175, 238, 238], np.float32) / np.float32(255)
MUD = np.array([63, 42, 20], np.float32) / np.float32(255)
EMBOSS = np.array([[-2, -1, 0], [-1, 1, 1], [0, 1, 2]], np.float32)


def spatter(image: Pixels, severity: int, rng: np.random.Generator) -> Pixels:
    """Splash water (severity 1 to 3) or mud (4, 5) over (H, W, 3)."""
    constants = SPATTER[severity - 1]
    noise = rng.normal(constants.mean, constants.std, size=image.shape[:2]).astype(np.float32)
    layer = gaussian(noise, constants.sigma)
    layer = np.where(layer < constants.threshold, np.float32(0), layer)
    unit = to_unit(image)
    if constants.mud:
        cover = gaussian((layer > constants.threshold).astype(np.float32), constants.strength)
        cover = np.where(cover < 0.8, np.float32(0), cover)[..., None]
        return to_pixels(unit * (1 - cover) + MUD * cover)
    return to_pixels(unit + np.float32(constants.strength) * _water(to_pixels(layer))[..., None] * WATER)


def _water(drops: Pixels) -> Floats:
    """Brightness (H, W) in [0, 1] of drops of water: their relief, lit from the top left."""
    edges = canny(drops, 50, 150)
    if not edges.any():  # no drop fell: there is no distance to take
        return np.zeros(drops.shape, np.float32)
    depth = np.minimum(ndimage.distance_transform_edt(~edges), 20).astype(np.float32)
    depth = equalise(ndimage.uniform_filter(depth, 3, mode="mirror").astype(np.uint8))
    relief = np.clip(ndimage.correlate(depth.astype(np.float32), EMBOSS, mode="mirror"), 0, 255)
    shine = drops * ndimage.uniform_filter(relief, 3, mode="mirror")
    return np.asarray(shine / max(float(shine.max()), 1.0), np.float32)


def equalise(plane: Pixels) -> Pixels:
    """Histogram equalisation of a plane of bytes (H, W)."""
    counts = np.bincount(plane.ravel(), minlength=256).cumsum()
    lowest = counts[plane.min()]
    scale = 255 / max(plane.size - lowest, 1)
    table = np.rint(np.maximum(counts - lowest, 0) * scale).astype(np.uint8)
    return np.asarray(table[plane], np.uint8)


def canny(plane: Pixels, low: float, high: float) -> NDArray[np.bool_]:
    """Canny edges (H, W): ridges of the Sobel gradient above `low` that are connected to one above `high`."""
    signal = plane.astype(np.float32)
    across = ndimage.sobel(signal, axis=1, mode="nearest")
    down = ndimage.sobel(signal, axis=0, mode="nearest")
    strength = np.abs(across) + np.abs(down)
    candidates = (strength > low) & _is_ridge(strength, across, down)
    groups, count = ndimage.label(candidates, structure=np.ones((3, 3)))
    strong = np.zeros(count + 1, bool)
    strong[groups[candidates & (strength > high)]] = True
    return np.asarray(strong[groups], np.bool_)


def _is_ridge(strength: Floats, across: Floats, down: Floats) -> NDArray[np.bool_]:
    """Whether the gradient (H, W) is largest along its own direction, rounded to 45 degrees."""
    padded = np.pad(strength, 1)
    height, width = strength.shape

    def ahead(row: int, column: int) -> Floats:
        return padded[1 + row : 1 + row + height, 1 + column : 1 + column + width]

    flat = np.abs(down) < np.tan(np.pi / 8) * np.abs(across)
    steep = np.abs(down) > np.tan(3 * np.pi / 8) * np.abs(across)
    falling = across * down >= 0
    # Along an axis a plateau of two keeps one (≥ on one side); along a diagonal it keeps none, as in OpenCV.
    return np.select(
        [flat, steep, falling],
        [
            (strength > ahead(0, -1)) & (strength >= ahead(0, 1)),
            (strength > ahead(-1, 0)) & (strength >= ahead(1, 0)),
            (strength > ahead(-1, -1)) & (strength > ahead(1, 1)),
        ],
        (strength > ahead(-1, 1)) & (strength > ahead(1, -1)),
    )
