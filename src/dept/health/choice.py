"""Which of several adaptations to keep, decided without labels.

The score is the distance between the classes that are predicted and those that are expected: total variation, a share
of the images. Whatever else is wrong, so many predictions are. It is what diversity terms optimise, so it decides only
where class shares may be assumed: where the user declares them, or where the re-centred source model does not speak
against them. Re-centring takes away what a shift does to all images alike, and with it most of a lean to a few classes.
If the lean remains, the other classes are probably absent. Then only a candidate that assumes nothing about class
shares may replace the source model.
The shares of the source images may be uneven by accident, and nobody has said that the target's are the same. So even
ones are as good a guess, and the one that fits better is believed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dept.health.expected import margin
from dept.health.prior import Prior, sampling_noise, total_variation

LIMIT = 0.1
"""distance of the re-centred source model from the believed shares, beyond sampling noise, that needs a reason"""
REMAINS = 0.6
"""share of the source model's distance that remains after re-centring if classes are absent; a shift leaves less"""
FAR = 0.25
"""distance after re-centring that counts as unlike the source in any case (docs/auto.md)"""
WORTH = 0.1
"""share of the changed predictions that must count towards the believed shares: less is change for its own sake"""
GIVEN_BACK = 0.25
"""share of the way from the source model's distance to the least one by which a longer candidate may be behind"""
LARGEST_CHANGE = 0.25
"""share of predictions that a candidate may change where class shares are not known, or cannot tell"""
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


def recentred_shares(probabilities: Tensor, bias: Tensor | None) -> list[float]:
    """Predicted class shares of the source model with its head re-centred on the target, from its outputs (n, C).

    Without features: logits W(h - m) + b are z - z̄ + b, where z̄ is the mean of z over the images. What softmax takes
    from the logits of one image is the same for all classes, so log-probabilities do as well as logits.
    """
    logits = probabilities.double().clamp_min(torch.finfo(torch.float32).tiny).log()
    centred = logits - logits.mean(dim=0) + (0.0 if bias is None else bias.detach().to(logits))
    return (torch.bincount(centred.argmax(dim=1), minlength=logits.shape[1]).double() / len(logits)).tolist()


def shares_differ(recentred: Scored, prior: Prior) -> bool:
    """Whether the re-centred source model (NEO) speaks against the shares that the target is believed to have."""
    source, left = (total_variation(shares, prior.shares) for shares in (recentred.before, recentred.after))
    beyond_noise = left - sampling_noise(len(prior.shares), recentred.images)
    return beyond_noise > FAR or (beyond_noise > LIMIT and left > REMAINS * source)


def plausible(recentred: Scored, prior: Prior) -> tuple[Prior, bool]:
    """The shares to believe in, and whether to believe in none: of the source's and even ones those that fit better."""
    if prior.declared:
        return prior, False
    even = Prior((1 / len(prior.shares),) * len(prior.shares), "uniform", declared=False)
    fitting = [guess for guess in (prior, even) if not shares_differ(recentred, guess)]
    if not fitting:
        return prior, True
    return min(fitting, key=lambda guess: total_variation(recentred.after, guess.shares)), False


def choose(candidates: Sequence[Scored], prior: Prior, *, differ: bool, right: bool = False) -> Choice:
    """Keep the candidate whose predictions are nearest to the believed shares, or the source model.

    Args:
        candidates: in the order of what they learn, the most at the end.
        differ: whether the shares are not believed (`plausible`).
        right: whether the source model is known to be right about most images.
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
    last = candidates[-1]
    stays = distances[last.name] - start <= 2 * margin(last.changed, last.images) and last.changed <= LARGEST_CHANGE
    if right and stays and not prior.declared:
        # The source model's shares are near the expected ones already, which cannot tell then. Labels that are mostly
        # right are worth learning from, as long as nothing speaks against it.
        why = f"the source model is right about most images, and this candidate stays near {prior}."
        return Choice(last.name, why, rows)
    worth = [one for one in candidates if start - distances[one.name] > worthwhile(one)]
    if not worth:
        return Choice("source", f"no candidate comes enough nearer to {prior} than the source model.", rows)
    nearest = min(distances[one.name] for one in worth)
    # The longer candidate begins where NEO ends, and has learned more than shares. What the target's are is a guess.
    behind = 0.0 if prior.declared else GIVEN_BACK * (start - nearest)
    alike = [one for one in worth if distances[one.name] <= nearest + max(behind, margin(one.changed, one.images))]
    why = f"no candidate's predictions come clearly nearer to {prior}."
    return Choice(alike[-1].name, why, rows)


def worthwhile(one: Scored) -> float:
    """Decrease of the distance that is worth a candidate's changes: beyond chance, and in proportion to them."""
    return max(margin(one.changed, one.images), WORTH * one.changed)
