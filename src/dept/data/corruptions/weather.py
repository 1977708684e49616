"""Weather: snow, frost, fog, brightness. Constants of Hendrycks & Dietterich (ICLR 2019)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .filters import Floats, Pixels, line_blur, to_pixels, to_unit, zoom_center
from .textures import ice, plasma


class Snow(NamedTuple):
    """Constants of snow: flakes are zoomed noise above a threshold, blurred along their fall."""

    mean: float
    std: float
    zoom: float
    threshold: float
    radius: int
    sigma: float
    keep: float
    """Weight of the image against its whitened copy."""


SNOW = (
    Snow(0.1, 0.3, 3, 0.5, 10, 4, 0.8),
    Snow(0.2, 0.3, 2, 0.5, 12, 4, 0.7),
    Snow(0.55, 0.3, 4, 0.9, 12, 8, 0.7),
    Snow(0.55, 0.3, 4.5, 0.85, 12, 8, 0.65),
    Snow(0.55, 0.3, 2.5, 0.85, 12, 12, 0.55),
)

FROST = ((1.0, 0.4), (0.8, 0.6), (0.7, 0.7), (0.65, 0.7), (0.6, 0.75))
"""Weights of the image and of the ice."""

FOG = ((1.5, 2.0), (2.0, 2.0), (2.5, 1.7), (2.5, 1.5), (3.0, 1.4))
"""Thickness, and decay of the fractal's roughness."""

BRIGHTNESS = (0.1, 0.2, 0.3, 0.4, 0.5)
"""Added to the HSV value."""

LUMA = np.array([0.299, 0.587, 0.114], np.float32)


def snow(image: Pixels, severity: int, rng: np.random.Generator) -> Pixels:
    """Whiten (H, W, 3) and let streaks of snow fall over it."""
    constants = SNOW[severity - 1]
    unit = to_unit(image)
    grey = (unit @ LUMA)[..., None]
    keep = np.float32(constants.keep)
    whitened = keep * unit + (1 - keep) * np.maximum(unit, grey * np.float32(1.5) + np.float32(0.5))
    flakes = _snow_flakes(image.shape[0], image.shape[1], constants, rng)
    # The same flakes turned by half a turn double their number.
    return to_pixels(whitened + (flakes + flakes[::-1, ::-1])[..., None])


def _snow_flakes(height: int, width: int, constants: Snow, rng: np.random.Generator) -> Floats:
    """Blurred flakes (H, W) in [0, 1], rounded to bytes before and after the blur as published."""
    noise = rng.normal(constants.mean, constants.std, size=(height, width)).astype(np.float32)
    layer = zoom_center(noise, constants.zoom)
    layer = np.where(layer < constants.threshold, np.float32(0), layer)
    angle = rng.uniform(-135, -45)
    flakes = to_pixels(layer).astype(np.float32)
    streaks = line_blur(flakes, radius=constants.radius, sigma=constants.sigma, angle=angle)
    return to_unit(np.rint(streaks).astype(np.uint8))


def frost(image: Pixels, severity: int, rng: np.random.Generator) -> Pixels:
    """Lay ice over (H, W, 3).

    The published corruption cuts the ice from five photographs. We ship none: `textures.ice` makes it from
    seeded noise, in five looks with about the colour and contrast of the photographs. The mixing weights are
    the published ones.
    """
    weight, icy = FROST[severity - 1]
    mixed = np.float32(weight) * image + np.float32(icy) * ice(image.shape[0], image.shape[1], rng)
    return np.clip(mixed, 0, 255).astype(np.uint8)


def fog(image: Pixels, severity: int, rng: np.random.Generator) -> Pixels:
    """Add a plasma fractal to (H, W, 3) and scale back to the image's maximum."""
    thickness, decay = FOG[severity - 1]
    unit = to_unit(image)
    brightest = float(unit.max())
    veil = plasma(image.shape[0], image.shape[1], decay, rng)[..., None]
    foggy = unit + np.float32(thickness) * veil
    return to_pixels(foggy * np.float32(brightest / (brightest + thickness)))


def brightness(image: Pixels, severity: int, rng: np.random.Generator) -> Pixels:
    """Raise the HSV value of (H, W, 3), hue and saturation kept."""
    unit = to_unit(image)
    value = unit.max(axis=2, keepdims=True)
    raised = np.minimum(value + np.float32(BRIGHTNESS[severity - 1]), 1)
    # Hue and saturation stay when all channels scale alike; black has neither and becomes grey.
    scaled = unit * (raised / np.maximum(value, np.float32(1e-6)))
    return to_pixels(np.where(value > 0, scaled, raised))
