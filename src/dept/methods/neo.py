"""NEO: no-optimisation test-time adaptation by re-centring features. Murphy et al., ICLR 2026.

Subtracts the running mean of the target's features, as if the source's mean were the origin. Nothing is trained:
logits W(h - m) + b are those of the source head with the bias b - W m, which is all that an adapter holds.
The mean m of n images is shrunk by n / (n + 16) and left out below 16: few images are not told apart from their mean.
Cost: one forward; no backward. Fails when: the stream is sorted by class (the mean then holds the class itself).
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


class NEO(Method):
    """Features re-centred by their running mean."""

    name = "neo"
    title = "NEO"
    summary = "features re-centred by their running mean, nothing trained (Murphy et al., ICLR 2026)"
    settings = ("online",)
    forwards_per_step = 1.0
    assumes_balance = True  # re-centred features make the mean logit of every class its bias

    @dataclass(frozen=True)
    class Config(OnlineConfig):
        """One online pass; the current batch is part of the mean that it is predicted with."""

        lr: float = 0.0
        """unused: nothing is trained"""
        predict: Literal["before", "after"] = "after"
        """online: a batch is predicted before or after it enters the mean"""
        prior_count: float = 16.0
        """n₀, the mean m of n images is shrunk to m n / (n + n₀), and to 0 below n₀"""
        mean_ema: float = 0.0
        """share of every further batch in the mean, for streams that change; 0 for the mean over all images so far"""

    config: Config
    reuses_features = True
    presets = {"online": {}, "continual": {"mean_ema": 0.1}}

    def tuned(self) -> list[Group]:
        """The bias of the head, which takes up the shift."""
        if self.model.head.bias is None:
            raise ValueError("NEO moves the bias of the head; this model's head has none.")
        return [Group(("head.bias",), self.config.lr)]

    def setup(self) -> None:
        """The source bias; an empty mean."""
        self.source_bias = self.model.head.bias.detach().clone()
        self.mean = torch.zeros_like(self.model.head.weight[0])
        self.seen = 0

    @torch.no_grad()
    def step(self, batch: Batch) -> dict[str, float]:
        """Add the batch to the mean and move the bias accordingly."""
        head, features = self.model.head, self.model.read(batch.views[0]).features
        self._kept_features = features
        self.seen += len(features)
        share = len(features) / self.seen  # 1 for the first batch, which is the whole mean
        self.mean.lerp_(features.mean(dim=0), (self.config.mean_ema or share) if share < 1 else share)
        shift = self.mean * shrinkage(self.seen, self.config.prior_count)
        head.bias.copy_(recentered_bias(head.weight, self.source_bias, shift))
        return {"loss": 0.0, "shift": float(shift.norm())}

    def state_dict(self) -> dict[str, Tensor]:
        """Adds the mean and the number of images in it."""
        return super().state_dict() | {"mean": self.mean, "seen": torch.tensor(self.seen)}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Inverse of `state_dict`."""
        super().load_state_dict(state)
        self.mean.copy_(state["mean"])
        self.seen = int(state["seen"])


def recentered_bias(weight: Tensor, bias: Tensor, mean: Tensor) -> Tensor:
    """b - W m: the bias with which the head sees h - m for h. (C, D), (C,), (D,) -> (C,)   [NEO Eq. W(h - m) + b]"""
    return bias - F.linear(mean, weight)


def shrinkage(count: int, prior_count: float) -> float:
    """n / (n + n₀): the weight of a mean of n images against n₀ images at the origin; 0 for fewer than n₀."""
    return count / (count + prior_count) if count >= prior_count else 0.0
