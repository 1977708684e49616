"""What images look like to a model, in a few numbers each. Pure functions of pixels (B, channels, H, W) in [0, 1]."""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
import torch.nn.functional as F
from torch import Tensor

SIDE = 16
"""rows and columns of a signature: fine enough for handwritten digits, coarse enough to survive JPEG and resizing"""


@dataclass(frozen=True)
class Looks:
    """Statistics of n images."""

    mean: Tensor
    """(n,) brightness"""
    std: Tensor
    """(n,) contrast: standard deviation over the pixels, grey"""
    brightest: Tensor
    """(n,) brightness that one pixel in a thousand exceeds"""
    colour: Tensor
    """(n,) mean distance of the largest from the smallest channel; 0 for grey images"""
    signature: Tensor
    """(n, 256) of length 1; alike for images that look alike"""

    @classmethod
    def joined(cls, parts: list[Looks]) -> Looks:
        """The statistics of several batches."""
        return cls(**{one.name: torch.cat([getattr(part, one.name) for part in parts]) for one in fields(cls)})


def looks(pixels: Tensor) -> Looks:
    """The statistics of a batch."""
    grey = pixels.mean(dim=1)
    flat = grey.flatten(1)
    spread = pixels.amax(dim=1) - pixels.amin(dim=1)
    return Looks(
        mean=flat.mean(dim=1),
        std=flat.std(dim=1, correction=0),
        brightest=flat.kthvalue(max(1, round(0.999 * flat.shape[1])), dim=1).values,
        colour=spread.flatten(1).mean(dim=1),
        signature=signature(grey),
    )


def signature(grey: Tensor) -> Tensor:
    """Brightness on a coarse grid, centred, of length 1: (B, H, W) -> (B, 256). Near zero for blank images.

    The product of two signatures is the correlation of the two images. Compression, resizing and changes of brightness
    and contrast hardly change it.
    """
    small = F.adaptive_avg_pool2d(grey[:, None], (SIDE, SIDE)).flatten(1)
    return F.normalize(small - small.mean(dim=1, keepdim=True), dim=1, eps=1e-3)


def copies(signatures: Tensor, least: float) -> Tensor:
    """Which images (n,) look like an earlier one: their signatures (n, 256) correlate at least so much."""
    alike = signatures @ signatures.T >= least
    return alike.tril(-1).any(dim=1)
