"""Fractions of a target set and train/held-out splits: seeded, pure."""

from __future__ import annotations

import random
from typing import Literal

import torch

from dept.data.images import ImageSet
from dept.errors import DataError, UsageError


def fraction(images: ImageSet, ratio: float, *, rule: Literal["uniform", "stratified"], seed: int = 0) -> ImageSet:
    """The part of the target images that adaptation may use.

    uniform:    round(n · ratio) images drawn without labels.
    stratified: the authors' draw, int(n_c · ratio) images of every true class; it needs labels (an oracle).
    """
    check_ratio(ratio)
    if ratio == 1:
        return images
    if rule == "uniform":
        order = list(range(len(images)))
        random.Random(seed).shuffle(order)
        chosen = sorted(order[: max(1, round(len(images) * ratio))])
        return images.take(chosen)
    if images.labels is None:
        raise UsageError("`subset=stratified` needs labelled target images. Use `subset=uniform`.")
    chosen = []
    for label in sorted(set(images.labels)):
        members = [index for index, other in enumerate(images.labels) if other == label]
        random.Random(seed).shuffle(members)
        chosen += members[: int(len(members) * ratio)]
    if not chosen:
        raise DataError(f"`ratio={ratio}` leaves no image of any class of {images.root}. Use a larger one.")
    return images.take(chosen)


def check_ratio(ratio: float) -> None:
    """Refuse a share that is not one."""
    if not 0 < ratio <= 1:
        raise UsageError(f"`ratio` must be above 0 and at most 1, found {ratio}.")


def sample(images: ImageSet, most: int, *, seed: int = 0) -> ImageSet:
    """At most `most` images, drawn uniformly by `random.Random(seed)` from the sorted paths, kept in path order."""
    if len(images) <= most:
        return images
    chosen = random.Random(seed).sample(range(len(images)), most)
    return images.take(sorted(chosen))


def split(images: ImageSet, held_out: float, *, seed: int = 0) -> tuple[ImageSet, ImageSet]:
    """A random permutation cut into (training, held-out) parts; at least one image goes to each."""
    if not 0 <= held_out < 1:
        raise UsageError(f"`held_out` must be at least 0 and below 1, found {held_out}.")
    if len(images) < 2:
        raise DataError(f"{images.root} has {len(images)} image; a train/held-out split needs at least two.")
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed)).tolist()
    cut = min(len(images) - 1, max(1, round(len(images) * held_out)))
    return images.take(sorted(order[cut:])), images.take(sorted(order[:cut]))
