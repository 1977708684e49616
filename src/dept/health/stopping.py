"""Which state of a run to keep, and when to end it, without labels.

Looked at now and then, on a sample of the target. Kept is the last state whose predicted class shares are about as near
to the expected ones as any before, the source model's included. Where the target's shares are not known, or the method
pulls at them itself, it is the last state whose predictions have not collapsed. The run ends early when predictions
have settled, or when their shares have moved away or collapsed for good.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from dept.health.guard import effective_classes
from dept.health.prior import Prior, total_variation

LOOKS, SAMPLE = 10, 512
"""looks at a run, and images of each: together less than a tenth of what most runs cost"""
NEAR = 0.01
"""distances closer than this are alike, and then the later state is kept"""
NEAR_IF_RIGHT = 0.03
"""the same where the source model is mostly right: the target's own shares may be as far from the expected ones"""
AWAY = 0.1
"""distance beyond the best one that counts as having moved away"""
COLLAPSED = 0.7
"""effective classes of the predictions, as a share of the source model's, below which they have collapsed. Set on the
digits of benchmarks/verdict_runs.py: up to here it costs next to nothing where only some of the classes are there"""
SETTLED = 0.005
"""share of the predictions that changed since the last look, below which they have settled"""
PATIENCE = 2
"""looks in a row after which settled, away or collapsed means the end"""


class Look(NamedTuple):
    """What a look found: whether this state is the one to keep so far, and whether the run should end."""

    keep: bool
    end: bool


@dataclass
class Stopping:
    """The rule, with what it has seen so far."""

    prior: Prior | None
    """expected class shares; None if they cannot tell"""
    near: float = NEAR
    best: float = math.inf
    settled: int = 0
    away: int = 0
    classes: float = 0.0
    """effective classes that the source model predicts"""
    labels: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.long))

    def begin(self, labels: Tensor) -> None:
        """The source model's predictions (n,): a state that is further away, or collapsed, is not kept."""
        self.classes = effective_classes(labels)
        if self.prior is not None:
            self.best = self._distance(labels, self.prior)

    def look(self, labels: Tensor) -> Look:
        """Judge a state by its predictions (n,) for the images of the sample, the same ones every time."""
        if len(self.labels):
            changed = float((labels != self.labels).double().mean())
            self.settled = self.settled + 1 if changed < SETTLED else 0
        self.labels = labels
        if self.prior is None:
            collapsed = effective_classes(labels) < COLLAPSED * self.classes
            self.away = self.away + 1 if collapsed else 0
            return Look(keep=not collapsed, end=max(self.settled, self.away) >= PATIENCE)
        distance = self._distance(labels, self.prior)
        keep = distance <= self.best + self.near
        self.away = self.away + 1 if distance > self.best + AWAY else 0
        self.best = min(self.best, distance)
        return Look(keep, end=max(self.settled, self.away) >= PATIENCE)

    @staticmethod
    def _distance(labels: Tensor, prior: Prior) -> float:
        shares = torch.bincount(labels, minlength=len(prior.shares)).double() / len(labels)
        return total_variation(shares.tolist(), prior.shares)

    def state_dict(self) -> dict[str, Tensor]:
        """What a resumed run needs."""
        numbers = torch.tensor([self.best, self.settled, self.away], dtype=torch.float64)
        classes = torch.tensor(self.classes, dtype=torch.float64)
        return {"numbers": numbers, "labels": self.labels, "classes": classes}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Inverse of `state_dict`."""
        best, settled, away = state["numbers"].tolist()
        self.best, self.settled, self.away, self.labels = best, int(settled), int(away), state["labels"]
        self.classes = float(state.get("classes", 0.0))  # a run of an earlier version has none


def due(step: int, total: int) -> bool:
    """Whether to look after `step` steps of `total`: `LOOKS` times, evenly, the last time at the end."""
    return step * LOOKS // total > (step - 1) * LOOKS // total
