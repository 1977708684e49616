"""What a cell stores about the predictions (n, C) before and after adaptation."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from dept.data.images import ImageSet, concatenated
from dept.data.streams import Scenario
from dept.metrics import paired_interval, score


def joined(scenario: Scenario) -> ImageSet:
    """All images of a scenario in the order of arrival."""
    return concatenated([segment.images.take(segment.order) for segment in scenario.segments])


def paired(before: Tensor, after: Tensor, images: ImageSet | None) -> dict[str, Any]:
    """The gain on the same images with its interval, and the predictions and labels that it comes from."""
    assert images is not None and images.labels is not None
    old, new = before.argmax(dim=1).tolist(), after.argmax(dim=1).tolist()
    hits = [[p == y for p, y in zip(predicted, images.labels, strict=True)] for predicted in (new, old)]
    return {
        "gain": (sum(hits[0]) - sum(hits[1])) / len(images),
        "gain_ci95": paired_interval(*hits),
        "predictions": {"before": old, "after": new, "labels": list(images.labels)},
    }


def scores(before: Tensor, after: Tensor, images: ImageSet) -> dict[str, Any]:
    """Accuracies and calibration before and after."""
    labels = torch.tensor(images.labels)
    return {
        "before": score(before, labels, images.classes),
        "after": score(after, labels, images.classes),
    }


def segments(scenario: Scenario, before: Tensor, after: Tensor) -> dict[str, dict[str, float]]:
    """Accuracy of every segment of a stream."""
    found, at = {}, 0
    for segment in scenario.segments:
        part = slice(at, at := at + len(segment.order))
        labels = torch.tensor(segment.images.take(segment.order).labels)
        hits = [float((p[part].argmax(dim=1) == labels).double().mean()) for p in (before, after)]
        found[segment.name] = dict(zip(("before", "after"), hits, strict=True))
    return found
