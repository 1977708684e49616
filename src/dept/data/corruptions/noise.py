"""Noise: Gaussian, shot, impulse, speckle. Constants of Hendrycks & Dietterich (ICLR 2019)."""

from __future__ import annotations

import numpy as np

from .filters import Pixels, to_pixels, to_unit

GAUSSIAN_NOISE = (0.08, 0.12, 0.18, 0.26, 0.38)
"""Standard deviation, image in [0, 1]."""

SHOT_NOISE = (60, 25, 12, 5, 3)
"""Photons of a white pixel."""

IMPULSE_NOISE = (0.03, 0.06, 0.09, 0.17, 0.27)
"""Share of values replaced by 0 or 1."""

SPECKLE_NOISE = (0.15, 0.2, 0.35, 0.45, 0.6)
"""Standard deviation relative to the value."""


def gaussian_noise(image: Pixels, severity: int, rng: np.random.Generator) -> Pixels:
    """Add N(0, sigma²) to each value of (H, W, 3)."""
    noise = rng.standard_normal(image.shape, np.float32)
    return to_pixels(to_unit(image) + np.float32(GAUSSIAN_NOISE[severity - 1]) * noise)


def shot_noise(image: Pixels, severity: int, rng: np.random.Generator) -> Pixels:
    """Replace each value of (H, W, 3) by a Poisson count of that mean."""
    photons = SHOT_NOISE[severity - 1]
    counts = rng.poisson(to_unit(image) * np.float32(photons))
    return to_pixels((counts / photons).astype(np.float32))


def impulse_noise(image: Pixels, severity: int, rng: np.random.Generator) -> Pixels:
    """Salt and pepper: each value of (H, W, 3), not each pixel, becomes 0 or 255 with equal chance."""
    share = IMPULSE_NOISE[severity - 1]
    draw = rng.random(image.shape, np.float32)
    noisy = np.where(draw < share, np.uint8(255), image)
    return np.where(draw < share / 2, np.uint8(0), noisy)


def speckle_noise(image: Pixels, severity: int, rng: np.random.Generator) -> Pixels:
    """Multiply each value of (H, W, 3) by 1 + N(0, sigma²)."""
    noise = rng.standard_normal(image.shape, np.float32)
    return to_pixels(to_unit(image) * (1 + np.float32(SPECKLE_NOISE[severity - 1]) * noise))
