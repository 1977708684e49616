"""CDAN: conditional adversarial domain adaptation. Long et al., NeurIPS 2018.

As DANN, but the discriminator reads features together with predictions: their outer product, or for many classes a
random projection of it. `entropy` adds the weights of CDAN+E, which trust confident samples more. TLL's recipe with
the batch norm of its bottleneck only, so the outer product has C · D columns (12 x 768 for a ViT-B on VisDA). Cost: as
DANN; the first layer of the discriminator is C times as wide. Fails when: source predictions on the target are mostly
wrong.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from dept.core.losses import entropy
from dept.methods.uda.adversarial import (
    Adversarial,
    AdversarialConfig,
    discriminator,
    domain_loss,
    reversal_coefficient,
    reverse_gradient,
)
from dept.methods.uda.base import PairedBatch


class CDAN(Adversarial):
    """Features that a discriminator cannot assign to a domain even if it knows the predicted class."""

    name = "cdan"
    title = "CDAN"
    summary = "discriminator on features and predictions together (Long et al., NeurIPS 2018); preset entropy: CDAN+E"
    settings = ("uda",)

    @dataclass(frozen=True)
    class Config(AdversarialConfig):
        """TLL's VisDA settings: plain CDAN."""

        entropy: bool = False
        """CDAN+E: weights 1 + e^(-H), normalised to mean 1 over both domains together, as TLL"""
        randomized_dim: int = 0
        """d of the randomised map; 0 for the full outer product (TLL takes 51,200 for DomainNet, the authors 1024)"""

    config: Config
    presets = {
        "visda": {},
        "domainnet": {
            "randomized_dim": 1024
        },  # as the authors; TLL's 51,200 make a discriminator of 52 million weights
        "entropy": {"entropy": True},
    }

    def build(self) -> dict[str, nn.Module]:
        """Adds the discriminator and, if asked for, the randomised map."""
        width, classes, dim = self.model.head.in_features, self.model.head.out_features, self.config.randomized_dim
        modules = super().build() | {"discriminator": discriminator(dim or width * classes, self.config.hidden)}
        if dim:
            modules["map"] = RandomisedMap(width, classes, dim)
        return modules

    def paired_loss(self, batch: PairedBatch) -> dict[str, Tensor]:
        """CE_s + trade-off · BCE of D(f ⊗ g), weighted by w(H(g)) for CDAN+E   [CDAN Eq. 8]"""
        both = self.halves(batch)
        features = torch.cat([both.source, both.target])
        logits = torch.cat([both.source_logits, both.target_logits]).detach()  # g gets no gradient from D
        joined = self.extra["map"] if self.config.randomized_dim else outer_product
        coefficient = reversal_coefficient(self.progress.step, self.config.ramp)
        judged = self.extra["discriminator"](reverse_gradient(joined(features, logits.softmax(dim=-1)), coefficient))
        weights = None
        if self.config.entropy:
            weights = entropy_weights(logits)
            weights = weights / weights.mean()
        count = len(both.source)
        return {
            "cross_entropy": self.source_loss(both.source_logits, batch),
            "domain": self.config.trade_off * domain_loss(judged[:count], judged[count:], weights),
        }


def entropy_weights(logits: Tensor) -> Tensor:
    """w = 1 + e^(-H(g)) before normalisation: (B, C) -> (B,), between 1 + 1/C and 2.   [CDAN Eq. 7]"""
    return 1.0 + (-entropy(logits)).exp()


def outer_product(features: Tensor, probabilities: Tensor) -> Tensor:
    """f ⊗ g, flattened: (B, D), (B, C) -> (B, C · D)   [CDAN Eq. 4]"""
    return torch.einsum("bc,bd->bcd", probabilities, features).flatten(1)


class RandomisedMap(nn.Module):
    """(R_f f) ∘ (R_g g) / √d with fixed Gaussian R: an unbiased sketch of the outer product.   [CDAN Eq. 5]"""

    features: Tensor
    classes: Tensor

    def __init__(self, width: int, classes: int, dim: int) -> None:
        super().__init__()
        self.register_buffer("features", torch.randn(width, dim))
        self.register_buffer("classes", torch.randn(classes, dim))

    def forward(self, features: Tensor, probabilities: Tensor) -> Tensor:
        """(B, D), (B, C) -> (B, d)"""
        mixed = (features @ self.features) * (probabilities @ self.classes)
        return mixed / math.sqrt(self.features.shape[1])
