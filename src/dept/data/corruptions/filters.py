"""Filters that several corruptions share. Letters: H height, W width, C channels."""

from __future__ import annotations

import importlib
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

# scipy ships no types, and what a type checker finds without them varies: Any is the same everywhere.
fft: Any = importlib.import_module("scipy.fft")
ndimage: Any = importlib.import_module("scipy.ndimage")

Pixels = NDArray[np.uint8]
"""An RGB image of bytes, (H, W, 3)."""

Floats = NDArray[np.float32]
"""An image or a plane of floats, (H, W, 3) or (H, W)."""


def to_unit(image: Pixels) -> Floats:
    """Bytes to floats in [0, 1], same shape."""
    return image.astype(np.float32) / np.float32(255)


def to_pixels(unit: Floats) -> Pixels:
    """Floats in [0, 1] to bytes, same shape; clipped, then truncated as the published generator does."""
    return (np.clip(unit, 0, 1) * np.float32(255)).astype(np.uint8)


def gaussian(image: Floats, sigma: float) -> Floats:
    """Gaussian blur of the first two axes, cut at 4 sigma, border pixels repeated; same shape."""
    return np.asarray(ndimage.gaussian_filter(image, sigma, mode="nearest", truncate=4.0, axes=(0, 1)), np.float32)


def smooth_field(noise: Floats, sigma: float) -> Floats:
    """Gaussian blur of a plane (H, W), cut at 3 sigma, borders reflected.

    Equal to the direct sum, but the cost does not grow with sigma: with reflected borders a blur is a product
    with a gain per frequency of the cosine transform.
    """
    spectrum = fft.dctn(noise, type=2)
    spectrum *= _cosine_response(noise.shape[0], sigma)[:, None] * _cosine_response(noise.shape[1], sigma)
    return np.asarray(fft.idctn(spectrum, type=2), np.float32)


def _cosine_response(length: int, sigma: float) -> Floats:
    """Gain (length,) of a Gaussian cut at 3 sigma on each cosine of a line."""
    taps = np.arange(int(3 * sigma + 0.5) + 1)
    weights = np.exp(-0.5 * (taps / sigma) ** 2)
    weights[1:] *= 2  # the taps on the other side of the centre
    cosines = np.cos(np.pi / length * np.outer(np.arange(length), taps))
    return np.asarray(cosines @ (weights / weights.sum()), np.float32)


def convolve(image: Floats, kernel: Floats) -> Floats:
    """Convolution of (H, W, C) with an odd square kernel through the FFT, borders mirrored; same shape."""
    reach = kernel.shape[0] // 2
    height, width = image.shape[:2]
    padded = np.pad(image, ((reach, reach), (reach, reach), (0, 0)), mode="reflect")
    sizes = [fft.next_fast_len(side, real=True) for side in padded.shape[:2]]
    # Channels first: the transforms then run along contiguous memory.
    spectrum = fft.rfft2(padded.transpose(2, 0, 1), s=sizes) * fft.rfft2(kernel, s=sizes)
    full = fft.irfft2(spectrum, s=sizes)
    # The FFT wraps around: only the first 2·reach rows and columns are touched, and these are cut off.
    valid = full[:, 2 * reach : 2 * reach + height, 2 * reach : 2 * reach + width]
    return np.asarray(valid.transpose(1, 2, 0), np.float32)


def line_blur(image: Floats, *, radius: int, sigma: float, angle: float) -> Floats:
    """Motion blur as ImageMagick defines it; image (H, W) or (H, W, C), same shape.

    The kernel is one-sided: 2·radius + 1 taps of half a Gaussian, from the pixel outwards in the direction
    `angle` (degrees, 0 to the right, 90 down), each tap rounded to a whole pixel; border pixels are repeated.
    """
    taps = np.arange(2 * radius + 1)
    weights = np.exp(-0.5 * (taps / sigma) ** 2)
    weights /= weights.sum()
    direction = math.radians(angle)
    across = np.ceil(taps * math.cos(direction) - 0.5).astype(int)
    down = np.ceil(taps * math.sin(direction) - 0.5).astype(int)
    height, width = image.shape[:2]
    margin = int(max(abs(down).max(), abs(across).max()))
    padded = np.pad(image, [(margin, margin), (margin, margin), (0, 0)][: image.ndim], mode="edge")
    total = np.zeros_like(image)
    for top, left, weight in zip(margin + down, margin + across, weights, strict=True):
        total += np.float32(weight) * padded[top : top + height, left : left + width]
    return total


def zoom_center(image: Floats, factor: float) -> Floats:
    """Enlarge the centre of (H, W) or (H, W, C) by factor >= 1, linearly, and cut to the same shape."""
    rows = _interpolate_first_axis(image, *_zoom_grid(image.shape[0], factor))
    swapped = np.ascontiguousarray(rows.swapaxes(0, 1))  # whole rows are gathered faster than columns
    both = _interpolate_first_axis(swapped, *_zoom_grid(image.shape[1], factor))
    return both.swapaxes(0, 1)


def _zoom_grid(length: int, factor: float) -> tuple[NDArray[np.intp], Floats]:
    """Where each output sample lies in the input: index of its left neighbour, weight of its right one.

    The central crop of ceil(length / factor) samples is stretched end to end over round(crop · factor)
    samples, and the middle `length` of these are kept.
    """
    crop = math.ceil(length / factor)
    stretched = round(crop * factor)
    first = (stretched - length) // 2
    position = np.arange(first, first + length) * ((crop - 1) / max(stretched - 1, 1))
    left = np.clip(np.floor(position).astype(np.intp), 0, max(crop - 2, 0))
    return left + (length - crop) // 2, (position - left).astype(np.float32)


def _interpolate_first_axis(image: Floats, left: NDArray[np.intp], weight: Floats) -> Floats:
    """image[left] + weight · (image[left + 1] − image[left]) along the first axis."""
    low = image[left]
    high = image[np.minimum(left + 1, image.shape[0] - 1)]
    high -= low
    high *= weight.reshape(-1, *[1] * (image.ndim - 1))
    high += low
    return np.asarray(high, np.float32)
