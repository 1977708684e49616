"""Accuracy without labels, on numbers made by hand."""

from __future__ import annotations

import math

import pytest
import torch

from dept.health.accuracy import accuracy_interval, confidence, estimated_accuracy, fit_temperature, threshold_of
from dept.models.profile import Profile


def profile(**changes: float) -> Profile:
    values = {"accuracy": 0.7, "temperature": 1.0, "threshold": 0.6, "error80": 0.1, "error90": 0.2} | changes
    return Profile(images=100, feature_mean=(0.0,), **values)  # type: ignore[arg-type]


def test_the_temperature_makes_confidence_equal_accuracy() -> None:
    probabilities = torch.tensor([[0.9, 0.1]]).repeat(10, 1)
    labels = torch.tensor([0] * 7 + [1] * 3)
    temperature = fit_temperature(probabilities, labels)
    assert temperature == pytest.approx(math.log(9) / math.log(7 / 3), rel=1e-4)
    assert float(confidence(probabilities, temperature)[0]) == pytest.approx(0.7, abs=1e-4)


def test_the_temperature_is_the_best_of_a_grid() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(200, 5, generator=generator)
    labels = (logits / 4).softmax(dim=-1).multinomial(1, generator=generator)[:, 0]
    grid = [0.1 * 1.05**number for number in range(100)]
    losses = [float(torch.nn.functional.cross_entropy(logits / one, labels)) for one in grid]
    best = grid[losses.index(min(losses))]
    assert fit_temperature(logits.softmax(dim=-1), labels) == pytest.approx(best, rel=0.06)


def test_certain_predictions_have_a_temperature() -> None:
    assert 0 < fit_temperature(torch.eye(3), torch.tensor([0, 1, 1])) < math.inf


def test_the_threshold_is_exceeded_by_as_many_as_are_right() -> None:
    confidences = torch.arange(1, 101).double() / 100
    threshold = threshold_of(confidences, 0.3)
    assert int((confidences > threshold).sum()) == 30
    certain = torch.tensor([[0.9, 0.1], [0.7, 0.3], [0.55, 0.45], [0.5, 0.5]])
    assert estimated_accuracy(certain, profile()) == 0.5


def test_the_interval_has_the_measured_error_or_that_of_a_small_sample() -> None:
    certain = torch.tensor([[0.9, 0.1]] * 60 + [[0.5, 0.5]] * 40)
    assert accuracy_interval(certain, profile()) == pytest.approx((0.4, 0.8))
    sampling = 1.64 * math.sqrt(0.6 * 0.4 / 100)
    assert accuracy_interval(certain, profile(error90=0.0)) == pytest.approx((0.6 - sampling, 0.6 + sampling))
    assert accuracy_interval(certain[:2], profile())[1] == 1.0
