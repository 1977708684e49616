"""EATA: efficient test-time model adaptation without forgetting. Niu et al., ICML 2022.

Tent on the samples that are worth it: reliable ones (entropy below a margin) that say something new (prediction
unlike the running mean), each weighted by its confidence. With source statistics (`stats`, from `dept stats`) a
Fisher penalty holds the parameters that matter to the source near their values; without them λ is 0, which is ETA.
Batch norm, if any, keeps the source's statistics, so that rows do not depend on each other.
Cost: a forward of all rows, a forward and backward of the selected ones. Fails when: confident predictions are
wrong, or classes arrive in blocks — then a whole block looks redundant and little is learned.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils import parameters_to_vector

from dept.core.adapter import pick
from dept.core.losses import Entropies, entropy
from dept.data.loader import Batch
from dept.methods.tent import Tent


class EATA(Tent):
    """Entropy minimisation on reliable, non-redundant samples, with a Fisher penalty."""

    name = "eata"
    title = "EATA"
    summary = "entropy minimisation on reliable, non-redundant samples (Niu et al., ICML 2022); ETA without statistics"
    settings = ("online",)

    @dataclass(frozen=True)
    class Config(Tent.Config):
        """Defaults: the published online pass. The margins scale with the number of classes C."""

        entropy_margin: float = 0.4
        """E₀ / ln C; only samples of lower entropy are learned from"""
        redundancy: float = 0.0
        """d, largest cosine with the running mean prediction; 0 for 1.5/√C (0.047 at C = 1000; released: 0.05)"""
        mean_momentum: float = 0.9
        """share of the old running mean prediction that stays"""
        w_fisher: float = 2000.0
        """λ, weight of the Fisher penalty; 0 for ETA"""

    config: Config
    state_names = ("mean_prediction", "fisher", "anchor")  # the released code keeps the mean at a reset
    batch_statistics = False  # or leaving rows out of a forward would change the others
    # The released margin is ImageNet's. With few classes it would call every confident sample redundant.
    presets = {"online": {}, "eta": {"w_fisher": 0.0}, "released": {"redundancy": 0.05}}

    def setup(self) -> None:
        """Margins; Fisher weights and source values of the tuned parameters, if there are statistics."""
        config, classes = self.config, self.model.head.out_features
        self.margin = config.entropy_margin * math.log(classes)
        # cos(uniform, one-hot) is 1/√C, so a fixed d would call every confident sample redundant at small C.
        self.redundancy = config.redundancy or 1.5 / math.sqrt(classes)
        self.parameters = list(pick(self.model, self.trained_names).values())
        self.mean_prediction: Tensor | None = None
        self.fisher: Tensor | None = None
        self.anchor: Tensor | None = None
        if self.source_stats and config.w_fisher:
            fisher = parameters_to_vector([self.source_stats[f"fisher.{name}"] for name in self.trained_names])
            self.anchor = parameters_to_vector(self.parameters).detach()
            self.fisher = fisher.to(self.anchor)

    def step(self, batch: Batch) -> dict[str, float]:
        """Select rows by a forward without graph, then step on those only; no step when none is selected."""
        images = batch.views[0]
        with torch.no_grad():
            self._logits = self.model(images)
            rows = selected_rows(
                self._logits,
                margin=self.margin,
                mean=self.mean_prediction,
                redundancy=self.redundancy,
                entropies=self.entropies,
            )
            if len(rows):  # running mean prediction of the selected samples
                new, old = self._logits[rows].softmax(dim=-1).mean(dim=0), self.mean_prediction
                self.mean_prediction = new if old is None else torch.lerp(new, old, self.config.mean_momentum)
        if not len(rows):
            return {"loss": 0.0, "selected": 0.0}
        terms = super().step(Batch((images[rows],), batch.index[rows.cpu()]))
        return terms | {"selected": float(len(rows))}

    def loss(self, batch: Batch) -> dict[str, Tensor]:
        """Weighted entropy of the (selected) rows + λ Σ F (θ - θ₀)²   [EATA L]"""
        terms = {"entropy": weighted_entropy(self.model(batch.views[0]), self.margin, self.entropies)}
        if self.fisher is not None and self.anchor is not None:
            drift = parameters_to_vector(self.parameters) - self.anchor
            terms["fisher"] = self.config.w_fisher * (self.fisher * drift.square()).sum()
        return terms


def selected_rows(
    logits: Tensor, *, margin: float, mean: Tensor | None, redundancy: float, entropies: Entropies = entropy
) -> Tensor:
    """Positions of the samples that are reliable, H < E₀, and not redundant, cos(mean, p) < d   [EATA S(x)]

    Args:
        logits: (B, C); mean: running mean prediction (C,), or None before the first batch (nothing is redundant).
    """
    keep = entropies(logits) < margin
    if mean is not None:
        keep &= F.cosine_similarity(mean, logits.softmax(dim=-1), dim=-1) < redundancy
    return keep.nonzero().squeeze(1)


def weighted_entropy(logits: Tensor, margin: float, entropies: Entropies = entropy) -> Tensor:
    """Mean of exp(E₀ - H) H, the weight without gradient: (B, C) -> ()   [EATA S(x) E(x)]"""
    values = entropies(logits)
    return ((margin - values.detach()).exp() * values).mean()
