"""CFA: class-aware feature alignment for source-free test-time adaptation of ViTs. Kojima et al., IJCAI 2022.

Moves the norm layers until the features of a batch have the moments that they had on the source: the mean and two
central moments overall, and the mean of every class that is predicted in the batch.
Not strictly source-free: needs the source statistics that `dept stats` writes (`stats`).
Batch norm, if any, keeps the source's statistics.
Cost: one forward and one backward per batch. Fails when: batches are so small, or so one-sided, that their moments
are noise, or the source statistics come from too few images.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dept.core.adapter import pick
from dept.core.clipping import clip_together
from dept.core.losses import bounded_features
from dept.data.loader import Batch
from dept.methods.base import part, prefixed
from dept.methods.norms import NormTuning

RANGE = 2.0  # bounded features lie in (-1, 1)


class CFA(NormTuning):
    """Alignment of feature moments with stored source statistics."""

    name = "cfa"
    title = "CFA"
    summary = "features aligned with stored source moments, overall and per class (Kojima et al., IJCAI 2022)"
    settings = ("online",)
    needs_stats = True
    batch_statistics = False  # the source moments were taken in evaluation mode

    @dataclass(frozen=True)
    class Config(NormTuning.Config):
        """Defaults: the published online pass."""

        clip: float = 1.0
        """largest norm of the whole gradient; 0 for none"""
        w_all: float = 1.0
        """λ₁, weight of the moments of all features"""
        w_class: float = 1.0
        """λ₂, weight of the class means"""

    config: Config
    presets = {"online": {}}

    def setup(self) -> None:
        """The statistics that this method reads."""
        self.source = {n: t for n, t in self.source_stats.items() if n.startswith(("moment", "class"))}

    def clip(self) -> None:
        """The global norm, as published."""
        clip_together(pick(self.model, self.trained_names).values(), self.config.clip)

    def loss(self, batch: Batch) -> dict[str, Tensor]:
        """λ₁ distance of overall moments + λ₂ mean distance of class means   [CFA L]"""
        source, config = self.source, self.config
        features, self._logits, _ = self.model.read(batch.views[0])
        bounded = bounded_features(features)
        moments = [source[f"moment{order}"] for order in (1, 2, 3)]
        labels = self._logits.argmax(dim=-1)
        between = class_distance(bounded, labels, source["class_means"], source["class_counts"])
        return {"moments": config.w_all * moment_distance(bounded, moments), "classes": config.w_class * between}

    def state_dict(self) -> dict[str, Tensor]:
        """Adds the statistics."""
        return super().state_dict() | prefixed("source", self.source)

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Inverse of `state_dict`."""
        super().load_state_dict(state)
        device = self.model.head.weight.device
        self.source = {name: tensor.to(device, copy=True) for name, tensor in part(state, "source").items()}


def moment_distance(bounded: Tensor, moments: Sequence[Tensor]) -> Tensor:
    """Central moment discrepancy Σ_j ‖m_j(batch) - m_j(source)‖₂ / 2^j: (B, D), J × (D,) -> ()   [CFA L_full]

    Moments above the first are central, about the batch's own mean; the gradient flows through that mean too.
    """
    mean = bounded.mean(dim=0)
    batch = [mean] + [(bounded - mean).pow(order).mean(dim=0) for order in range(2, len(moments) + 1)]
    # vector_norm, unlike sqrt of a sum of squares, has a finite gradient where the moments agree.
    distances = [torch.linalg.vector_norm(ours - theirs) for ours, theirs in zip(batch, moments, strict=True)]
    return torch.stack([distance / RANGE**order for order, distance in enumerate(distances, 1)]).sum()


def class_distance(bounded: Tensor, labels: Tensor, means: Tensor, counts: Tensor) -> Tensor:
    """Mean over the classes in the batch of ‖μ_c(batch) - μ_c(source)‖₂ / 2   [CFA L_class]

    Args:
        bounded: (B, D); labels: predicted classes (B,); means: (C, D); counts: source images per class (C,).
    Classes that are not in the batch, or were not in the source images, contribute nothing.
    """
    present, position, sizes = torch.unique(labels, return_inverse=True, return_counts=True)
    sums = bounded.new_zeros(len(present), bounded.shape[1]).index_add(0, position, bounded)
    gaps = (sums / sizes[:, None] - means[present])[counts[present] > 0]
    distances: Tensor = torch.linalg.vector_norm(gaps, dim=1)
    return distances.sum() / (RANGE * max(len(gaps), 1))
