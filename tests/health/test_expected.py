"""The expected gain, on shares made by hand."""

from __future__ import annotations

import pytest

from dept.health.expected import expected_gain
from dept.health.prior import Prior

EVEN = Prior((0.25,) * 4, "uniform", declared=True)
LEANING, EVENED = (0.65, 0.15, 0.1, 0.1), (0.25, 0.25, 0.25, 0.25)


def test_predictions_that_come_nearer_improved() -> None:
    found = expected_gain(LEANING, EVENED, 0.5, EVEN)  # e = 0.4, of which 0.8 of the change
    assert found.verdict == "improved" and found.gain == pytest.approx(0.4)
    assert (found.low, found.high) == (pytest.approx(0.1 * 0.5 - 0.01), pytest.approx(0.85 * 0.5 + 0.01))


def test_predictions_that_collapse_are_harmful() -> None:
    found = expected_gain(EVENED, LEANING, 0.5, EVEN)
    assert found.verdict == "harmful" and found.high < 0 and found.low >= -0.5


def test_a_change_that_leads_nowhere_is_uncertain() -> None:
    found = expected_gain(EVENED, EVENED, 0.3, EVEN)
    assert found.verdict == "uncertain" and found.low < 0 < found.high


def test_nothing_changed() -> None:
    found = expected_gain(EVENED, EVENED, 0.0, EVEN)
    assert (found.verdict, found.gain, found.low, found.high) == ("uncertain", 0.0, 0.0, 0.0)


def test_nothing_is_asserted_about_unknown_shares() -> None:
    found = expected_gain(LEANING, EVENED, 0.5, EVEN, differ=True)
    assert (found.verdict, found.low, found.high, found.shares) == ("uncertain", -0.5, 0.5, "unknown")


def test_the_gain_is_never_larger_than_the_change() -> None:
    found = expected_gain(LEANING, EVENED, 0.02, EVEN)  # fewer than TV says: rounding of recorded shares
    assert -0.02 <= found.low <= found.gain <= found.high <= 0.02


def test_the_record_is_short() -> None:
    assert expected_gain(LEANING, EVENED, 1 / 3, EVEN).record() == {
        "verdict": "improved", "gain": 0.2933, "low": 0.0233, "high": 0.2933, "shares": "uniform",
    }  # fmt: skip
