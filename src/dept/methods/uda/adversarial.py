"""What the adversarial methods share: gradient reversal, the domain discriminator, and the norm in front of it.

A discriminator with batch norm does not see how long features are, so its gradient never stops them from growing, and a
classifier that reads them breaks down with the run. TLL's bottleneck (Linear, BatchNorm, ReLU) prevents that. Of it the
batch norm is kept here: classifier and discriminator read normalised features. After every step it is folded into the
model's own head, which stays linear, so that what is written is an ordinary dept model.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dept.data.loader import Batch
from dept.methods.uda.base import Halves, PairedBatch, UDAConfig, UDAMethod


@dataclass(frozen=True)
class AdversarialConfig(UDAConfig):
    """TLL's settings."""

    trade_off: float = 1.0
    """weight of the domain loss"""
    ramp: int = 1000
    """steps over which the reversed gradient grows: coefficient 2 / (1 + e^(-t / ramp)) - 1"""
    hidden: int = 1024
    """width of the discriminator's two hidden layers"""


class Adversarial(UDAMethod):
    """A classifier that shares a batch norm with the discriminator; the model's head is the two of them in one."""

    Config = AdversarialConfig
    config: AdversarialConfig

    def build(self) -> dict[str, nn.Module]:
        """The norm, and the classifier behind it, which begins as the model's head."""
        classifier = copy.deepcopy(self.model.head).requires_grad_(True)
        return {"norm": nn.BatchNorm1d(classifier.in_features), "classifier": classifier}

    def halves(self, batch: PairedBatch) -> Halves:
        """Normalised features and their logits, both domains in one batch."""
        both = super().halves(batch)
        features = self.extra["norm"](torch.cat([both.source, both.target]))
        logits = self.extra["classifier"](features)
        count = len(both.source)
        return Halves(features[:count], features[count:], logits[:count], logits[count:])

    def after_step(self, batch: Batch) -> None:
        """The model's head follows."""
        norm, classifier = self.extra["norm"], self.extra["classifier"]
        assert isinstance(norm, nn.BatchNorm1d) and isinstance(classifier, nn.Linear)
        fold(norm, classifier, self.model.head)


@torch.no_grad()
def fold(norm: nn.BatchNorm1d, classifier: nn.Linear, head: nn.Linear) -> None:
    """Make `head` (D, C) what `norm` with its running statistics and `classifier` are one after the other."""
    assert norm.running_mean is not None and norm.running_var is not None
    scale = norm.weight / (norm.running_var + norm.eps).sqrt()
    head.weight.copy_(classifier.weight * scale)
    head.bias.copy_(classifier(norm.bias - scale * norm.running_mean))


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
