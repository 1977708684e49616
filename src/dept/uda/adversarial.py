"""What the adversarial methods share: gradient reversal and the domain discriminator."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class _Reverse(torch.autograd.Function):
    """The identity whose gradient is multiplied by -coefficient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, coefficient: float) -> Tensor:
        ctx.coefficient = coefficient
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return -ctx.coefficient * grads[0], None


def reverse_gradient(x: Tensor, coefficient: float) -> Tensor:
    """x itself; its gradient comes back with the sign flipped, times `coefficient`.   [DANN Eq. R_λ]"""
    flipped: Tensor = _Reverse.apply(x, coefficient)
    return flipped


def reversal_coefficient(step: int, ramp: int = 1000) -> float:
    """2 / (1 + e^(-t / ramp)) - 1: from 0 at the start to 1.   [DANN Eq. λ_p]"""
    return 2.0 / (1.0 + math.exp(-step / ramp)) - 1.0


def discriminator(width: int, hidden: int) -> nn.Sequential:
    """Two hidden layers with batch norm and one logit "is source", as TLL (which ends in a sigmoid)."""
    return nn.Sequential(
        nn.Linear(width, hidden),
        nn.BatchNorm1d(hidden),
        nn.ReLU(),
        nn.Linear(hidden, hidden),
        nn.BatchNorm1d(hidden),
        nn.ReLU(),
        nn.Linear(hidden, 1),
    )


def domain_loss(source: Tensor, target: Tensor, weights: Tensor | None = None) -> Tensor:
    """½ [BCE(D_s, 1) + BCE(D_t, 0)] of discriminator logits (B, 1) each.   [DANN Eq. L_d]

    Args:
        weights: of the rows of source, then target (2B,), with mean 1; the result is then the weighted joint mean.
    """
    real = torch.cat([torch.ones_like(source), torch.zeros_like(target)])
    each = F.binary_cross_entropy_with_logits(torch.cat([source, target]), real, reduction="none").squeeze(1)
    if weights is not None:
        return (weights * each).mean()
    return 0.5 * (each[: len(source)].mean() + each[len(source) :].mean())
