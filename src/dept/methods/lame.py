"""LAME: Laplacian adjusted maximum-likelihood estimation. Boudiaf et al., "Parameter-free online test-time adaptation",
CVPR 2022.

Corrects predictions, not the model: the labels of a batch stay near the source model's and agree with those of
neighbours in feature space. Nothing is trained, and nothing is carried from batch to batch.
Deviation: the distance that the RBF kernel is scaled by is that to the k-th other image, without the image itself.
Cost: one forward, and a few products of a B × B kernel with the labels. Fails when: labels of neighbours are
independent of each other, above all in shuffled streams of many classes, where it is much worse than the source model.
Made for streams in which images of a class come together. Images that are predicted one by one stay as they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from dept.data.loader import Batch
from dept.methods.base import Group, Method
from dept.methods.config import OnlineConfig

TOLERANCE = 1e-8  # relative change of the energy at which the labels count as settled


class LAME(Method):
    """Predictions of a batch made to agree with their neighbours'."""

    name = "lame"
    title = "LAME"
    summary = "predictions of a batch made to agree with their neighbours', nothing trained (Boudiaf et al., CVPR 2022)"
    settings = ("online",)
    relabels = True
    forwards_per_step = 1.0

    @dataclass(frozen=True)
    class Config(OnlineConfig):
        """Every batch by itself."""

        lr: float = 0.0
        """unused: nothing is trained"""
        neighbours: int = 5
        """k, neighbours of an image in its batch"""
        kernel: Literal["knn", "rbf"] = "knn"
        """weight of a neighbour: 1 for the k nearest; or exp(-d²/2σ²) for all, σ the mean distance to the k-th"""
        iterations: int = 100
        """most updates of the labels"""

    config: Config
    presets = {"online": {}}

    def tuned(self) -> list[Group]:
        """Nothing."""
        return []

    def step(self, batch: Batch) -> dict[str, float]:
        """Does nothing: predicting is all."""
        return {}

    @torch.no_grad()
    def predict(self, images: Tensor) -> Tensor:
        """Logits (B, C) whose softmax is the corrected labels of these images taken together."""
        config, (features, logits, _) = self.config, self.model.read(images)
        if len(images) == 1:
            return logits
        kernel = (nearest_kernel if config.kernel == "knn" else rbf_kernel)(features, config.neighbours)
        return relabelled(logits, kernel, config.iterations)


def nearest_kernel(features: Tensor, neighbours: int) -> Tensor:
    """W_ij = 1 if j is among the k images nearest to i, itself left out: (B, D) -> (B, B)   [LAME W, kNN]"""
    distances = _distances(features).fill_diagonal_(torch.inf)
    near = distances.topk(min(neighbours, len(features) - 1), largest=False).indices
    return torch.zeros_like(distances).scatter_(1, near, 1.0)


def rbf_kernel(features: Tensor, neighbours: int) -> Tensor:
    """W_ij = exp(-d_ij² / 2σ²), σ the mean distance to the k-th nearest: (B, D) -> (B, B)   [LAME W, RBF]"""
    distances = _distances(features)
    last = min(neighbours, len(features) - 1) + 1  # the image itself is the first
    width = distances.kthvalue(last, dim=1).values.mean().clamp_min(1e-12)
    return (-0.5 * (distances / width).square()).exp()


def relabelled(logits: Tensor, kernel: Tensor, iterations: int) -> Tensor:
    """Repeat Y <- softmax(z + W Y) from Y = softmax(z) until it settles: logits of Y (B, C)   [LAME Eq. Y]

    The energy, which each update lowers, is Σ_i KL(y_i ‖ p_i) - Σ_ij W_ij y_i·y_j.
    """
    log_p = logits.log_softmax(dim=-1)
    scores, labels, energy = logits, log_p.exp(), None
    for _ in range(iterations):
        pull = kernel @ labels
        scores = logits + pull
        labels, before = scores.softmax(dim=-1), energy
        energy = float((labels * (scores.log_softmax(dim=-1) - log_p - pull)).double().sum())
        if before is not None and abs(energy - before) <= TOLERANCE * abs(before):
            break
    return scores


def _distances(features: Tensor) -> Tensor:
    """Distances (B, B) of the directions of the features."""
    unit = F.normalize(features, dim=1)
    # Directly, not by |a|² - 2ab + |b|², which loses small distances to rounding.
    return torch.cdist(unit, unit, compute_mode="donot_use_mm_for_euclid_dist")
