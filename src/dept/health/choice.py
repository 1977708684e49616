"""Which of several adaptations to keep, decided without labels.

The score is the distance between the classes that are predicted and those that are expected: total variation, a share
of the images. Whatever else is wrong, so many predictions are. It is what diversity terms optimise, so it decides only
where class shares may be assumed: where the user declares them, or where the re-centred source model does not speak
against them. Re-centring makes the mean logits of all classes equal. If a few classes still take most images after it,
the others are probably absent. Then only a candidate that assumes nothing about class shares may replace the source.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dept.health.prior import Prior, sampling_noise, total_variation

LIMIT = 0.35
"""distance of the re-centred source model's class shares from which on they count as unlike the source's"""
MARGIN = 0.01
"""gain in distance that is worth a change of predictions"""
LARGEST_CHANGE = 0.25
"""share of predictions that a candidate may change where class shares are not known"""
ASSUMES_NOTHING = ("notela",)


@dataclass(frozen=True)
class Scored:
    """A candidate: how often each class was predicted before and after it, and how many predictions changed."""

    name: str
    before: Sequence[float]
    after: Sequence[float]
    changed: float
    images: int


@dataclass(frozen=True)
class Choice:
    """The candidate that is kept (or "source"), and why."""

    kept: str
    why: str
    candidates: list[dict[str, Any]]


def shares_differ(recentred: Scored, prior: Prior) -> bool:
    """Whether the re-centred source model (NEO) speaks against the shares that the target is believed to have."""
    noise = sampling_noise(len(prior.shares), recentred.images)
    return total_variation(recentred.after, prior.shares) > LIMIT + noise


def choose(candidates: Sequence[Scored], prior: Prior, *, differ: bool) -> Choice:
    """Keep the candidate whose predictions are nearest to the believed shares, or the source model.

    Args:
        differ: whether the shares are not believed (`shares_differ`).
    """
    start = total_variation(candidates[0].before, prior.shares)
    distances = {one.name: total_variation(one.after, prior.shares) for one in candidates}
    rows = [{"name": "source", "distance": start, "changed": 0.0}]
    rows += [{"name": one.name, "distance": distances[one.name], "changed": one.changed} for one in candidates]
    if differ:
        safe = [one for one in candidates if one.name in ASSUMES_NOTHING and one.changed <= LARGEST_CHANGE]
        kept = safe[-1].name if safe else "source"
        why = "class shares seem to be unlike the source's, so only a method that assumes nothing about them may change"
        return Choice(kept, f"{why} predictions. If they are alike, say so with `prior`.", rows)
    best = min(distances, key=lambda name: distances[name])
    if distances[best] > start - MARGIN:
        return Choice("source", f"no candidate comes nearer to {prior} than the source model.", rows)
    return Choice(best, f"its predictions come nearest to {prior}.", rows)
