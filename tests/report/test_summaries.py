"""The numbers behind the charts, against values computed by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dept.metrics import expected_calibration_error
from dept.report import summaries
from dept.report.charts import class_bars, smooth
from dept.report.embedding import choose, pca
from dept.report.svg import number, signed, ticks


def two_class(*first: float) -> torch.Tensor:
    return torch.tensor([[value, 1 - value] for value in first], dtype=torch.float64)


def test_reliability_bins_by_hand() -> None:
    probabilities = two_class(0.55, 0.58, 0.95, 0.92, 1.0)  # all predict class 0
    labels = torch.tensor([0, 1, 0, 0, 1])
    low, high = summaries.reliability(probabilities, labels, bins=2 * 5)
    assert (low.count, low.accuracy) == (2, 0.5)
    assert low.confidence == pytest.approx(0.565)
    assert high.count == 3  # a confidence of one belongs to the last bin
    assert high.accuracy == pytest.approx(2 / 3) and high.confidence == pytest.approx((0.95 + 0.92 + 1) / 3)


def test_reliability_bins_give_the_calibration_error() -> None:
    torch.manual_seed(0)
    probabilities, labels = torch.randn(200, 4).mul(2).softmax(dim=1), torch.randint(0, 4, (200,))
    bins = summaries.reliability(probabilities, labels)
    gap = sum(one.count / 200 * abs(one.confidence - one.accuracy) for one in bins)
    assert gap == pytest.approx(expected_calibration_error(probabilities, labels), abs=1e-6)
    assert sum(one.count for one in bins) == 200


def test_confidence_shares_by_hand() -> None:
    assert summaries.confidence_shares(torch.tensor([0.1, 0.3, 0.26, 1.0]), bins=4) == [0.25, 0.5, 0.0, 0.25]


def test_changes_are_fixed_broken_or_other() -> None:
    before, after = torch.tensor([0, 1, 2, 0, 1]), torch.tensor([1, 1, 0, 2, 0])
    labels, confidence = torch.tensor([1, 1, 2, 1, 0]), torch.tensor([0.5, 0.9, 0.6, 0.7, 0.8])
    assert summaries.changes(before, after, confidence, labels) == summaries.Changes((4, 0), (2,), (3,))
    assert summaries.changes(before, after, confidence, None) == summaries.Changes((), (), (4, 3, 2, 0))


def test_confusion_by_hand() -> None:
    assert summaries.confusion(torch.tensor([0, 0, 1]), torch.tensor([1, 0, 1]), 2).tolist() == [[1, 1], [0, 1]]


def test_gain_is_paired() -> None:
    labels = torch.zeros(100, dtype=torch.long)
    before, after = labels.clone(), labels.clone()
    before[:10] = 1  # ten fixed, none broken: the interval cannot reach below zero
    found = summaries.gain(before, after, labels)
    assert (found.before, found.after) == (0.9, 1.0) and found.difference == pytest.approx(0.1)
    assert 0 < found.low < 0.1 < found.high


def test_classes_without_images_are_left_out() -> None:
    rows = summaries.class_rows(torch.tensor([0, 1]), torch.tensor([0, 0]), torch.tensor([0, 0]), "ab")
    assert rows == [summaries.ClassRow("a", 2, 0.5, 1.0)]
    shares = summaries.class_rows(torch.tensor([0, 1]), torch.tensor([0, 0]), None, "abc")
    assert [(row.name, row.before, row.after) for row in shares] == [("a", 0.5, 1.0), ("b", 0.5, 0.0)]


def test_many_classes_are_shortened_to_those_that_changed() -> None:
    rows = [summaries.ClassRow(str(i), 1, 0.5, 0.5 + i / 100) for i in range(40)]
    assert [row.name for row in summaries.shortened(rows, 3)] == ["37", "38", "39"]
    matrix = torch.zeros(5, 5, dtype=torch.long)
    matrix[1, 3], matrix[3, 1] = 4, -2
    assert summaries.busiest(matrix, 2) == [1, 3]


def test_ticks_numbers_and_signs() -> None:
    assert ticks(0, 1, 5) == [0, 0.2, 0.4, 0.6, 0.8, 1]
    assert ticks(-3, 7, 5) == [-2, 0, 2, 4, 6]
    assert ticks(2, 2) == [2]
    assert (number(-0.5), number(12345), number(-6e-5)) == ("−0.5", "12,345", "−6·10⁻⁵")
    assert (signed(1.26, 1), signed(-2.0), signed(0.01)) == ("+1.3", "−2", "±0")
    assert smooth([0.0, 3.0, 6.0], 1) == [1.5, 3.0, 4.5]


def test_names_in_charts_are_escaped() -> None:
    chart = class_bars([summaries.ClassRow('<b onload="x">&', 1, 0.1, 0.2)], "Accuracy")
    assert "<b" not in chart and "&lt;b onload=&quot;x&quot;&gt;&amp;" in chart


def test_pca_uses_common_axes_and_survives_rank_one() -> None:
    rng = np.random.default_rng(0)
    one = rng.normal(size=(20, 5))
    first, second = pca([one, one + 3])
    moved = second - first
    assert np.allclose(moved, moved[0]) and np.abs(moved[0]).max() > 1  # the same shift for every image
    assert pca([np.ones((4, 1)) * np.arange(4)[:, None]])[0].shape == (4, 2)


def test_the_choice_of_the_projection() -> None:
    pytest.importorskip("sklearn")
    assert [choose("auto", n) for n in (10, 500, 2001)] == ["pca", "tsne", "pca"]
    assert choose("pca", 500) == "pca"
