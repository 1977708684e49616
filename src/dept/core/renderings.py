"""Renderings: the same picture drawn differently, so that a classifier gives another opinion of what is in it.

A model of photographs may see nothing in dark lines on paper, and much in bright lines on black. Every rendering maps
normalised images (B, channels, H, W) to such images, and needs no constants of the normalisation.
"""

from __future__ import annotations

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor


def as_it_is(images: Tensor) -> Tensor:
    """The picture itself."""
    return images


def mirrored(images: Tensor) -> Tensor:
    """Left and right exchanged."""
    return images.flip(-1)


def blurred(images: Tensor) -> Tensor:
    """Every pixel the mean of 3 × 3."""
    return F.avg_pool2d(F.pad(images, (1, 1, 1, 1), mode="replicate"), 3, stride=1)


def inverted(images: Tensor) -> Tensor:
    """Dark and bright exchanged, within the range of each channel of each image."""
    return images.amin(dim=(2, 3), keepdim=True) + images.amax(dim=(2, 3), keepdim=True) - images


def thickened(images: Tensor) -> Tensor:
    """Every pixel the darkest of 3 × 3: thin lines on paper become thick ones."""
    return -F.max_pool2d(-images, 3, stride=1, padding=1)


def bold(images: Tensor) -> Tensor:
    """Every pixel the darkest of 5 × 5."""
    return -F.max_pool2d(-images, 5, stride=1, padding=2)


def grey(images: Tensor) -> Tensor:
    """The mean of the channels in all of them."""
    return images.mean(dim=1, keepdim=True).expand_as(images)


RENDERINGS: tuple[Callable[[Tensor], Tensor], ...] = (
    as_it_is,
    mirrored,
    blurred,
    inverted,
    thickened,
    bold,
    grey,
)
"""the picture itself comes first"""
