"""Stream scenarios: in which order images of one or several domains arrive, and what is reset in between.

One vocabulary for all methods; every order is a pure function of its seed and part of the protocol. Labels order an
evaluation stream (correlated, imbalanced); the method that adapts never sees them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from dept.data.images import ImageSet, concatenated
from dept.errors import UsageError

Order = Literal["shuffled", "sorted", "dirichlet", "imbalanced", "as-is"]
Reset = Literal["domain", "never", "batch"]


@dataclass(frozen=True)
class Segment:
    """A stretch of a stream: images of one or more domains in the order they arrive."""

    name: str
    images: ImageSet
    order: tuple[int, ...]


@dataclass(frozen=True)
class Scenario:
    """Segments, and when a method forgets: at each segment, never (continual), or after every batch (episodic)."""

    segments: tuple[Segment, ...]
    reset: Reset = "domain"


def arranged(images: ImageSet, order: Order = "shuffled", *, seed: int = 0, delta: float = 0.1) -> tuple[int, ...]:
    """Positions of the images in the order they arrive.

    shuffled    uniformly at random
    sorted      class after class (in a random order of classes)
    dirichlet   classes come in bursts: the share of each class over time slots is Dirichlet(`delta`)
    imbalanced  a long tail: class c keeps a share falling geometrically from 1 to `delta`
    as-is       the order of the set
    """
    rng = np.random.default_rng(seed)
    count = len(images)
    if order == "as-is":
        return tuple(range(count))
    if order == "shuffled":
        return tuple(rng.permutation(count).tolist())
    if images.labels is None:
        raise UsageError(f"A stream with order {order!r} is arranged by labels; these images have none.")
    by_class = [rng.permutation(np.flatnonzero(np.asarray(images.labels) == c)) for c in sorted(set(images.labels))]
    if order == "sorted":
        return tuple(int(i) for c in rng.permutation(len(by_class)) for i in by_class[c])
    if order == "dirichlet":
        return _dirichlet(by_class, delta, rng)
    ranks = rng.permutation(len(by_class))
    shares = [delta ** (rank / max(1, len(by_class) - 1)) for rank in ranks]
    kept = [m[: max(1, round(len(m) * share))] for m, share in zip(by_class, shares, strict=True)]
    return tuple(int(i) for i in rng.permutation(np.concatenate(kept)))


def _dirichlet(by_class: list[np.ndarray], delta: float, rng: np.random.Generator) -> tuple[int, ...]:
    """Every class is cut into as many slots as there are classes, by a Dirichlet draw; slots follow each other."""
    slots: list[list[int]] = [[] for _ in by_class]
    for members in by_class:
        shares = rng.dirichlet([delta] * len(by_class))
        cuts = np.round(np.cumsum(shares)[:-1] * len(members)).astype(int)
        for slot, piece in zip(slots, np.split(members, cuts), strict=True):
            slot.extend(int(i) for i in piece)
    return tuple(i for slot in slots for i in rng.permutation(slot).astype(int).tolist())


def domain_by_domain(
    domains: Sequence[tuple[str, ImageSet]],
    *,
    order: Order = "shuffled",
    reset: Reset = "domain",
    seed: int = 0,
    delta: float = 0.1,
) -> Scenario:
    """One domain after the other: the reset protocol, continual (`reset="never"`), gradual severities, episodic."""
    segments = [
        Segment(name, images, arranged(images, order, seed=seed + number, delta=delta))
        for number, (name, images) in enumerate(domains)
    ]
    return Scenario(tuple(segments), reset)


def mixed(domains: Sequence[tuple[str, ImageSet]], *, seed: int = 0) -> Scenario:
    """All domains at once, shuffled into one stream."""
    joined = concatenated([images for _, images in domains])
    name = "+".join(name for name, _ in domains)
    return Scenario((Segment(name, joined, arranged(joined, "shuffled", seed=seed)),), "never")
