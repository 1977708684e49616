"""The expected gain, on shares made by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from dept.health.expected import Expected, expected_gain
from dept.health.prior import Prior

EVEN = Prior((0.25,) * 4, "uniform", declared=True)
LEANING, EVENED = (0.65, 0.15, 0.1, 0.1), (0.25, 0.25, 0.25, 0.25)


def test_predictions_that_come_nearer_improved() -> None:
    found = expected_gain(LEANING, EVENED, 0.5, 1000, EVEN)  # e = 0.4, of which 0.8 of the change
    margin = 0.75 * math.sqrt(0.5 / 1000)
    assert found.verdict == "improved" and found.gain == pytest.approx(0.4)
    assert (found.low, found.high) == (pytest.approx((0.15 * 0.8 - 0.05 * 0.2) * 0.5 - margin), 0.5)


def test_predictions_that_collapse_are_harmful() -> None:
    found = expected_gain(EVENED, LEANING, 0.5, 1000, EVEN)
    margin = 0.75 * math.sqrt(0.5 / 1000)  # e / D is -0.8
    assert found.verdict == "harmful" and found.high < 0
    assert found.low == pytest.approx((-0.75 * 0.8 - 0.05 * 0.2) * 0.5 - margin)
    assert found.high == pytest.approx((-0.25 * 0.8 + 0.1 * 0.2) * 0.5 + margin)


def test_a_few_images_prove_no_harm() -> None:
    assert expected_gain(EVENED, (0.35, 0.25, 0.2, 0.2), 0.3, 1000, EVEN).verdict == "harmful"
    assert expected_gain(EVENED, (0.35, 0.25, 0.2, 0.2), 0.3, 20, EVEN).verdict == "uncertain"


def test_a_source_model_that_is_mostly_right_needs_more_proof_of_harm_unless_shares_are_declared() -> None:
    """e = -0.015 with 100 changes among 1,000 images: 1.5 times √(0.1 / 1000)."""
    assumed, after = replace(EVEN, declared=False), (0.265, 0.245, 0.245, 0.245)
    for prior, accuracy, verdict in (
        (assumed, (0.7, 0.9), "uncertain"),
        (assumed, (0.4, 0.9), "harmful"),
        (assumed, None, "harmful"),
        (EVEN, (0.7, 0.9), "harmful"),
    ):
        found = expected_gain(EVENED, after, 0.1, 1000, prior, accuracy=accuracy)
        assert found.verdict == verdict
        assert (found.high == 0.1) == (verdict == "uncertain")  # every change may have been right


def test_what_optimises_class_shares_needs_a_source_model_that_is_mostly_right() -> None:
    def said(**known: Any) -> Expected:
        return expected_gain(LEANING, EVENED, 0.5, 1000, EVEN, **known)

    assert said().verdict == "improved" and said(optimised=True, accuracy=(0.5, 0.9)) == replace(
        said(), accuracy=(0.5, 0.9)
    )
    for accuracy in (None, (0.4, 0.9)):
        unproven = said(optimised=True, accuracy=accuracy)
        assert unproven.verdict == "uncertain" and unproven.high == said().high
        assert unproven.low == pytest.approx(-0.1 * 0.5 - 0.75 * math.sqrt(0.5 / 1000))
    assert expected_gain(EVENED, LEANING, 0.5, 1000, EVEN, optimised=True).verdict == "harmful"


def test_few_images_widen_the_interval() -> None:
    """e / D = 0.2: from -0.05 + 0.2 · 0.2 to 0.1 + 1.15 · 0.2 of the change, and a margin that falls with √n."""
    many, few = (expected_gain((0.35, 0.25, 0.2, 0.2), EVENED, 0.5, n, EVEN) for n in (100_000, 20))
    assert (many.low, many.high) == (pytest.approx(-0.005 - 0.0075), pytest.approx(0.165 + 0.0075))
    margin = 0.75 * math.sqrt(0.5 / 20)
    assert (few.low, few.high) == (pytest.approx(-0.005 - margin), pytest.approx(0.165 + margin))


def test_a_change_that_leads_nowhere_is_uncertain() -> None:
    found = expected_gain(EVENED, EVENED, 0.3, 1000, EVEN)
    assert found.verdict == "uncertain" and found.low < 0 < found.high


def test_nothing_changed() -> None:
    found = expected_gain(EVENED, EVENED, 0.0, 1000, EVEN)
    assert (found.verdict, found.gain, found.low, found.high) == ("uncertain", 0.0, 0.0, 0.0)


def test_nothing_is_asserted_about_unknown_shares() -> None:
    found = expected_gain(LEANING, EVENED, 0.5, 1000, EVEN, differ=True)
    assert (found.verdict, found.low, found.high, found.shares) == ("uncertain", -0.5, 0.5, "unknown")


def test_the_gain_is_never_larger_than_the_change() -> None:
    found = expected_gain(LEANING, EVENED, 0.02, 1000, EVEN)  # fewer than TV says: rounding of recorded shares
    assert -0.02 <= found.low <= found.gain <= found.high <= 0.02


def test_the_record_is_short() -> None:
    assert expected_gain(LEANING, EVENED, 1 / 3, 1000, EVEN).record() == {
        "verdict": "improved", "gain": 0.3333, "low": 0.0363, "high": 0.3333, "shares": "uniform",
        "accuracy": None,
    }  # fmt: skip
