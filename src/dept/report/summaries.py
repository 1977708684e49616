"""The numbers behind the charts: pure functions of probabilities, predictions and labels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dept.metrics import paired_interval

BINS = 15  # as in `metrics.expected_calibration_error`


@dataclass(frozen=True)
class Bin:
    """Images of similar confidence: their number, mean confidence and accuracy."""

    count: int
    confidence: float
    accuracy: float


@dataclass(frozen=True)
class ClassRow:
    """A class before and after: accuracy, or share of the predictions if labels are unknown."""

    name: str
    count: int | None
    """None if unknown"""
    before: float | None
    after: float


@dataclass(frozen=True)
class Gain:
    """Accuracy on the same images, before and after, and the paired 95 % interval of the difference."""

    count: int
    before: float
    after: float
    low: float
    high: float

    @property
    def difference(self) -> float:
        """After minus before."""
        return self.after - self.before


@dataclass(frozen=True)
class Changes:
    """Indices of images whose label changed, most confident first. Without labels all are in `other`."""

    fixed: tuple[int, ...]
    broken: tuple[int, ...]
    other: tuple[int, ...]

    @property
    def total(self) -> int:
        """How many changed."""
        return len(self.fixed) + len(self.broken) + len(self.other)


def reliability(probabilities: Tensor, labels: Tensor, bins: int = BINS) -> list[Bin]:
    """Equal-width confidence bins that are not empty."""
    confidence, predicted = probabilities.max(dim=1)
    correct = (predicted == labels).double()
    which = (confidence * bins).long().clamp(max=bins - 1)
    found = []
    for number in range(bins):
        here = which == number
        if bool(here.any()):
            mean, accuracy = float(confidence[here].double().mean()), float(correct[here].mean())
            found.append(Bin(int(here.sum()), mean, accuracy))
    return found


def confidence_shares(confidence: Tensor, bins: int = 20) -> list[float]:
    """Share of the images in each of `bins` equal-width bins."""
    which = (confidence * bins).long().clamp(max=bins - 1)
    counts = torch.bincount(which, minlength=bins).double()
    return [float(value) for value in counts / len(confidence)]


def gain(before: Tensor, after: Tensor, labels: Tensor) -> Gain:
    """Paired gain in accuracy of predictions (n,) over earlier ones."""
    old, new = before == labels, after == labels
    low, high = paired_interval(new.tolist(), old.tolist())
    return Gain(len(labels), float(old.double().mean()), float(new.double().mean()), low, high)


def class_rows(before: Tensor | None, after: Tensor, labels: Tensor | None, classes: Sequence[str]) -> list[ClassRow]:
    """Accuracy of every class that has images. Without labels, its share of the predictions if it has any."""
    rows = []
    for number, name in enumerate(classes):
        here = torch.full_like(after, True, dtype=torch.bool) if labels is None else labels == number
        new, old = after[here] == number, None if before is None else before[here] == number
        count = int((new if labels is None else here).sum())
        if count or (labels is None and old is not None and bool(old.any())):
            share = None if old is None else float(old.double().mean())
            rows.append(ClassRow(name, count, share, float(new.double().mean())))
    return rows


def shortened(rows: Sequence[ClassRow], most: int = 24) -> list[ClassRow]:
    """At most `most` rows: those that changed most, in the given order."""
    if len(rows) <= most:
        return list(rows)
    kept = sorted(rows, key=lambda row: -abs(row.after - (row.before or 0.0)))[:most]
    return [row for row in rows if row in kept]


def confusion(labels: Tensor, predicted: Tensor, classes: int) -> Tensor:
    """Counts (C, C): rows are true classes, columns are predicted classes."""
    return torch.bincount(labels * classes + predicted, minlength=classes * classes).reshape(classes, classes)


def busiest(matrix: Tensor, most: int = 14) -> list[int]:
    """Indices of the rows and columns of a square matrix with the largest absolute sums."""
    weight = matrix.abs().sum(dim=0) + matrix.abs().sum(dim=1)
    order = torch.argsort(weight, descending=True, stable=True)[:most]
    return sorted(int(i) for i in order)


def changes(before: Tensor, after: Tensor, confidence: Tensor, labels: Tensor | None) -> Changes:
    """Images whose predicted class changed: fixed, broken or neither."""
    moved = before != after
    if labels is None:
        kinds = [torch.zeros_like(moved), torch.zeros_like(moved), moved]
    else:
        right, was_right = after == labels, before == labels
        kinds = [moved & right, moved & was_right, moved & ~right & ~was_right]
    order = torch.argsort(confidence, descending=True, stable=True)
    fixed, broken, other = (tuple(int(i) for i in order if bool(kind[i])) for kind in kinds)
    return Changes(fixed, broken, other)
