"""ROID: universal test-time adaptation. Marsden et al., "Universal test-time adaptation through weight ensembling,
diversity weighting, and prior correction", WACV 2024.

A likelihood ratio, whose gradient does not fade as predictions become confident, on samples that are diverse (unlike
the running mean prediction) and certain; consistency with an augmented view; after every step the norm layers move back
towards the source's by one percent. Predictions of a batch are corrected by its class frequencies π, which matters
where classes come in blocks: `prior` "bayes" adds ln π to the logits, which is Bayes' rule for a source of balanced
classes; "released" multiplies the logits by π, as the authors' code does. An adapter has no batch and does without.
Deviations: the augmented view is the strong view of all methods here; batch norm, if any, keeps the source's
statistics.
Cost: a forward and backward of all rows, another of the diverse half. Fails when: classes come in blocks and a class is
predicted wrongly as a whole, which the correction confirms.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from dept.core.adapter import Adapter, pick
from dept.core.losses import entropy, symmetric_cross_entropy
from dept.data.loader import Batch
from dept.methods.norms import NormTuning

HIGHEST = 0.99  # probabilities are cut here, which bounds the ratio
EPS = 1e-5


class ROID(NormTuning):
    """Weighted likelihood ratio and consistency, near the source weights, with corrected predictions."""

    name = "roid"
    title = "ROID"
    summary = "likelihood ratio on diverse samples near the source weights, prior corrected (Marsden et al., WACV 2024)"
    settings = ("online",)
    forwards_per_step = 3.0
    sorted_classes = True

    @dataclass(frozen=True)
    class Config(NormTuning.Config):
        """Defaults: the published online pass."""

        lr: float = 2.5e-4
        """η, learning rate"""
        nesterov: bool = True
        """Nesterov form of the momentum"""
        temperature: float = 0.3333
        """τ, a sample weighs exp(diversity · certainty / τ)"""
        mean_momentum: float = 0.9
        """share of the old running mean prediction that stays"""
        source_share: float = 0.01
        """1 - α, share of the source's weights that is mixed in after each step; 0 for none"""
        prior: Literal["bayes", "released", "none"] = "bayes"
        """how the class frequencies of a batch correct its predictions"""

    config: Config
    state_names = ("mean_prediction",)
    presets = {"online": {}}

    def prepare(self) -> None:
        """The view that is predicted, and a strong one to agree with."""
        super().prepare()
        self.views += "s"

    def setup(self) -> None:
        """Even mean prediction; the source's weights."""
        head = self.model.head
        self.mean_prediction = torch.full_like(head.bias.detach(), 1 / head.out_features)
        self.source = Adapter.of(self.model, self.trained_names)

    def loss(self, batch: Batch) -> dict[str, Tensor]:
        """Σ w_i (ℓ_i + SCE_i) / B over the kept rows, B the batch of the Config   [ROID Eq. L]"""
        clean, strong = batch.views
        self._logits = logits = self.model(clean)
        with torch.no_grad():
            weights = sample_weights(logits, self.mean_prediction, self.config.temperature)
            mean = logits.softmax(dim=-1).mean(dim=0)
            self.mean_prediction = torch.lerp(mean, self.mean_prediction, self.config.mean_momentum)
        rows = weights.nonzero().squeeze(1)
        weights, kept = weights[rows] / self.config.batch, logits[rows]
        return {
            "likelihood_ratio": (weights * likelihood_ratio(kept)).sum(),
            # The gradient flows to both sides, as released.
            "consistency": (weights * symmetric_cross_entropy(self.model(strong[rows]), kept)).sum(),
        }

    @torch.no_grad()
    def after_step(self, batch: Batch) -> None:
        """θ <- α θ + (1 - α) θ₀   [ROID weight ensembling]"""
        tuned = list(pick(self.model, self.trained_names).values())
        torch._foreach_lerp_(tuned, list(self.source.tensors.values()), self.config.source_share)

    def corrected(self, logits: Tensor) -> Tensor:
        """Logits (B, C) with the class frequencies of their batch taken into account."""
        if self.config.prior == "none":
            return logits
        prior = batch_prior(logits.softmax(dim=-1))
        return logits * prior if self.config.prior == "released" else logits + (prior * len(prior)).log()


def likelihood_ratio(logits: Tensor) -> Tensor:
    """-Σ_c p_c log(p_c / (1 - p_c)), p cut at 0.99: (B, C) -> (B,)   [ROID L_SLR]"""
    p = logits.softmax(dim=-1).clamp(max=HIGHEST)
    return -(p * (p / (1 - p) + EPS).log()).sum(dim=-1)


def sample_weights(logits: Tensor, mean: Tensor, temperature: float) -> Tensor:
    """exp(diversity · certainty / τ), 0 for samples less diverse than the average: (B, C), (C,) -> (B,)   [ROID w]

    Diversity is 1 - cos(mean, p), certainty -H(p); each is scaled to [0, 1] over the batch.
    """
    diversity = _scaled(1 - F.cosine_similarity(mean, logits.softmax(dim=-1), dim=-1))
    weights = (diversity * _scaled(-entropy(logits)) / temperature).exp()
    return weights.masked_fill(diversity < diversity.mean(), 0.0)


def batch_prior(probabilities: Tensor) -> Tensor:
    """Mean prediction π of a batch, smoothed by s = max(1/B, 1/C) / max π: (π + s) / (1 + s C)   [ROID prior]"""
    count, classes = probabilities.shape
    prior = probabilities.mean(dim=0)
    smoothing = max(1 / count, 1 / classes) / prior.max()
    return (prior + smoothing) / (1 + smoothing * classes)


def _scaled(values: Tensor) -> Tensor:
    """Values between their smallest, 0, and their largest, 1; all 0 if they are equal."""
    low, high = values.aminmax()
    return (values - low) / (high - low).clamp_min(1e-12)
