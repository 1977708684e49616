"""The guard of a stream: what is watched without labels, and what follows from it.

The source model is asked about the same images as the adapted one, on every fourth update or fewer. Two questions:

- May these images be learned from? Only if the source model sees about as many classes among them as it would in
  images with the source's class shares. Sorted streams, a single class, noise and blank images fail here, and so does a
  source model that is itself lost. Learning pauses, predictions go on.
- Has learning done harm? It has if the adapted model contradicts the source model where that is most confident, if its
  class shares move away from the expected ones, or if something is no longer finite. Then the stream goes back to an
  earlier state and learns at half the rate: first to the newest snapshot, then to the oldest, then to the source model.

What each signal told, and which others did not, is in docs/guard.md. No model in here: the driver is `runs/guarded.py`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import torch
from torch import Tensor

from dept.health.prior import total_variation

EVERY, RAREST, QUIET = 4, 16, 8
"""updates per look at the source model: at least 4, at most 16, in between an eighth of those since the last pause or
alarm. A look is a forward, half an update of the cheapest methods"""
FEWEST = 64
"""source predictions that class variety is judged by"""
WINDOW = 512
"""pairs of source and adapted predictions that are kept"""
VARIETY = 0.6
"""share of the expected classes, beyond the first, that the source must see in images that are learned from"""
CALM = 4
"""looks in a row with enough variety that end a pause"""
CONFIDENT = 0.75
"""quantile of the source's confidence from which on it is not contradicted without reason"""
TOLERATED = 0.1
"""share of contradictions there that a good adaptation may have"""
EXCESS = 3.0
"""contradictions beyond the tolerated share, in Page's sum, that are an alarm"""
PAIRS = 256
"""pairs that class shares are compared by, at least"""
FARTHER = 0.05
"""growth of the distance from the expected class shares that is an alarm, if it is also beyond chance"""
SIGMAS = 2.5
SOON = 500
"""updates after an alarm within which the next one leads further back"""
Action = Literal["pause", "resume", "newest", "oldest", "source", "stop"]
LADDER: tuple[Action, ...] = ("newest", "oldest", "source", "stop")
"""what the first, second, … of alarms leads to that follow soon after each other"""


@dataclass(frozen=True)
class Notice:
    """Something the guard did, and why."""

    action: Action
    reason: str
    step: int
    """in which turn: updates and batches that were not learned from, counted from 1"""

    @property
    def alarm(self) -> bool:
        """Whether harm was found; a pause only prevents it."""
        return self.action in LADDER

    def __str__(self) -> str:
        done = {
            "pause": "Learning is paused",
            "resume": "Learning goes on",
            "newest": "Back to the newest snapshot, at half the learning rate",
            "oldest": "Back to the oldest snapshot, at half the learning rate",
            "source": "Back to the source model, at half the learning rate",
            "stop": "Back to the source model, for good",
        }
        return f"{done[self.action]}: {self.reason}."


@lru_cache
def expected_entropy(shares: tuple[float, ...], images: int) -> float:
    """Mean entropy, in nats, of the class shares of n images that are drawn from `shares` (exact).

    E H = -Σ_c Σ_k Binomial(k; n, π_c) (k/n) ln(k/n): fewer images than classes cannot show all of them.
    """
    pi = torch.tensor(shares, dtype=torch.float64).clamp(1e-12, 1 - 1e-12)[:, None]
    k = torch.arange(1, images + 1, dtype=torch.float64)
    ways = math.lgamma(images + 1) - torch.lgamma(k + 1) - torch.lgamma(images - k + 1)
    chance = (ways + k * pi.log() + (images - k) * (-pi).log1p()).exp()
    return float((chance * torch.special.entr(k / images)).sum())


def class_shares(labels: Tensor, classes: int) -> Tensor:
    """How often each class occurs: (n,) -> (C,)."""
    return torch.bincount(labels, minlength=classes).double() / len(labels)


def effective_classes(labels: Tensor, classes: int = 0) -> float:
    """e to the entropy of the class shares: 1 if all labels are equal, C if all classes are equally frequent."""
    return math.exp(float(torch.special.entr(class_shares(labels, classes)).sum()))


def variety(labels: Tensor, shares: tuple[float, ...]) -> float:
    """Effective classes beyond the first among labels (n,), as a share of those that n images would have."""
    expected = math.exp(expected_entropy(shares, len(labels)))
    return (effective_classes(labels, len(shares)) - 1) / max(expected - 1, 1e-12)


def page_sum(before: float, contradicted: Tensor, tolerated: float) -> float:
    """Page's cumulative sum S <- max(0, S + 1[contradicted] - tolerated), image after image: (n,) -> a number.

    It stays near 0 while contradictions are rarer than tolerated, and grows by their excess otherwise: few images tell
    a strong excess, many a small one. E. S. Page, "Continuous inspection schemes", Biometrika 1954.
    """
    for one in contradicted.tolist():
        before = max(0.0, before + one - tolerated)
    return before


def farther(own: Tensor, source: Tensor, shares: tuple[float, ...]) -> tuple[float, float]:
    """By how much labels (n,) are farther from the expected shares than the source's, and what chance may do.

    Total variations; chance: `SIGMAS` √(D/n), if D of the predictions changed.
    """
    distances = [total_variation(class_shares(labels, len(shares)).tolist(), shares) for labels in (own, source)]
    changed = float((own != source).double().mean())
    return distances[0] - distances[1], SIGMAS * math.sqrt(changed / len(own))


class Guard:
    """Watches one stream. A turn is an update, or a batch that is not learned from.

    In a turn the driver gives what the source model says (`look`, if `due`) and what the adapted model says (`hear`),
    asks whether it may learn (`allowed`) and whether harm was done (`harm`), and ends it (`turn_over`).
    """

    def __init__(self, shares: Sequence[float], *, pauses: bool = True) -> None:
        """shares: expected of the classes, in the order of the logits; pauses: whether few classes are a reason to."""
        self.shares, self.pauses = tuple(shares), pauses
        self.turns = self.calm = self.alarms = self.strikes = self.last_alarm = 0
        self.last_look = self.last_event = 0
        self.paused = self.suspicious = self.stopped = False
        self.excess, self.damping = 0.0, 1.0
        self.notices: list[Notice] = []
        self._forget()

    def _forget(self) -> None:
        """Pairs belong to the state that they were predicted with."""
        labels = torch.zeros(0, dtype=torch.long)
        self.source, self.own, self.confidence = labels, labels, torch.zeros(0)  # (n,): the window, newest last
        self._looked, self._heard, self._sure = labels, labels, torch.zeros(0)  # of the present turn
        self.excess = 0.0

    @property
    def due(self) -> bool:
        """Whether the source model is to be asked in this turn."""
        unsure = self.paused or self.suspicious or len(self.source) < FEWEST
        every = min(RAREST, max(EVERY, (self.turns - self.last_event) // QUIET))
        looking = self.turns == self.last_look  # a turn may have several groups of images
        return not self.stopped and (unsure or looking or self.turns - self.last_look >= every)

    def look(self, logits: Tensor) -> None:
        """What the source model says about (some) images of this turn: (B, C)."""
        self.last_look = self.turns
        sure, labels = logits.softmax(dim=-1).max(dim=-1)
        self._looked = torch.cat([self._looked, labels.cpu()])
        self._sure = torch.cat([self._sure, sure.float().cpu()])

    def hear(self, logits: Tensor) -> None:
        """What the adapted model says about the same images: (B, C)."""
        self._heard = torch.cat([self._heard, logits.argmax(dim=-1).cpu()])

    def allowed(self) -> bool:
        """Whether the images of this turn may be learned from."""
        if self.stopped:
            return False
        if len(self._looked) and self.pauses:
            labels = torch.cat([self.source, self._looked])[-max(FEWEST, len(self._looked)) :]
            if len(labels) < FEWEST:  # the beginning of a stream of small batches
                return False
            self._weigh(labels)
        return not self.paused

    @property
    def undecided(self) -> bool:
        """Whether too few images have come to say if they may be learned from."""
        return self.pauses and not self.stopped and len(self.source) < FEWEST and not self.paused

    def _weigh(self, labels: Tensor) -> None:
        """Pause if the source sees too few classes among the newest images; go on when it sees enough again."""
        if variety(labels, self.shares) >= VARIETY:
            self.calm += 1
            if self.paused and self.calm >= CALM:
                self.paused = False
                self._note("resume", "the source model sees a variety of classes again")
            return
        self.calm = 0
        if not self.paused:
            self.paused = True
            seen = effective_classes(labels, len(self.shares))
            usual = math.exp(expected_entropy(self.shares, len(labels)))
            self._note(
                "pause",
                f"the source model sees {seen:.1f} effective classes in {len(labels)} images, {usual:.1f} are usual",
            )

    def harm(self) -> str:
        """Add the pairs of this turn to the window; what speaks against the adapted model, or nothing."""
        if not len(self._looked):
            return ""
        self.source = torch.cat([self.source, self._looked])[-WINDOW:]
        self.own = torch.cat([self.own, self._heard])[-WINDOW:]
        self.confidence = torch.cat([self.confidence, self._sure])[-WINDOW:]
        sure = self._sure >= torch.quantile(self.confidence, CONFIDENT)
        contradicted = (self._looked != self._heard)[sure]
        self.excess = page_sum(self.excess, contradicted, TOLERATED)
        if self.excess > EXCESS:
            sure = self.confidence >= torch.quantile(self.confidence, CONFIDENT)
            share = float((self.own != self.source)[sure].double().mean())
            return f"it contradicts the source model on {share:.0%} of the images that the source is most confident of"
        if len(self.own) >= PAIRS:
            distance, chance = farther(self.own, self.source, self.shares)
            if distance > max(FARTHER, chance):
                return f"its class shares are {100 * distance:.0f} points farther from the expected ones than before"
        return ""

    def turn_over(self) -> None:
        """The end of a turn. If even the adapted model sees few classes, the source is asked in the next one."""
        few = len(self._heard) > 1 and variety(self._heard, self.shares) < VARIETY
        self.suspicious = few and not len(self._looked)
        self._looked, self._heard, self._sure = self._looked[:0], self._heard[:0], self._sure[:0]
        self.turns += 1

    @property
    def clean(self) -> bool:
        """Whether nothing speaks against the present state: it may become a snapshot."""
        return not self.paused and not self.suspicious and self.excess == 0.0

    def raise_alarm(self, reason: str, *, snapshots: bool) -> Action:
        """Where to go back to; an alarm soon after another leads further back.

        Args:
            snapshots: whether there are any.
        """
        soon = self.strikes and self.turns - self.last_alarm <= SOON
        self.strikes = self.strikes + 1 if soon else 1
        self.alarms += 1
        self.last_alarm, self.damping = self.turns, self.damping / 2
        action = LADDER[self.strikes - 1]
        self.stopped = action == "stop"
        if action in ("newest", "oldest") and not snapshots:
            action = "source"
        self._forget()
        self._note(action, reason)
        return action

    def _note(self, action: Action, reason: str) -> None:
        self.last_event = self.turns
        self.notices.append(Notice(action, reason, self.turns + 1))

    def state_dict(self) -> dict[str, Tensor]:
        """Everything needed to go on in the same way."""
        counts = [self.turns, self.calm, self.alarms, self.strikes, self.last_alarm]
        return {
            "counts": torch.tensor(counts),
            "last": torch.tensor([self.last_look, self.last_event]),
            "flags": torch.tensor([self.paused, self.suspicious, self.stopped]),
            "levels": torch.tensor([self.excess, self.damping], dtype=torch.float64),
            "pairs": torch.stack([self.source, self.own]),
            "confidence": self.confidence,
            "looked": self._looked,
            "heard": self._heard,
            "sure": self._sure,
        }

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Inverse of `state_dict`."""
        self.turns, self.calm, self.alarms, self.strikes, self.last_alarm = state["counts"].tolist()
        # A stream of an earlier version has none: then it is looked at as often as in the beginning.
        older = torch.tensor([self.turns - (not len(state["looked"])), self.turns])
        self.last_look, self.last_event = state.get("last", older).tolist()
        self.paused, self.suspicious, self.stopped = state["flags"].tolist()
        self.excess, self.damping = state["levels"].tolist()
        self.source, self.own = (labels.clone().cpu() for labels in state["pairs"])
        self.confidence = state["confidence"].cpu()
        self._looked, self._heard, self._sure = (state[name].cpu() for name in ("looked", "heard", "sure"))
