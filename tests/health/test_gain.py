"""Gain, interval and sign test against slow formulas, and how often the interval holds the truth."""

from __future__ import annotations

from functools import cache
from itertools import product
from math import comb

import numpy as np
import pytest

from dept.health import gain
from dept.health.disagreement import draw
from dept.health.gain import LEVEL, MISS, MISS_INFORMATIVE, Labelled, interval, sign_test, verdict


def test_the_estimate() -> None:
    """40 of 200 differ. Of 10 labels 6 are for after, 1 for before: 0.2 · 5/10."""
    assert Labelled(200, 40, 6, 1, 3).gain == pytest.approx(0.1)


@pytest.mark.parametrize("numbers", [(10, 5, 0, 0, 0), (10, 5, 3, 3, 0), (10, 12, 3, 3, 0), (10, 5, -1, 3, 0)])
def test_numbers_that_cannot_be(numbers: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="at least one label"):
        Labelled(*numbers)


# ---- sign test ----


@pytest.mark.parametrize(("after", "before"), [(0, 0), (5, 0), (7, 2), (15, 15), (3, 11)])
def test_the_sign_test_counts_coin_flips(after: int, before: int) -> None:
    flips, apart = after + before, abs(after - before)
    odd = [comb(flips, heads) for heads in range(flips + 1) if abs(2 * heads - flips) >= apart]
    assert sign_test(Labelled(900, 500, after, before, 1)) == pytest.approx(sum(odd) / 2**flips)


def test_hand_values() -> None:
    assert sign_test(Labelled(100, 50, 5, 0, 0)) == 2 / 32
    assert (verdict(Labelled(100, 50, 5, 0, 20)), verdict(Labelled(100, 50, 0, 5, 0))) == ("improved", "harmful")
    assert verdict(Labelled(100, 50, 4, 0, 0)) == "uncertain"  # 2 / 16 is above LEVEL
    assert 2 / 32 < LEVEL < 2 / 16
    assert verdict(Labelled(9000, 4000, 2600, 1300, 100)) == "improved"  # no overflow


# ---- interval ----


def tails(total: int, after: int, before: int, drawn: int, seen: tuple[int, int]) -> tuple[float, float, float, float]:
    """P(a-b ≤ seen), P(a-b ≥ seen), P(a+b ≤ seen), P(a+b ≥ seen), by listing all outcomes."""
    found = [0.0] * 4
    for a, b in product(range(drawn + 1), repeat=2):
        if a + b <= drawn:
            ways = comb(after, a) * comb(before, b) * comb(total - after - before, drawn - a - b) / comb(total, drawn)
            for number, kept in enumerate(
                (a - b <= seen[0] - seen[1], a - b >= seen[0] - seen[1], a + b <= sum(seen), a + b >= sum(seen))
            ):
                found[number] += ways * kept
    return found[0], found[1], found[2], found[3]


@pytest.mark.parametrize("seen", [(3, 1, 2), (0, 0, 6), (6, 0, 0), (2, 3, 1), (1, 4, 1)])
def test_the_interval_is_all_that_is_not_rejected(seen: tuple[int, int, int]) -> None:
    """Every pair (A, B) of 15 images is tested by listing all outcomes of six labels."""
    a, b, neither = seen
    kept = []
    for after, before in product(range(a, 16), range(b, 16)):
        if after + before <= 15 - neither:
            less, more, fewer, oftener = tails(15, after, before, 6, (a, b))
            if min(fewer, oftener) > MISS_INFORMATIVE / 2 and min(less, more) > (MISS - MISS_INFORMATIVE) / 2:
                kept.append(after - before)
    assert interval(Labelled(100, 15, *seen)) == pytest.approx((min(kept) / 100, max(kept) / 100))


def test_all_labelled_leaves_no_doubt() -> None:
    assert interval(Labelled(1000, 30, 17, 8, 5)) == (0.009, 0.009)


def test_it_is_symmetric_and_shrinks_with_labels() -> None:
    low, high = interval(Labelled(500, 300, 12, 5, 13))
    assert interval(Labelled(500, 300, 5, 12, 13)) == (-high, -low)
    wide, narrow = interval(Labelled(500, 300, 4, 2, 4)), interval(Labelled(500, 300, 40, 20, 40))
    assert narrow[1] - narrow[0] < 0.5 * (wide[1] - wide[0])
    decided, undecided = interval(Labelled(500, 300, 15, 15, 0)), interval(Labelled(500, 300, 2, 2, 26))
    assert undecided[1] - undecided[0] < 0.7 * (decided[1] - decided[0])  # "neither" is information too


@cache
def covered(images: int, total: int, a: int, b: int, neither: int) -> tuple[float, float]:
    return interval(Labelled(images, total, a, b, neither))


@pytest.mark.parametrize("total", [40, 300, 2000])
@pytest.mark.parametrize("shares", [(0.5, 0.5), (0.6, 0.2), (0.15, 0.75), (0.1, 0.05), (0.01, 0.02), (0.97, 0.03)])
def test_thirty_labels_cover_the_gain(total: int, shares: tuple[float, float]) -> None:
    """The interval must hold the truth in at least 93 % of draws; it promises 95."""
    after, before = (round(share * total) for share in shares)
    rng = np.random.default_rng(total)
    draws = rng.multivariate_hypergeometric([after, before, total - after - before], 30, size=400)
    ends = np.array([covered(5000, total, *row) for row in draws.tolist()])
    truth = (after - before) / 5000
    assert np.mean((ends[:, 0] <= truth + 1e-12) & (truth <= ends[:, 1] + 1e-12)) >= 0.93


def test_a_stratified_draw_covers_too() -> None:
    """Classes differ in who is right: strata 0 to 3 of 10 to 160 images, after right with 90, 60, 30 and 10 %."""
    rng, sizes, chances = np.random.default_rng(0), (10, 50, 80, 160), (0.9, 0.6, 0.3, 0.1)
    strata = [stratum for stratum, size in enumerate(sizes) for _ in range(size)]
    hits, errors, plain = 0, [], []
    for seed in range(300):
        truth = [int(rng.random() < chances[stratum]) * 2 - 1 for stratum in strata]
        for way, found in ((strata, errors), (None, plain)):
            labels = [truth[position] for position in draw(range(300), 30, seed=seed, strata=way)]
            right = labels.count(1)
            found.append(Labelled(300, 300, right, 30 - right, 0).gain - sum(truth) / 300)
            low, high = covered(300, 300, right, 30 - right, 0)
            hits += way is strata and low <= sum(truth) / 300 <= high
    assert hits / 300 >= 0.93
    assert np.std(errors) < np.std(plain) and abs(np.mean(errors)) < 4 * np.std(errors) / 300**0.5


def test_a_grid_of_totals_is_fine_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = Labelled(1000, 1000, 10, 5, 15)
    coarse = interval(seen)
    monkeypatch.setattr(gain, "GRID", 10_000)
    assert interval(seen) == pytest.approx(coarse, abs=0.002)
