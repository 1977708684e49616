"""AaD: attracting and dispersing. Yang et al., "Attracting and dispersing: a simple approach for source-free domain
adaptation", NeurIPS 2022.

The prediction of an image is drawn to those of its nearest neighbours in a memory of all images and pushed away from
those of the other images of the batch. The push fades during the run, and keeps classes apart until the pull has made
clusters. Tunes prompts and head here, the released code everything.
Cost: one forward and one backward per batch, one pass over all images at the start. Fails when: classes are far from
balanced, or a class fills a batch: the push is smallest when all classes are predicted equally often. It is a sum over
the batch, so it weighs more in larger batches than the published 64.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dept.data.loader import Batch
from dept.methods.neighbourhood import Neighbourhood
from dept.methods.shot import power_decay


class AaD(Neighbourhood):
    """Predictions attracted by neighbours and dispersed over the batch."""

    name = "aad"
    title = "AaD"
    summary = "predictions drawn to those of neighbours, pushed from the rest of the batch (Yang et al., NeurIPS 2022)"
    settings = ("offline", "online")
    enough_steps = 300
    forwards_per_step = 2.0
    assumes_balance = True  # Σ_{i≠m} p_i·p_m is B² |mean p|² but for the diagonal: least when the mean is even
    views = "w"

    @dataclass(frozen=True)
    class Config(Neighbourhood.Config):
        """Constants of the loss are the released ones for VisDA-C."""

        batch: int = 64
        """B, images per step; the dispersion is a sum over them"""
        w_disperse: float = 1.0
        """α, weight of the dispersion at the start"""
        decay: float = 5.0
        """β, at step t of T the weight is α (1 + 10 t/T)^-β; 0 keeps it, and a stream keeps it too"""

    config: Config
    presets = {
        "offline": {},
        "online": {"schedule": "constant", "predict": "after", "epochs": 1},
        "ln": {"tune": "norm", "backbone_lr": 1e-3},
    }

    def loss(self, batch: Batch) -> dict[str, Tensor]:
        """-Σ_j p_i·p_j over neighbours + λ_t Σ_{m≠i} p_i·p_m over the batch   [AaD Eq. L]"""
        output = self.model.read(batch.views[0])
        bank, slots = self.remember(batch, output)
        near = bank.probabilities[bank.nearest(slots, self.config.neighbours)]
        probabilities = output.logits.softmax(dim=-1)
        return {
            "attract": -attraction(probabilities, near),
            "disperse": self.dispersion_weight() * dispersion(probabilities),
        }

    def dispersion_weight(self) -> float:
        """λ_t = α (1 + 10 t/T)^-β   [AaD λ]"""
        step, total, _ = self.progress
        return self.config.w_disperse * power_decay(step if total else 0, total, self.config.decay)


def attraction(probabilities: Tensor, near: Tensor) -> Tensor:
    """Batch mean of Σ_j p_i·p_j: (B, C), neighbours' (B, k, C) -> ()   [AaD attract]"""
    return torch.einsum("bc,bkc->b", probabilities, near).mean()


def dispersion(probabilities: Tensor) -> Tensor:
    """Batch mean of Σ_{m≠i} p_i·p_m, with a gradient to both sides: (B, C) -> ()   [AaD disperse]"""
    pairs = probabilities.sum(dim=0).square().sum() - probabilities.square().sum()
    return pairs / len(probabilities)
