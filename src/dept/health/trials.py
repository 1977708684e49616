"""Would a model be more certain of the same images if they were prepared in another way? Found by trying it.

Whoever reads with OpenCV and writes with another library swaps red and blue. Mean and std get lost between training and
conversion. Digits and X-rays come as negatives. Statistics of pixels show none of this, but a model that knows the
images becomes more certain when the mistake is undone.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from dept.data.views import Preprocess
from dept.health.findings import ENOUGH, Finding

TRIED = 64
"""images that every way is tried on"""
LESS = 0.1
"""share of the mean entropy that must go. Two ImageNet models lost 9 to 61 % of it on photos when a mistake was undone,
and up to 6 % by a change for the worse, on paintings"""
KNOWN = 0.35
"""mean entropy, as a share of its maximum, that must be left at most: below, a model knows the images. Where it hardly
does, more contrast alone makes it more certain (sketches, for a model of photos: 0.39)"""
ERRORS = 3.0
"""standard errors that the difference must have"""
ALIKE = 0.1
"""distance of two normalisations, in each number, that a model hardly notices"""
NORMALISATIONS = (
    ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),  # ImageNet
    ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),  # timm's augreg, Inception
    ((0.0, 0.0, 0.0), (1.0, 1.0, 1.0)),  # none
)


class Trial(NamedTuple):
    """Another way to prepare images."""

    check: str
    way: str
    advice: str
    prepare: Callable[[Tensor], Tensor]
    """pixels (B, channels, H, W) in [0, 1] -> what the model gets"""


def trials(preprocess: Preprocess) -> list[Trial]:
    """The ways to try for a model that prepares images like this."""
    own = (preprocess.mean, preprocess.std)
    found = [
        Trial(
            "negatives",
            "on negatives, with dark and bright swapped",
            "Was it trained on dark shapes on a bright ground, or the reverse, and these are not? Invert the images.",
            lambda pixels: _normalised(1 - pixels, *own),
        )
    ]
    if preprocess.channels == 3:
        found.append(
            Trial(
                "channel order",
                "with red and blue swapped",
                "Did something read or write these images as blue, green, red (OpenCV)? Or was the model trained so? "
                "Swap the channels of the images.",
                lambda pixels: _normalised(pixels.flip(1), *own),
            )
        )
    return found + [_renormalised(*usual) for usual in _usual(preprocess)]


def _renormalised(mean: tuple[float, ...], std: tuple[float, ...]) -> Trial:
    return Trial(
        "normalisation",
        f"with mean {mean} and std {std}",
        "Was it trained with these? Then convert it again with them (`dept convert`).",
        lambda pixels: _normalised(pixels, mean, std),
    )


def _usual(preprocess: Preprocess) -> list[tuple[tuple[float, ...], tuple[float, ...]]]:
    """Usual normalisations, for as many channels, that are not about the model's own."""
    own = (*preprocess.mean, *preprocess.std)
    usual = [(mean[: preprocess.channels], std[: preprocess.channels]) for mean, std in NORMALISATIONS]
    return [
        (mean, std) for mean, std in usual if max(abs(a - b) for a, b in zip(own, (*mean, *std), strict=True)) > ALIKE
    ]


def _normalised(pixels: Tensor, mean: tuple[float, ...], std: tuple[float, ...]) -> Tensor:
    of, by = (torch.tensor(values, device=pixels.device).view(1, -1, 1, 1) for values in (mean, std))
    return (pixels - of) / by


def better_prepared(
    predict: Callable[[Tensor], Tensor], pixels: Tensor, preprocess: Preprocess, classes: int
) -> Finding | None:
    """The way that makes a model clearly more certain, if there is one and there are enough images to tell.

    Args:
        predict: gives probabilities (B, C) for what the model gets (B, channels, H, W).
        pixels: of some images (B, channels, H, W), in [0, 1].
    """

    def entropy(prepared: Tensor) -> Tensor:
        found: Tensor = torch.special.entr(predict(prepared).double()).sum(dim=-1)
        return found

    if len(pixels) < ENOUGH:
        return None
    now = entropy(_normalised(pixels, preprocess.mean, preprocess.std))
    tried = [(one, entropy(one.prepare(pixels))) for one in trials(preprocess)]
    best, least = min(tried, key=lambda pair: float(pair[1].mean()))
    if not clearly_less(now, least) or float(least.mean()) > KNOWN * math.log(classes):
        return None
    return Finding(
        best.check,
        "warning",
        f"The model is more certain {best.way}: mean entropy {float(least.mean()):.2f} instead of "
        f"{float(now.mean()):.2f}, on {len(pixels)} images.",
        best.advice,
    )


def clearly_less(now: Tensor, other: Tensor) -> bool:
    """Whether entropies (n,) of the same images are smaller, by much and not by chance."""
    fall = now - other
    error = float(fall.std()) / math.sqrt(len(fall))
    return float(fall.mean()) > max(LESS * float(now.mean()), ERRORS * error)
