"""Which images to label: those on which two models disagree. The others say nothing about which one is better."""

from __future__ import annotations

import random
from collections.abc import Sequence


def disagreeing(before: Sequence[int], after: Sequence[int]) -> list[int]:
    """Positions of the images that two models give different classes."""
    return [position for position, (old, new) in enumerate(zip(before, after, strict=True)) if old != new]


def draw(positions: Sequence[int], count: int, *, seed: int, strata: Sequence[int] | None = None) -> list[int]:
    """At most `count` of the positions, in random order. A larger count begins with the same ones.

    So labels of a first draw are labels of a later, larger one, and whoever stops halfway has a random draw too.

    Args:
        strata: the class of each position. Every beginning of the order then holds about the same share of each class,
            and every image is still equally likely to be drawn, so the same estimate applies.
    """
    rng = random.Random(seed)
    if strata is None:
        return rng.sample(list(positions), len(positions))[:count]
    keyed = []
    for stratum in sorted(set(strata)):
        members = [position for position, other in zip(positions, strata, strict=True) if other == stratum]
        rng.shuffle(members)
        # Evenly spaced from a random start: up to any point t of (0, 1), t · len(members) images on average.
        start = rng.random()
        keyed += [((start + rank) / len(members), position) for rank, position in enumerate(members)]
    return [position for _, position in sorted(keyed)[:count]]
