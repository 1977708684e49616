"""Views of an image. A random view is a pure function of (seed, epoch, image index, view number).

So results do not depend on the number of workers, on resuming, or on how a batch is split over processes.
Recipes are those of the released code: weak = resize, random crop, flip; strong = random resized crop, flip,
colour jitter, grey, blur; test = resize, centre crop.

What is random about a view is drawn first, as `WeakParams` or `StrongParams`, and then applied with Pillow.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageEnhance, ImageFilter

_BICUBIC, _BILINEAR = Image.Resampling.BICUBIC, Image.Resampling.BILINEAR


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


def view_rng(seed: int, epoch: int, index: int, view: int) -> np.random.Generator:
    """The generator of one random view."""
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, epoch, index, view])))


@dataclass(frozen=True)
class WeakParams:
    """What is random about a weak view: the corner of the crop within the resized image, and the flip."""

    left: int
    top: int
    flip: bool


@dataclass(frozen=True)
class StrongParams:
    """What is random about a strong view."""

    box: tuple[int, int, int, int]
    """the crop: left, top, right, bottom in pixels of the image"""
    flip: bool
    jitter: tuple[tuple[int, float], ...]
    """(operation, amount) in the order of application; the operations are numbered as in `Augment.jitter`"""
    grey: bool
    blur: float
    """radius, that is, standard deviation in pixels; 0 for no blur"""


def draw_weak(width: int, height: int, size: int, augment: Augment, rng: np.random.Generator) -> WeakParams:
    """Draw a weak view, `size` px wide, of an image that is width × height after the model's resizing."""
    left = int(rng.integers(0, max(0, width - size) + 1))
    top = int(rng.integers(0, max(0, height - size) + 1))
    return WeakParams(left, top, flip=_chance(augment.flip, rng))


def draw_strong(width: int, height: int, augment: Augment, rng: np.random.Generator) -> StrongParams:
    """Draw a strong view of a width × height image."""
    # Arguments are evaluated from left to right, and the order of the draws is part of the definition of a view.
    return StrongParams(
        box=crop_box(width, height, augment.crop_scale, rng),
        flip=_chance(augment.flip, rng),
        jitter=_draw_jitter(augment.jitter, rng) if _chance(augment.jitter_probability, rng) else (),
        grey=_chance(augment.grey, rng),
        blur=rng.uniform(*augment.blur_radius) if _chance(augment.blur, rng) else 0.0,
    )


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
    left, top = centre_corner(*resized.size, pre.size)
    return resized.crop((left, top, left + pre.size, top + pre.size))


def weak_view(image: Image.Image, pre: Preprocess, augment: Augment, rng: np.random.Generator) -> Image.Image:
    """Resize by the model's rule, random crop, flip."""
    resized = _resized(image, pre)
    drawn = draw_weak(*resized.size, pre.size, augment, rng)
    crop = resized.crop((drawn.left, drawn.top, drawn.left + pre.size, drawn.top + pre.size))
    return _flipped(crop) if drawn.flip else crop


def strong_view(image: Image.Image, pre: Preprocess, augment: Augment, rng: np.random.Generator) -> Image.Image:
    """Random resized crop (bicubic), flip, colour jitter, grey, blur."""
    return apply_strong(image, draw_strong(*image.size, augment, rng), pre.size)


def apply_strong(image: Image.Image, drawn: StrongParams, size: int) -> Image.Image:
    """The strong view with the given parameters, size × size."""
    view = image.resize((size, size), _BICUBIC, box=drawn.box)
    view = _flipped(view) if drawn.flip else view
    for step, amount in drawn.jitter:
        view = _jittered(view, step, amount)
    if drawn.grey and view.mode == "RGB":
        view = view.convert("L").convert("RGB")
    return view.filter(ImageFilter.GaussianBlur(drawn.blur)) if drawn.blur else view


def resized_size(width: int, height: int, pre: Preprocess) -> tuple[int, int]:
    """Width and height of an image after the model's resizing."""
    if pre.rule == "none":
        return width, height
    if pre.rule == "squash":
        return pre.resize, pre.resize
    factor = pre.resize / min(width, height)
    return round(width * factor), round(height * factor)


def centre_corner(width: int, height: int, size: int) -> tuple[int, int]:
    """Left and top of the centre crop; negative where the image is smaller than the crop."""
    return (width - size) // 2, (height - size) // 2


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


def _draw_jitter(
    strength: tuple[float, float, float, float], rng: np.random.Generator
) -> tuple[tuple[int, float], ...]:
    """Brightness, contrast, saturation and hue in a random order; those of strength 0 are drawn, but left out."""
    drawn = [(int(step), rng.uniform(-strength[step], strength[step])) for step in rng.permutation(4)]
    return tuple((step, amount) for step, amount in drawn if strength[step])


def _resized(image: Image.Image, pre: Preprocess) -> Image.Image:
    size = resized_size(*image.size, pre)
    if size == image.size:
        return image
    return image.resize(size, _BICUBIC if pre.interpolation == "bicubic" else _BILINEAR)


def _flipped(image: Image.Image) -> Image.Image:
    return image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)


def _jittered(image: Image.Image, step: int, amount: float) -> Image.Image:
    """One operation of the colour jitter; saturation and hue leave grey images as they are."""
    enhancers = (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color)
    if step >= 2 and image.mode == "L":
        return image
    return _hue_shifted(image, amount) if step == 3 else enhancers[step](image).enhance(1 + amount)


def _hue_shifted(image: Image.Image, shift: float) -> Image.Image:
    """Turn the hue by `shift` of a full circle."""
    hue, saturation, value = image.convert("HSV").split()
    turned = (np.asarray(hue).astype(np.int16) + round(shift * 255)) % 256
    merged = Image.merge("HSV", (Image.fromarray(turned.astype(np.uint8)), saturation, value))
    return merged.convert("RGB")
