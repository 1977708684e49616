"""Scores of predictions, and their uncertainty. Fractions, not percent."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NotRequired, TypedDict

import numpy as np
import torch
from torch import Tensor

from dept.core.losses import entropy
from dept.errors import DeptError


class Scores(TypedDict):
    """What `score` measures on labelled images."""

    n: int
    top1: float
    mean_per_class: float
    per_class: dict[str, float]
    nll: float
    ece: float
    ci95: tuple[float, float]


class Confidence(TypedDict):
    """Predictions without labels: how confident they are, and over how many classes they spread."""

    confidence: float
    entropy: float
    effective_classes: float
    shares: NotRequired[list[float]]
    """how often each class is predicted; results of older versions do not say"""


class LabelFree(TypedDict):
    """What adaptation changed, as far as it can be told without labels."""

    changed: float
    before: Confidence
    after: Confidence


def finite(outputs: Tensor) -> Tensor:
    """The outputs (n, …) of a model as they are; a DeptError if there is a NaN or an infinity among them."""
    bad = int((~outputs.isfinite()).flatten(1).any(dim=1).sum())
    if bad:
        raise DeptError(
            f"The model's outputs are not finite for {bad} of {len(outputs)} images. Its weights are too large, or "
            "adaptation has diverged: lower `lr`, or use the model before adaptation."
        )
    return outputs


def score(probabilities: Tensor, labels: Tensor, classes: Sequence[str]) -> Scores:
    """top1, mean_per_class, per_class, nll, ece and the 95 % Wilson interval of top1.

    Args:
        probabilities: (n, C); labels: (n,). Classes without images are left out of `per_class` and its mean.
    """
    correct = probabilities.argmax(dim=1) == labels
    picked = probabilities.gather(1, labels[:, None]).squeeze(1)
    per_class = per_class_accuracy(probabilities.argmax(dim=1), labels, classes)
    return {
        "n": len(labels),
        "top1": float(correct.float().mean()),
        "mean_per_class": mean_per_class(per_class),
        "per_class": per_class,
        "nll": float(-picked.clamp_min(1e-12).log().mean()),
        "ece": expected_calibration_error(probabilities, labels),
        "ci95": wilson(int(correct.sum()), len(labels)),
    }


def per_class_accuracy(predicted: Tensor, labels: Tensor, classes: Sequence[str]) -> dict[str, float]:
    """Diagonal of the confusion matrix over its row sums, for the classes that occur."""
    correct = (predicted == labels).double()
    return {
        name: float(correct[labels == number].mean())
        for number, name in enumerate(classes)
        if bool((labels == number).any())
    }


def mean_per_class(per_class: Mapping[str, float]) -> float:
    """Mean over the classes of `per_class_accuracy`: VisDA-C's metric, in which every class counts alike."""
    return sum(per_class.values()) / len(per_class)


def expected_calibration_error(probabilities: Tensor, labels: Tensor, bins: int = 15) -> float:
    """Mean |confidence - accuracy| over equal-width bins of the confidence, weighted by their share."""
    confidence, predicted = probabilities.max(dim=1)
    correct = (predicted == labels).double()
    which = (confidence * bins).long().clamp(max=bins - 1)
    gaps = torch.zeros(bins, dtype=torch.float64).index_add_(0, which, confidence.double() - correct)
    return float(gaps.abs().sum() / len(labels))


def wilson(correct: int, total: int, z: float = 1.959964) -> tuple[float, float]:
    """95 % Wilson interval of a proportion."""
    share, spread = correct / total, z * z / total
    center = share + spread / 2
    half = z * math.sqrt(share * (1 - share) / total + spread / (4 * total))
    # At the ends the exact bound is 0 or 1; rounding must not push it beyond.
    return max(0.0, (center - half) / (1 + spread)), min(1.0, (center + half) / (1 + spread))


def paired_interval(
    after: Sequence[bool] | np.ndarray, before: Sequence[bool] | np.ndarray, *, resamples: int = 2000, seed: int = 0
) -> tuple[float, float]:
    """95 % bootstrap interval of the gain in accuracy on the same images."""
    gain = np.asarray(after, dtype=np.float64) - np.asarray(before, dtype=np.float64)
    rng = np.random.default_rng(seed)
    # A resample only changes how often each of the three possible gains (-1, 0, 1) is drawn.
    shares = np.array([(gain == value).mean() for value in (-1, 0, 1)])
    draws = rng.multinomial(len(gain), shares, size=resamples)
    means = (draws[:, 2] - draws[:, 0]) / len(gain)
    low, high = np.quantile(means, [0.025, 0.975])
    return float(low), float(high)


def interval_of_means(
    gains: Sequence[Sequence[float] | np.ndarray], *, resamples: int = 2000, seed: int = 0
) -> tuple[float, float]:
    """95 % bootstrap interval of the mean, over groups, of the mean gain of their images.

    Args:
        gains: for each group (n_g,), one number per image; images are drawn anew within their group.
    """
    rng = np.random.default_rng(seed)
    means = []
    for group in gains:
        # A resample only changes how often each distinct value is drawn.
        distinct, counts = np.unique(np.asarray(group, dtype=np.float64), return_counts=True)
        draws = rng.multinomial(len(group), counts / len(group), size=resamples)
        means.append(draws @ distinct / len(group))
    low, high = np.quantile(np.mean(means, axis=0), [0.025, 0.975])
    return float(low), float(high)


def averaged_interval(by_seed: Sequence[Sequence[np.ndarray]]) -> tuple[float, float]:
    """`interval_of_means` of every seed's gains, ends averaged: seeds may meet the images in different orders."""
    ends = np.mean([interval_of_means(gains) for gains in by_seed], axis=0)
    return float(ends[0]), float(ends[1])


def label_free(before: Tensor, after: Tensor, classes: tuple[str, ...]) -> LabelFree:
    """What can be said without labels: how much changed, how confident, how the predicted classes are spread."""
    old, new = before.argmax(dim=1), after.argmax(dim=1)

    def summary(probabilities: Tensor, predicted: Tensor) -> Confidence:
        histogram = torch.bincount(predicted, minlength=len(classes)).double() / len(predicted)
        return {
            "confidence": float(probabilities.max(dim=1).values.mean()),
            "entropy": float(entropy(probabilities.clamp_min(1e-12).log()).mean()),
            "effective_classes": float(torch.special.entr(histogram).sum().exp()),
            "shares": [round(share, 6) for share in histogram.tolist()],
        }

    return {
        "changed": float((old != new).double().mean()),
        "before": summary(before, old),
        "after": summary(after, new),
    }
