"""Blur: defocus, glass, motion, zoom, Gaussian. Constants (pixels) of Hendrycks & Dietterich (ICLR 2019)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .filters import Floats, Pixels, convolve, gaussian, line_blur, ndimage, to_pixels, to_unit, zoom_center

DEFOCUS_BLUR = ((3, 0.1), (4, 0.5), (6, 0.5), (8, 0.5), (10, 0.5))
"""Radius of the disk and sigma that softens its edge."""

GLASS_BLUR = ((0.7, 1, 2), (0.9, 2, 1), (1.0, 2, 3), (1.1, 3, 2), (1.5, 4, 2))
"""Sigma of the blur before and after, reach of a move, sweeps over the image."""

MOTION_BLUR = ((10, 3), (15, 5), (15, 8), (15, 12), (20, 15))
"""Radius and sigma of ImageMagick's motion blur."""

ZOOM_BLUR = ((1.11, 0.01), (1.16, 0.01), (1.21, 0.02), (1.26, 0.02), (1.31, 0.03))
"""Stop and step of the zoom factors, which start at 1."""

GAUSSIAN_BLUR = (1, 2, 3, 4, 6)
"""Sigma."""


def defocus_blur(image: Pixels, severity: int, rng: np.random.Generator) -> Pixels:
    """Convolve (H, W, 3) with a disk: a lens out of focus."""
    radius, softness = DEFOCUS_BLUR[severity - 1]
    return to_pixels(convolve(to_unit(image), disk_kernel(radius, softness)))


def disk_kernel(radius: int, softness: float) -> Floats:
    """Disk of the given radius, edge softened by a Gaussian; odd side, at least 17.

    The softening mirrors the disk at the border of the kernel, so the sum is not 1 but up to 1.013, as published.
    """
    offsets = np.arange(-max(radius, 8), max(radius, 8) + 1)
    disk = (offsets[:, None] ** 2 + offsets**2 <= radius**2).astype(np.float32)
    disk /= disk.sum()
    reach = 1 if radius <= 8 else 2
    taps = np.exp(-0.5 * (np.arange(-reach, reach + 1) / softness) ** 2)
    for axis in (0, 1):
        disk = ndimage.convolve1d(disk, taps / taps.sum(), axis=axis, mode="mirror")
    return np.asarray(disk, np.float32)


def glass_blur(image: Pixels, severity: int, rng: np.random.Generator) -> Pixels:
    """Frosted glass: blur, move pixels about within a small reach, blur again; (H, W, 3).

    The published loop means to swap a pixel with a random neighbour, but it assigns views of one array to
    each other, so that the neighbour is copied over the pixel and nothing goes back. ImageNet-C was made with
    that loop, so we copy too: our result is distributed exactly as that of the loop.
    """
    sigma, reach, sweeps = GLASS_BLUR[severity - 1]
    height, width = image.shape[:2]
    pixels = to_pixels(gaussian(to_unit(image), sigma)).reshape(height * width, 3)
    for _ in range(sweeps):
        moves = rng.integers(-reach, reach, size=(2, height - 2 * reach, width - 2 * reach))
        pixels = pixels[sweep_sources(height, width, reach, moves)]
    return to_pixels(gaussian(to_unit(pixels.reshape(image.shape)), sigma))


def sweep_sources(height: int, width: int, reach: int, moves: NDArray[np.int64]) -> NDArray[np.intp]:
    """Which pixel each pixel shows after one sequential sweep of copies; flat indices (H·W,).

    The sweep visits the inner pixels, rows and columns reach + 1 … side − reach, from the last to the first.
    Each takes what the pixel moves[:, i, j] (down, right) away shows at that moment: its new value if the
    sweep has been there, else its old one. That makes chains of pointers, followed here for all pixels at
    once by doubling; the result is the loop's, bit by bit.

    Args:
        moves: (2, H − 2·reach, W − 2·reach) in −reach … reach − 1.
    """
    count = height * width
    rows = np.arange(reach + 1, height - reach + 1)[:, None]
    columns = np.arange(reach + 1, width - reach + 1)
    here = rows * width + columns
    there = (rows + moves[0]) * width + columns + moves[1]
    # Nodes 0 … count−1 are the old values (they point to themselves), count … 2·count−1 the new ones.
    pointer = np.tile(np.arange(count), 2)
    pointer[count + here] = there + count * (there > here)
    while True:
        further = pointer[pointer]
        if np.array_equal(further, pointer):
            return pointer[count:]
        pointer = further


def motion_blur(image: Pixels, severity: int, rng: np.random.Generator) -> Pixels:
    """Blur (H, W, 3) along one direction, uniform in ±45 degrees."""
    radius, sigma = MOTION_BLUR[severity - 1]
    blurred = line_blur(image.astype(np.float32), radius=radius, sigma=sigma, angle=rng.uniform(-45, 45))
    return np.rint(blurred).astype(np.uint8)  # ImageMagick rounds where the other definitions truncate


def zoom_blur(image: Pixels, severity: int, rng: np.random.Generator) -> Pixels:
    """Average (H, W, 3) with enlarged copies of itself: moving towards the object."""
    factors = np.arange(1, *ZOOM_BLUR[severity - 1])
    unit = to_unit(image)
    total = unit.copy()  # counted here and once more with the factor 1, as published
    for factor in factors:
        total += zoom_center(unit, float(factor))
    return to_pixels(total / np.float32(len(factors) + 1))


def gaussian_blur(image: Pixels, severity: int, rng: np.random.Generator) -> Pixels:
    """Gaussian blur of (H, W, 3)."""
    return to_pixels(gaussian(to_unit(image), GAUSSIAN_BLUR[severity - 1]))
