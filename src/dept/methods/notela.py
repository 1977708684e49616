"""NOTELA: noisy teacher-student with Laplacian adjustment. Boudiaf et al., "In search for a generalizable method for
source-free domain adaptation", ICML 2023.

The label of an image is its own prediction, pulled towards the mean prediction of its mutual neighbours in a memory of
all images; a noisy student learns it. Labels are soft and made anew in every step. Nothing asks for balanced classes.
Deviations: the noise is the strong view instead of dropout; neighbours are found by cosine instead of distance, and are
mutual in the memory as it is, where the released code looks up lists of the last visit; k counts without the image
itself; optimiser and schedule are DePT's instead of Adam (1e-4, 10 epochs).
Cost: two forwards and one backward per batch, one pass over all images at the start. Fails when: the source model is
so wrong that neighbours agree on wrong classes: no term brings back a class that is no longer predicted.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dept.core.losses import cross_entropy
from dept.data.loader import Batch
from dept.methods.neighbourhood import Neighbourhood


class NOTELA(Neighbourhood):
    """Soft labels smoothed over mutual neighbours, learned by a noisy student."""

    name = "notela"
    title = "NOTELA"
    summary = "soft labels smoothed over mutual neighbours, learned by a noisy student (Boudiaf et al., ICML 2023)"
    settings = ("offline", "online")
    enough_steps = 300
    forwards_per_step = 3.0
    views = "ws"  # weak (label, memory), strong (student)

    @dataclass(frozen=True)
    class Config(Neighbourhood.Config):
        """Constants of the label are the published ones for images."""

        neighbours: int = 15
        """k, an image and its neighbour must be among each other's k nearest (at most a fifth of the memory)"""
        w_neighbours: float = 2.0
        """λ, weight of the neighbours' mean prediction in a label"""
        softness: float = 1.0
        """α, labels are sharper below 1 and softer above"""

    config: Config
    presets = {
        "offline": {},
        "online": {"schedule": "constant", "predict": "after", "epochs": 1},
        "ln": {"tune": "norm", "backbone_lr": 1e-3},
    }

    def loss(self, batch: Batch) -> dict[str, Tensor]:
        """Cross-entropy of the student's strong view to the label of the weak one   [NOTELA Eq. student]"""
        weak, strong = batch.views
        labels = self.pseudo_labels(weak, batch)
        return {"pseudo_label": cross_entropy(self.model(strong), labels)}

    @torch.no_grad()
    def pseudo_labels(self, weak: Tensor, batch: Batch) -> Tensor:
        """ŷ (B, C) from the model's prediction of the weak view and its mutual neighbours in memory."""
        output = self.model.read(weak)
        bank, slots = self.remember(batch, output)
        near, mutual = bank.mutual(slots, self.config.neighbours)
        around = mean_over(bank.probabilities[near], mutual)
        return smoothed_labels(output.logits, around, weight=self.config.w_neighbours, softness=self.config.softness)


def mean_over(probabilities: Tensor, chosen: Tensor) -> Tensor:
    """Mean over the chosen ones of each row, 0 where none is: (B, k, C), (B, k) -> (B, C)"""
    weights = chosen.to(probabilities) / chosen.sum(dim=1, keepdim=True).clamp_min(1)
    return (weights.unsqueeze(2) * probabilities).sum(dim=1)


def smoothed_labels(logits: Tensor, around: Tensor, *, weight: float, softness: float) -> Tensor:
    """ŷ ∝ p^(1/α) exp((λ/α) p̄), p̄ the neighbours' mean prediction: (B, C), (B, C) -> (B, C)   [NOTELA Eq. ŷ]"""
    return ((logits + weight * around) / softness).softmax(dim=-1)  # the normaliser of p cancels
