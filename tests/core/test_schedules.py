from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dept.core import schedules


def test_cosine_by_hand() -> None:
    assert schedules.cosine(0, 100) == 1.0
    assert math.isclose(schedules.cosine(50, 100), 0.5)
    assert schedules.cosine(99, 100) < 3e-4
    assert math.isclose(schedules.cosine(1, 3), 0.75)


def test_constant() -> None:
    assert {schedules.constant(step, 7) for step in range(7)} == {1.0}


def test_warmup_is_linear_from_zero_then_cosine() -> None:
    values = [schedules.warmup_cosine(step, 30, 10) for step in range(30)]
    assert values[:10] == pytest.approx([i / 10 for i in range(10)])
    assert values[10] == 1.0 and values[20] == pytest.approx(0.5) and values[29] < 0.01
    assert schedules.warmup_cosine(0, 30, 0) == 1.0


@given(st.integers(1, 500), st.integers(0, 500))
def test_multipliers_stay_between_0_and_1(total: int, warmup: int) -> None:
    warmup = min(warmup, total)
    assert all(0.0 <= schedules.warmup_cosine(step, total, warmup) <= 1.0 for step in range(total))


def test_teacher_temperature_by_hand() -> None:
    def at(epoch: int, warmup: int) -> float:
        return schedules.teacher_temperature(epoch, start=0.04, end=0.07, warmup_epochs=warmup)

    assert [at(e, 3) for e in range(5)] == pytest.approx([0.04, 0.055, 0.07, 0.07, 0.07])
    assert at(0, 0) == 0.07
