"""Views of an image. A random view is a pure function of (seed, epoch, image index, view number).

So results do not depend on the number of workers, on resuming, or on how a batch is split over processes.
Recipes are those of the released code: weak = resize, random crop, flip; strong = random resized crop, flip,
colour jitter, grey, blur; test = resize, centre crop.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageEnhance, ImageFilter

from dept.data.decoding import MAX_PIXELS
from dept.errors import DataError

_BICUBIC, _BILINEAR = Image.Resampling.BICUBIC, Image.Resampling.BILINEAR


MAX_SIDE = 8192
"""of a square input, in pixels"""


@dataclass(frozen=True)
class Preprocess:
    """How a model wants its images; stored with the model and never guessed."""

    size: int = 224
    """side of the square input"""
    resize: int = 256
    """side before cropping; equal to `size` for images that already have it"""
    rule: Literal["squash", "shorter", "none"] = "squash"
    """squash: exactly resize × resize; shorter: the shorter side, aspect kept; none: the images as they are"""
    interpolation: Literal["bilinear", "bicubic"] = "bilinear"
    mean: tuple[float, ...] = (0.5, 0.5, 0.5)
    std: tuple[float, ...] = (0.5, 0.5, 0.5)

    def __post_init__(self) -> None:
        sides = (self.size, self.resize)
        if not all(isinstance(side, int) and 1 <= side <= MAX_SIDE for side in sides):
            raise ValueError(f"size and resize must be whole numbers from 1 to {MAX_SIDE}, found {sides}")
        if self.rule not in ("squash", "shorter", "none") or self.interpolation not in ("bilinear", "bicubic"):
            raise ValueError(f"there is no resize rule {self.rule!r} with interpolation {self.interpolation!r}")
        if len(self.mean) not in (1, 3) or len(self.std) != len(self.mean):
            raise ValueError(f"mean and std must have 1 or 3 values each, found {self.mean} and {self.std}")
        if not all(abs(value) <= 1e3 for value in self.mean) or not all(1e-6 <= value <= 1e3 for value in self.std):
            raise ValueError(f"mean and std must be finite and std above 0, found {self.mean} and {self.std}")

    @property
    def channels(self) -> int:
        """1 for grey models, 3 otherwise."""
        return len(self.mean)


@dataclass(frozen=True)
class Augment:
    """Strength of the random views; the defaults are the authors' for adaptation."""

    flip: float = 0.5
    """probability of a horizontal flip"""
    crop_scale: tuple[float, float] = (0.2, 1.0)
    """area range of the strong crop"""
    jitter: tuple[float, float, float, float] = (0.4, 0.4, 0.4, 0.1)
    """brightness, contrast, saturation, hue"""
    jitter_probability: float = 0.8
    grey: float = 0.2
    """probability of a grey strong view"""
    blur: float = 0.5
    """probability of a blurred strong view"""
    blur_radius: tuple[float, float] = (0.1, 2.0)
    weak_resize: int = 0
    """side before the random crop of the weak view, if images are used as they are otherwise; 0: the model's resize"""

    def __post_init__(self) -> None:
        side = self.weak_resize
        if not isinstance(side, int) or not 0 <= side <= MAX_SIDE:
            raise ValueError(f"weak_resize must be a whole number from 0 to {MAX_SIDE}, found {side}")
        ranges = {"crop_scale": 2, "jitter": 4, "blur_radius": 2}
        for name, value in vars(self).items():
            if name == "weak_resize":
                continue
            numbers = value if isinstance(value, tuple) else (value,)
            if len(numbers) != ranges.get(name, 1) or not all(0 <= number <= 100 for number in numbers):
                raise ValueError(f"{name} must be {ranges.get(name, 1)} numbers from 0 to 100, found {value}")


def view_rng(seed: int, epoch: int, index: int, view: int) -> np.random.Generator:
    """The generator of one random view."""
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, epoch, index, view])))


def make_view(
    image: Image.Image, letter: str, pre: Preprocess, augment: Augment, rng: np.random.Generator
) -> NDArray[np.uint8]:
    """One view as uint8 (H, W, channels): letter t (test), w (weak) or s (strong)."""
    if letter == "t":
        view = test_view(image, pre)
    elif letter == "w":
        view = weak_view(image, pre, augment, rng)
    elif letter == "s":
        view = strong_view(image, pre, augment, rng)
    else:
        raise ValueError(f"Unknown view {letter!r}; a view is one of t (test), w (weak), s (strong).")
    pixels = np.asarray(view, dtype=np.uint8)
    return pixels[:, :, None] if pixels.ndim == 2 else pixels


def test_view(image: Image.Image, pre: Preprocess) -> Image.Image:
    """Resize by the model's rule, crop the centre."""
    resized = _resized(image, pre)
    left, top = ((side - pre.size) // 2 for side in resized.size)  # negative if the image is smaller than the crop
    return resized.crop((left, top, left + pre.size, top + pre.size))


def weak_view(image: Image.Image, pre: Preprocess, augment: Augment, rng: np.random.Generator) -> Image.Image:
    """Resize by the model's rule, or to the side that is asked for, random crop, flip."""
    if augment.weak_resize:
        # Without it, an image that already has the model's size has only one crop.
        pre = replace(pre, resize=augment.weak_resize, rule="squash" if pre.rule == "none" else pre.rule)
    resized = _resized(image, pre)
    left, top = (int(rng.integers(0, max(0, side - pre.size) + 1)) for side in resized.size)
    return _maybe_flipped(resized.crop((left, top, left + pre.size, top + pre.size)), augment, rng)


def strong_view(image: Image.Image, pre: Preprocess, augment: Augment, rng: np.random.Generator) -> Image.Image:
    """Random resized crop (bicubic), flip, colour jitter, grey, blur."""
    # The order of the draws is part of the definition of a view.
    box = crop_box(*image.size, augment.crop_scale, rng)
    view = _maybe_flipped(image.resize((pre.size, pre.size), _BICUBIC, box=box), augment, rng)
    if _chance(augment.jitter_probability, rng):
        view = _jittered(view, augment.jitter, rng)
    if _chance(augment.grey, rng) and view.mode == "RGB":
        view = view.convert("L").convert("RGB")
    if _chance(augment.blur, rng):
        view = view.filter(ImageFilter.GaussianBlur(rng.uniform(*augment.blur_radius)))
    return view


def crop_box(
    width: int, height: int, scale: tuple[float, float], rng: np.random.Generator
) -> tuple[int, int, int, int]:
    """A random box with an area share in `scale` and an aspect in (3/4, 4/3), as torchvision draws it."""
    low, high = math.log(3 / 4), math.log(4 / 3)
    for _ in range(10):
        area = width * height * rng.uniform(*scale)
        aspect = math.exp(rng.uniform(low, high))
        w, h = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < w <= width and 0 < h <= height:
            left, top = int(rng.integers(0, width - w + 1)), int(rng.integers(0, height - h + 1))
            return left, top, left + w, top + h
    # No box fitted (very long images): the largest centred box within the allowed aspects.
    w, h = min(width, round(height * 4 / 3)), min(height, round(width * 4 / 3))
    left, top = (width - w) // 2, (height - h) // 2
    return left, top, left + w, top + h


def _chance(probability: float, rng: np.random.Generator) -> bool:
    return bool(rng.random() < probability)


def _resized(image: Image.Image, pre: Preprocess) -> Image.Image:
    """The image after the model's resizing."""
    if pre.rule == "none":
        return image
    size = (pre.resize, pre.resize)
    if pre.rule == "shorter":
        factor = pre.resize / min(image.size)
        size = round(image.width * factor), round(image.height * factor)
    if size == image.size:
        return image
    if size[0] * size[1] > MAX_PIXELS:
        raise DataError(
            f"An image of {image.width} x {image.height} pixels would be resized to {size[0]} x {size[1]}, more than "
            f"{MAX_PIXELS // 10**6} megapixels. Crop it, or use a smaller `resize`."
        )
    return image.resize(size, _BICUBIC if pre.interpolation == "bicubic" else _BILINEAR)


def _maybe_flipped(image: Image.Image, augment: Augment, rng: np.random.Generator) -> Image.Image:
    return image.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if _chance(augment.flip, rng) else image


def _jittered(image: Image.Image, strength: tuple[float, float, float, float], rng: np.random.Generator) -> Image.Image:
    """Brightness, contrast, saturation and hue in a random order; grey images have neither of the last two."""
    enhancers = (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color)
    for step in rng.permutation(4).tolist():
        amount = rng.uniform(-strength[step], strength[step])  # drawn even if it is not applied
        if not strength[step] or (step >= 2 and image.mode == "L"):
            continue
        image = _hue_shifted(image, amount) if step == 3 else enhancers[step](image).enhance(1 + amount)
    return image


def _hue_shifted(image: Image.Image, shift: float) -> Image.Image:
    """Turn the hue by `shift` of a full circle."""
    hue, saturation, value = image.convert("HSV").split()
    turned = (np.asarray(hue).astype(np.int16) + round(shift * 255)) % 256
    merged = Image.merge("HSV", (Image.fromarray(turned.astype(np.uint8)), saturation, value))
    return merged.convert("RGB")
