"""Digital: contrast, elastic, pixelate, JPEG, saturate. Constants of Hendrycks & Dietterich (ICLR 2019)."""

from __future__ import annotations

from io import BytesIO

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from .filters import Floats, Pixels, ndimage, smooth_field, to_pixels, to_unit

CONTRAST = (0.4, 0.3, 0.2, 0.1, 0.05)
"""Factor on the distance to the channel's mean."""

ELASTIC_TRANSFORM = (
    (2.0, 0.7, 0.1),
    (2.0, 0.08, 0.2),
    (0.05, 0.01, 0.02),
    (0.07, 0.01, 0.02),
    (0.12, 0.01, 0.02),
)
"""Amplitude and smoothness of the displacements, reach of the affine part; in units of `elastic_unit`."""

PIXELATE = (0.6, 0.5, 0.4, 0.3, 0.25)
"""Scale of the small image."""

JPEG_COMPRESSION = (25, 18, 15, 10, 7)
"""JPEG quality."""

SATURATE = ((0.3, 0.0), (0.1, 0.0), (2.0, 0.0), (5.0, 0.1), (20.0, 0.2))
"""Factor and offset of the HSV saturation."""


def contrast(image: Pixels, severity: int, rng: np.random.Generator) -> Pixels:
    """Pull each channel of (H, W, 3) towards its mean."""
    unit = to_unit(image)
    means = unit.mean(axis=(0, 1), keepdims=True, dtype=np.float64).astype(np.float32)
    return to_pixels((unit - means) * np.float32(CONTRAST[severity - 1]) + means)


def pixelate(image: Pixels, severity: int, rng: np.random.Generator) -> Pixels:
    """Shrink (H, W, 3) and enlarge it again, both with a box filter."""
    scale = PIXELATE[severity - 1]
    height, width = image.shape[:2]
    small = Image.fromarray(image).resize((int(width * scale), int(height * scale)), Image.Resampling.BOX)
    return np.array(small.resize((width, height), Image.Resampling.BOX))


def jpeg_compression(image: Pixels, severity: int, rng: np.random.Generator) -> Pixels:
    """Encode (H, W, 3) as a JPEG of low quality and decode it."""
    buffer = BytesIO()
    Image.fromarray(image).save(buffer, "JPEG", quality=JPEG_COMPRESSION[severity - 1])
    return np.array(Image.open(buffer))


def saturate(image: Pixels, severity: int, rng: np.random.Generator) -> Pixels:
    """Weaken or strengthen the HSV saturation of (H, W, 3), hue and value kept."""
    factor, offset = SATURATE[severity - 1]
    unit = to_unit(image)
    value = unit.max(axis=2, keepdims=True)
    depth = value - unit  # HSV: channel = value · (1 − saturation · share), share fixed by the hue
    deepest = depth.max(axis=2, keepdims=True)
    # A grey pixel has no hue; HSV calls that hue 0, red, so the published offset tints greys red.
    share = np.where(deepest > 0, depth / np.maximum(deepest, 1e-6), np.array([0, 1, 1], np.float32))
    saturation = np.clip(deepest / np.maximum(value, 1e-6) * factor + offset, 0, 1)
    return to_pixels((value * (1 - saturation * share)).astype(np.float32))


def elastic_transform(image: Pixels, severity: int, rng: np.random.Generator) -> Pixels:
    """Random affine map, then a smooth random displacement of each pixel of (H, W, 3)."""
    height, width = image.shape[:2]
    side = elastic_unit(height, width)
    amplitude, smoothness, reach = (side * constant for constant in ELASTIC_TRANSFORM[severity - 1])
    grid = np.mgrid[:height, :width].astype(np.float32)
    unit = _sample(to_unit(image), _affine_coordinates(grid, reach, rng), mode="mirror")
    noise = rng.uniform(-1, 1, size=(2, height, width)).astype(np.float32)
    shifts = np.stack([smooth_field(plane, smoothness) * np.float32(amplitude) for plane in noise])
    return to_pixels(_sample(unit, grid + shifts, mode="reflect"))


def elastic_unit(height: int, width: int) -> float:
    """The length that the published constants multiply: 244 pixels (sic) for a side of 224, or in proportion.

    The published scripts for 32 and 64 pixels scale this corruption, and only this one, by the side.
    """
    return 244 / 224 * min(height, width)


def _affine_coordinates(grid: Floats, reach: float, rng: np.random.Generator) -> Floats:
    """Source (row, column) of each pixel, (2, H, W), when three corners of a square move by up to reach."""
    height, width = grid.shape[1:]
    half = min(height, width) // 3
    corners = np.array([height // 2, width // 2]) + half * np.array([[1, 1], [1, -1], [-1, -1]])
    moved = corners + rng.uniform(-reach, reach, size=(3, 2))
    # The image moves corners → moved, so each output pixel looks back along moved → corners.
    backwards = np.linalg.solve(np.column_stack([moved, np.ones(3)]), corners)
    linear, shift = backwards[:2].T.astype(np.float32), backwards[2].astype(np.float32)
    return np.asarray(np.tensordot(linear, grid, axes=1) + shift[:, None, None], np.float32)


def _sample(image: Floats, coordinates: NDArray[np.float32], *, mode: str) -> Floats:
    """Linear interpolation of (H, W, 3) at (row, column) coordinates (2, H, W)."""
    channels = [ndimage.map_coordinates(image[..., c], coordinates, order=1, mode=mode) for c in range(3)]
    return np.stack(channels, axis=2)
