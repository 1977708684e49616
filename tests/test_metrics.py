from __future__ import annotations

import math
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dept.metrics import (
    expected_calibration_error,
    interval_of_means,
    paired_interval,
    per_class_accuracy,
    score,
    wilson,
)


def test_per_class_is_not_overall() -> None:
    """Labels 0 x 9 and 1 x 1, everything predicted 0: 50 against 90."""
    probabilities, labels = torch.tensor([[0.9, 0.1]]).repeat(10, 1), torch.tensor([0] * 9 + [1])
    scores = score(probabilities, labels, ("a", "b"))
    assert scores["top1"] == pytest.approx(0.9) and scores["mean_per_class"] == pytest.approx(0.5)
    assert scores["per_class"] == {"a": 1.0, "b": 0.0} and scores["n"] == 10
    assert scores["nll"] == pytest.approx(-(9 * math.log(0.9) + math.log(0.1)) / 10, abs=1e-6)
    assert scores["ece"] == pytest.approx(0.0, abs=1e-6)  # 90 % sure, right in 90 %


def test_classes_without_images_are_left_out() -> None:
    assert per_class_accuracy(torch.tensor([0, 2]), torch.tensor([0, 0]), ("a", "b", "c")) == {"a": 0.5}


def test_nll_of_a_certain_mistake_is_finite() -> None:
    scores = score(torch.tensor([[1.0, 0.0]]), torch.tensor([1]), ("a", "b"))
    assert math.isfinite(scores["nll"]) and scores["nll"] > 20


def slow_ece(probabilities: list[list[float]], labels: list[int], bins: int = 15) -> float:
    total = 0.0
    for number in range(bins):
        low, high = number / bins, (number + 1) / bins
        inside = [
            (max(row), row.index(max(row)) == label)
            for row, label in zip(probabilities, labels, strict=True)
            if low <= max(row) < high or (number == bins - 1 and max(row) >= high)
        ]
        if inside:
            confidence = sum(c for c, _ in inside) / len(inside)
            accuracy = sum(hit for _, hit in inside) / len(inside)
            total += len(inside) / len(labels) * abs(confidence - accuracy)
    return total


def test_ece_equals_the_slow_loop() -> None:
    generator = torch.Generator().manual_seed(0)
    probabilities = (3 * torch.randn(300, 5, generator=generator)).softmax(dim=1).double()
    labels = torch.randint(5, (300,), generator=generator)
    ours = expected_calibration_error(probabilities, labels)
    assert ours == pytest.approx(slow_ece(probabilities.tolist(), labels.tolist()), abs=1e-9) and ours > 0.1


def test_ece_with_certainty_in_the_last_bin() -> None:
    assert expected_calibration_error(torch.eye(2), torch.tensor([0, 0])) == pytest.approx(0.5)


def test_wilson_by_hand() -> None:
    low, high = wilson(9, 10)
    assert low == pytest.approx(0.5958, abs=1e-4) and high == pytest.approx(0.9821, abs=1e-4)
    assert wilson(0, 10) == (0.0, pytest.approx(0.2775, abs=1e-4))
    assert wilson(10, 10) == (pytest.approx(0.7225, abs=1e-4), pytest.approx(1.0, abs=1e-12))


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 5000), st.data())
def test_wilson_holds_the_share_and_stays_in_0_1(total: int, data: st.DataObject) -> None:
    correct = data.draw(st.integers(0, total))
    low, high = wilson(correct, total)
    assert 0.0 <= low <= correct / total + 1e-12 and correct / total - 1e-12 <= high <= 1.0
    mirrored = wilson(total - correct, total)
    assert mirrored[0] == pytest.approx(1 - high, abs=1e-9) and mirrored[1] == pytest.approx(1 - low, abs=1e-9)


def draw_pair(rng: random.Random, size: int) -> tuple[list[bool], list[bool]]:
    """Two correlated classifiers; the second gains 0.10 - 0.04 = 0.06."""
    before, after = [], []
    for _ in range(size):
        u = rng.random()
        before.append(u < 0.60 or u > 0.96)
        after.append(u < 0.70)
    return after, before


def test_paired_interval_is_that_of_a_direct_bootstrap() -> None:
    after, before = draw_pair(random.Random(1), 200)
    gains = [int(a) - int(b) for a, b in zip(after, before, strict=True)]
    rng = random.Random(2)
    means = sorted(sum(rng.choices(gains, k=200)) / 200 for _ in range(2000))
    low, high = paired_interval(after, before)
    assert low == pytest.approx(means[50], abs=0.012) and high == pytest.approx(means[1950], abs=0.012)
    assert low < sum(gains) / 200 < high


def test_paired_interval_covers_the_true_gain() -> None:
    rng = random.Random(3)
    hits = 0
    for trial in range(150):
        low, high = paired_interval(*draw_pair(rng, 250), resamples=400, seed=trial)
        hits += low <= 0.06 <= high
    assert 0.88 <= hits / 150 <= 0.99


def test_paired_interval_uses_the_pairing_and_the_seed() -> None:
    same = [True] * 70 + [False] * 30
    assert paired_interval(same, same) == (0.0, 0.0)
    after, before = draw_pair(random.Random(4), 100)
    assert paired_interval(after, before, seed=5) == paired_interval(after, before, seed=5)
    low, high = paired_interval(after, before)
    flipped = paired_interval(before, after)
    assert flipped[0] == pytest.approx(-high, abs=0.02) and flipped[1] == pytest.approx(-low, abs=0.02)


def test_interval_of_means_is_that_of_a_direct_bootstrap() -> None:
    """Gains of half steps (two seeds) in two groups of different sizes, each group weighing the same."""
    rng = random.Random(4)
    groups = [[rng.choice((-0.5, 0.0, 0.5, 1.0)) for _ in range(size)] for size in (60, 200)]
    means = sorted(sum(sum(rng.choices(g, k=len(g))) / len(g) for g in groups) / 2 for _ in range(2000))
    low, high = interval_of_means(groups)
    assert low == pytest.approx(means[50], abs=0.012) and high == pytest.approx(means[1950], abs=0.012)
