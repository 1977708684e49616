"""ImageNet-C's corruptions at five severities: `corrupt(image, "fog", 3)`.

D. Hendrycks and T. Dietterich, "Benchmarking Neural Network Robustness to Common Corruptions and
Perturbations", ICLR 2019.

Definitions and constants are those of the 224 x 224 ImageNet-C. Lengths are in pixels of that size and do not
grow with the image (but see `digital.elastic_unit`), so corrupt images of about 224 pixels. Known differences
from the published files:

- the random numbers are ours: each corruption agrees in distribution, not bit by bit;
- frost uses generated ice (see `weather.frost`), as the published photographs are not shipped;
- the published images were stored as JPEG of quality 85 after the corruption; `corrupt` returns the pixels
  before that;
- where OpenCV rounds positions to 1/32 pixel (elastic) or approximates distances (spatter), ours are exact.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable

import numpy as np

from .blur import defocus_blur, gaussian_blur, glass_blur, motion_blur, zoom_blur
from .digital import contrast, elastic_transform, jpeg_compression, pixelate, saturate
from .filters import Pixels
from .lens import spatter
from .noise import gaussian_noise, impulse_noise, shot_noise, speckle_noise
from .weather import brightness, fog, frost, snow

__all__ = ["CORRUPTIONS", "EXTRA", "corrupt"]

Corruption = Callable[[Pixels, int, np.random.Generator], Pixels]

_STANDARD: tuple[Corruption, ...] = (
    gaussian_noise, shot_noise, impulse_noise,
    defocus_blur, glass_blur, motion_blur, zoom_blur,
    snow, frost, fog, brightness,
    contrast, elastic_transform, pixelate, jpeg_compression,
)  # fmt: skip
_EXTRA: tuple[Corruption, ...] = (speckle_noise, gaussian_blur, spatter, saturate)
_FUNCTIONS = {function.__name__: function for function in _STANDARD + _EXTRA}

CORRUPTIONS: tuple[str, ...] = tuple(function.__name__ for function in _STANDARD)
"""The 15 corruptions of the benchmark, in its order."""

EXTRA: tuple[str, ...] = tuple(function.__name__ for function in _EXTRA)
"""The 4 extra ones, meant for validation."""

SMALLEST_SIDE = 32
"""Pixels; below this the kernels are larger than the image."""


def corrupt(image: Pixels, name: str, severity: int, *, seed: int = 0) -> Pixels:
    """Corrupt one image.

    The result is a pure function of the arguments. Give each image its own seed, its index for example: with
    one seed, all images of a size get the same noise.

    Args:
        image: bytes, RGB (H, W, 3) or grey (H, W), each side at least 32 pixels; not changed.
        name: one of `CORRUPTIONS` or `EXTRA`.
        severity: 1 (mild) to 5 (strong); 0 gives the image back.
        seed: any integer >= 0.

    Returns:
        A new image of bytes, (H, W, 3).
    """
    _check(image, name, severity, seed)
    rgb = np.repeat(image[..., None], 3, axis=2) if image.ndim == 2 else np.array(image, order="C")
    if severity == 0:
        return rgb
    entropy = np.random.SeedSequence([int(seed), zlib.crc32(name.encode()), int(severity)])
    return np.ascontiguousarray(_FUNCTIONS[name](rgb, int(severity), np.random.default_rng(entropy)))


def _check(image: Pixels, name: str, severity: int, seed: int) -> None:
    if not isinstance(image, np.ndarray) or image.dtype != np.uint8:
        found = f"an array of {image.dtype}" if isinstance(image, np.ndarray) else f"a {type(image).__name__}"
        raise ValueError(
            f"The image is {found}, but corruptions are defined on a numpy array of uint8 in 0 to 255. "
            "Convert it first, for example np.asarray(pil_image.convert('RGB'))."
        )
    if not (image.ndim == 2 or (image.ndim == 3 and image.shape[2] == 3)):
        raise ValueError(
            f"The image has shape {image.shape}, but (H, W, 3) or (H, W) is expected. "
            "Move channels last, drop an alpha channel, and pass one image at a time."
        )
    if min(image.shape[:2]) < SMALLEST_SIDE:
        raise ValueError(
            f"The image is {image.shape[0]} x {image.shape[1]} pixels, but each side must have at least "
            f"{SMALLEST_SIDE}. Enlarge it before corrupting it."
        )
    if name not in _FUNCTIONS:
        raise ValueError(f"There is no corruption called {name!r}. Choose one of: {', '.join(_FUNCTIONS)}.")
    if severity not in range(6):
        raise ValueError(
            f"The severity is {severity!r}, but it must be a whole number from 1 (mild) to 5 (strong). "
            "Use 0 for the image as it is."
        )
    if not isinstance(seed, (int, np.integer)) or seed < 0:
        raise ValueError(f"The seed is {seed!r}, but it must be a whole number of at least 0. Use for example seed=0.")
