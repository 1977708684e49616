from __future__ import annotations

from collections import Counter

import pytest

from dept.health.disagreement import disagreeing, draw


def test_disagreeing() -> None:
    assert disagreeing([0, 1, 2, 1], [0, 2, 2, 0]) == [1, 3]
    with pytest.raises(ValueError):
        disagreeing([0], [0, 1])


@pytest.mark.parametrize("stratified", [False, True])
def test_a_larger_draw_begins_with_the_smaller_one(stratified: bool) -> None:
    positions = list(range(100, 200))
    strata = [position % 7 for position in positions] if stratified else None
    small, large = (draw(positions, count, seed=3, strata=strata) for count in (30, 60))
    assert large[:30] == small and len(set(large)) == 60 and set(large) <= set(positions)
    assert draw(positions, 30, seed=4, strata=strata) != small
    assert sorted(draw(positions, 1000, seed=0, strata=strata)) == positions


def test_strata_are_present_in_proportion() -> None:
    """50 + 30 + 20 images: among the first 10 about 5, 3 and 2, and never further off than by one."""
    strata = [0] * 50 + [1] * 30 + [2] * 20
    for seed in range(50):
        found = Counter(strata[position] for position in draw(range(100), 10, seed=seed, strata=strata))
        assert all(abs(found[stratum] - expected) <= 1 for stratum, expected in ((0, 5), (1, 3), (2, 2)))


@pytest.mark.parametrize("strata", [None, [0] * 1 + [1] * 5 + [2] * 14])
def test_every_image_is_equally_likely(strata: list[int] | None) -> None:
    """The estimate is unbiased only then. 6 of 20 images: each in 30 % of the draws, four standard errors allowed."""
    found = Counter(position for seed in range(4000) for position in draw(range(20), 6, seed=seed, strata=strata))
    assert all(abs(found[position] / 4000 - 0.3) < 4 * (0.3 * 0.7 / 4000) ** 0.5 for position in range(20))
