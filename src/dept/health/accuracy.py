"""Accuracy without labels, as an interval that is wide on purpose.

ATC (Garg et al., "Leveraging unlabeled data to predict out-of-distribution performance", ICLR 2022): on held-out source
images a threshold of confidence is found that as many images exceed as are right. In the target, the share of images
above it is the estimate. It is off by 10 points and more in a new domain, mostly too high, so it is given with the
error that it had on corrupted held-out images, and never without.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from dept.models.profile import Profile

COLDEST, HOTTEST = 0.05, 20.0
"""range of temperatures that are tried"""


def fit_temperature(probabilities: Tensor, labels: Tensor) -> float:
    """T with the least negative log-likelihood of softmax(log p / T) on probabilities (n, C) and labels (n,).

    Golden-section search over log T, in which the likelihood has one minimum.
    """
    logs = _logs(probabilities)
    ratio = (math.sqrt(5) - 1) / 2
    low, high = math.log(COLDEST), math.log(HOTTEST)
    for _ in range(40):
        span = ratio * (high - low)
        if _likelihood(logs, labels, math.exp(high - span)) < _likelihood(logs, labels, math.exp(low + span)):
            high = low + span
        else:
            low = high - span
    return math.exp((low + high) / 2)


def _likelihood(logs: Tensor, labels: Tensor, temperature: float) -> float:
    """Negative, mean over images."""
    return float(torch.nn.functional.cross_entropy(logs / temperature, labels))


def _logs(probabilities: Tensor) -> Tensor:
    return probabilities.double().clamp_min(torch.finfo(torch.float32).tiny).log()


def confidence(probabilities: Tensor, temperature: float) -> Tensor:
    """max_c softmax(log p / T)_c of every image: (n, C) -> (n,)."""
    return (_logs(probabilities) / temperature).softmax(dim=-1).amax(dim=-1)


def threshold_of(confidences: Tensor, accuracy: float) -> float:
    """The confidence that a share `accuracy` of the images (n,) exceeds   [ATC Eq. 1]"""
    return float(confidences.quantile(1 - accuracy))


def estimated_accuracy(probabilities: Tensor, profile: Profile) -> float:
    """Share of the images (n, C) whose confidence exceeds the threshold of the source   [ATC Eq. 2]"""
    return float((confidence(probabilities, profile.temperature) > profile.threshold).double().mean())


def accuracy_interval(probabilities: Tensor, profile: Profile) -> tuple[float, float]:
    """Where the accuracy on these images (n, C) probably lies: the estimate and its 90 % error, sampling included."""
    estimate, images = estimated_accuracy(probabilities, profile), len(probabilities)
    error = max(profile.error90, 1.64 * math.sqrt(max(estimate * (1 - estimate), 0.25 / images) / images))
    return max(0.0, estimate - error), min(1.0, estimate + error)
