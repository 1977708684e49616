"""MCC: minimum class confusion. Jin et al., ECCV 2020.

No alignment at all: the classes that target predictions confuse with each other are pushed apart, confident samples
counting more. Recipe of TLL without its bottleneck. Cost: one forward and backward of both batches, no further
parameters. Fails when: batches are small against the number of classes, or predictions start far off.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from dept.core.losses import entropy
from dept.methods.uda.base import PairedBatch, UDAConfig, UDAMethod


class MCC(UDAMethod):
    """Cross-entropy on the source, class confusion on the target."""

    name = "mcc"
    title = "MCC"
    summary = "least confusion between the classes of target predictions (Jin et al., ECCV 2020)"
    settings = ("uda",)

    @dataclass(frozen=True)
    class Config(UDAConfig):
        """TLL's VisDA settings."""

        lr: float = 0.002
        """η of head and prompts"""
        batch: int = 36
        """B, images per step of each domain"""
        temperature: float = 3.0
        """T, softens the target predictions (TLL's default elsewhere: 2.5)"""
        trade_off: float = 1.0
        """weight of the confusion"""

    config: Config
    presets = {"visda": {}, "domainnet": {"temperature": 2.0, "trade_off": 10.0, "lr": 0.005, "batch": 32}}

    def paired_loss(self, batch: PairedBatch) -> dict[str, Tensor]:
        """CE_s + trade-off · MCC_t   [MCC Eq. 8]"""
        both = self.halves(batch)
        confusion = class_confusion(both.target_logits, self.config.temperature)
        return {
            "cross_entropy": self.source_loss(both.source_logits, batch),
            "confusion": self.config.trade_off * confusion,
        }


def class_confusion(logits: Tensor, temperature: float = 1.0) -> Tensor:
    """Mean off-diagonal mass of the normalised class confusion: (B, C) -> (), at most (C - 1) / C.   [MCC Eq. 7]

    C = Yᵀ diag(w) Y with Y = softmax(logits / T) and detached weights w ∝ 1 + e^(-H), mean 1; rows sum to 1.
    """
    scaled = logits / temperature
    predicted = scaled.softmax(dim=-1)
    weights = 1.0 + (-entropy(scaled.detach())).exp()
    weights = weights / weights.mean()
    confusion = predicted.T @ (weights[:, None] * predicted)
    confusion = confusion / confusion.sum(dim=1, keepdim=True)
    return (confusion.sum() - confusion.trace()) / logits.shape[1]
