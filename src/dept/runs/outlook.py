"""What is known of an adaptation without labels: before it begins, while it runs, and when it has ended."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from dept.core.adapter import Adapter
from dept.health.accuracy import accuracy_interval
from dept.health.choice import Scored, plausible, recentred_shares
from dept.health.expected import expected_gain, mostly_right
from dept.health.prior import Prior
from dept.health.stopping import NEAR, NEAR_IF_RIGHT, Stopping, due
from dept.methods.base import Method, part, prefixed
from dept.metrics import LabelFree
from dept.models.model import Model
from dept.runs.loops import Event


class Outlook:
    """Made from what the source model says about the images: probabilities (n, C), while its head is as it was."""

    def __init__(self, model: Model, before: Tensor, prior: Prior) -> None:
        predicted = torch.bincount(before.argmax(dim=1), minlength=before.shape[1]).double() / len(before)
        recentred = Scored("neo", predicted.tolist(), recentred_shares(before, model.head.bias), 0.0, len(before))
        self.images = len(before)
        self.prior, self.differ = plausible(recentred, prior)
        profile = model.card.profile
        self.accuracy = accuracy_interval(before, profile) if profile else None

    def expected(self, free: LabelFree, *, optimised: bool) -> dict[str, Any]:
        """What the run gained, as far as it can be told. optimised: whether its method pulls at class shares."""
        return expected_gain(
            free["before"]["shares"],
            free["after"]["shares"],
            free["changed"],
            self.images,
            self.prior,
            differ=self.differ,
            optimised=optimised,
            accuracy=self.accuracy,
        ).record()


class Keeper:
    """Keeps the best state of a run so far, by the rule of `health.stopping`."""

    def __init__(self, outlook: Outlook, method: Method, predict: Callable[[], Tensor]) -> None:
        """`predict` gives the classes (n,) that the method predicts now, for the same images every time."""
        assumed = not outlook.prior.declared and mostly_right(outlook.accuracy)
        near = NEAR_IF_RIGHT if assumed else NEAR
        # Class shares do not tell when to stop a method that pulls at them itself.
        told = not outlook.differ and not method.assumes_balance
        self.rule = Stopping(outlook.prior if told else None, near)
        self.method, self.predict = method, predict
        self.state, self.steps = method.adapter(), 0
        self.rule.begin(predict())

    def ends(self, event: Event) -> bool:
        """Look at the run if it is time to; returns whether it should end."""
        done = event.progress.step + 1
        if not due(done, event.progress.total):
            return False
        look = self.rule.look(self.predict())
        if look.keep:
            self.state, self.steps = self.method.adapter(), done
        return look.end

    def state_dict(self) -> dict[str, Tensor]:
        """What a resumed run needs."""
        return {
            "steps": torch.tensor(self.steps),
            **prefixed("rule", self.rule.state_dict()),
            **prefixed("state", self.state.tensors),
        }

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Inverse of `state_dict`."""
        self.steps, self.state = int(state["steps"]), Adapter(part(state, "state"))
        self.rule.load_state_dict(part(state, "rule"))
