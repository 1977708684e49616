"""T3A: test-time classifier adjustment. Iwasawa & Matsuo, NeurIPS 2021.

The head becomes one template per class: the mean direction of its own source row and of the target features that the
source head assigned to the class, of which only the most confident are kept. Nothing is trained.
Deviation: row c supports class c; the released code gives it to the class that the head predicts for it.
Cost: one forward; no backward. Fails when: confident predictions are wrong, or the probabilities are used as they are:
the bias is dropped and logits are |z| cos(z, template), hence badly calibrated.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from dept.core.losses import entropy
from dept.data.loader import Batch
from dept.methods.base import Group, Method
from dept.methods.config import OnlineConfig


class T3A(Method):
    """Class templates of confident features in place of the head."""

    name = "t3a"
    title = "T3A"
    summary = "class templates of confident features in place of the head, untrained (Iwasawa & Matsuo, NeurIPS 2021)"
    settings = ("offline", "online")
    forwards_per_step = 1.0

    @dataclass(frozen=True)
    class Config(OnlineConfig):
        """One pass; a batch joins the templates that it is predicted with."""

        lr: float = 0.0
        """unused: nothing is trained"""
        predict: Literal["before", "after"] = "after"
        """online: a batch is predicted before or after it joins the templates"""
        per_class: int = 20
        """M, supports of lowest entropy that are kept per class; 0 keeps all"""

    config: Config
    reuses_features = True
    state_names = ("supports", "labels", "entropies")
    presets = {"online": {}}

    def tuned(self) -> list[Group]:
        """The head, which holds the templates and no bias."""
        return [Group(("head.weight", "head.bias"), self.config.lr)]

    def setup(self) -> None:
        """The source head goes on labelling; its rows are the first supports."""
        head = self.model.head
        self.source_weight, self.source_bias = head.weight.detach().clone(), head.bias.detach().clone()
        self.supports = self.source_weight.clone()
        self.labels = torch.arange(len(self.supports), device=self.supports.device)
        self.entropies = entropy(F.linear(self.supports, self.source_weight, self.source_bias))

    @torch.no_grad()
    def step(self, batch: Batch) -> dict[str, float]:
        """Add the batch to the supports, keep the most confident, and write their templates into the head."""
        head, features = self.model.head, self.model.read(batch.views[0]).features
        self._kept_features = features
        # Labels and entropies are the source head's: the templates would confirm themselves.
        logits = F.linear(features, self.source_weight, self.source_bias)
        self.supports = torch.cat([self.supports, features])
        self.labels = torch.cat([self.labels, logits.argmax(dim=-1)])
        self.entropies = torch.cat([self.entropies, entropy(logits)])
        if self.config.per_class:
            rows = most_confident(self.labels, self.entropies, self.config.per_class)
            self.supports, self.labels, self.entropies = self.supports[rows], self.labels[rows], self.entropies[rows]
        head.weight.copy_(templates(self.supports, self.labels, head.out_features))
        head.bias.zero_()
        return {"loss": 0.0, "supports": float(len(self.labels))}


def templates(supports: Tensor, labels: Tensor, classes: int) -> Tensor:
    """Unit mean direction of every class's supports: (n, D), (n,) -> (C, D)   [T3A templates]"""
    sums = supports.new_zeros(classes, supports.shape[1]).index_add_(0, labels, F.normalize(supports, dim=1))
    return F.normalize(sums, dim=1)


def most_confident(labels: Tensor, entropies: Tensor, count: int) -> Tensor:
    """Positions, in order, of the `count` supports of lowest entropy per class: (n,), (n,) -> (m,)   [T3A filter]"""
    order = entropies.argsort(stable=True)  # the older of two equals stays
    order = order[labels[order].argsort(stable=True)]
    by_class = labels[order]
    rank = torch.arange(len(order), device=order.device) - torch.searchsorted(by_class, by_class)
    return order[rank < count].sort().values
