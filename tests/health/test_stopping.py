"""When to stop and what to keep, on predictions made by hand."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

from dept.health.prior import Prior
from dept.health.stopping import LOOKS, NEAR_IF_RIGHT, Look, Stopping, due

EVEN = Prior((0.5, 0.5), "uniform", declared=True)


def predictions(ones: float) -> torch.Tensor:
    """1,000 predictions of two classes, `ones` per cent of them the second."""
    return (torch.arange(1000) < 10 * ones).long()


def test_the_nearest_state_is_kept_and_of_like_ones_the_later() -> None:
    rule = Stopping(EVEN)
    assert [rule.look(predictions(ones)).keep for ones in (10, 45, 30, 44.5, 47)] == [True, True, False, True, True]


def test_a_state_that_is_further_away_than_the_source_model_is_not_kept() -> None:
    rule = Stopping(EVEN)
    rule.begin(predictions(40))
    assert [rule.look(predictions(ones)).keep for ones in (30, 39.5, 45)] == [False, True, True]


def test_a_source_model_that_is_mostly_right_leaves_more_room() -> None:
    rule = Stopping(EVEN, NEAR_IF_RIGHT)
    rule.begin(predictions(40))
    assert [rule.look(predictions(ones)).keep for ones in (36, 38)] == [False, True]


def test_the_run_ends_when_predictions_have_settled() -> None:
    rule = Stopping(EVEN)
    assert [rule.look(predictions(ones)).end for ones in (40, 45, 45, 44, 44, 44.1)] == [False] * 5 + [True]


def test_the_run_ends_when_it_has_moved_away_for_good() -> None:
    rule = Stopping(EVEN)
    assert [rule.look(predictions(ones)).end for ones in (45, 30, 46, 30, 20)] == [False] * 4 + [True]


def test_without_known_shares_the_last_state_is_kept() -> None:
    rule = Stopping(None)
    assert [rule.look(predictions(ones)) for ones in (50, 10, 10, 10)] == [
        *[Look(keep=True, end=False)] * 3,
        Look(keep=True, end=True),
    ]


def test_without_known_shares_a_collapsed_state_is_not_kept() -> None:
    rule = Stopping(None)
    rule.begin(predictions(40))
    state = rule.state_dict()
    rule = Stopping(None)
    rule.load_state_dict(state)  # a resumed run knows what the source model predicted
    looks = [rule.look(predictions(ones)) for ones in (95, 30, 5, 20, 3, 8)]
    assert [one.keep for one in looks] == [False, True, False, True, False, False]
    assert [one.end for one in looks] == [False] * 5 + [True]


def test_a_resumed_rule_goes_on_as_it_would_have() -> None:
    one, two = Stopping(EVEN), Stopping(EVEN)
    for ones in (45, 30):
        one.look(predictions(ones))
    two.load_state_dict(one.state_dict())
    for ones in (31, 30, 48):
        assert one.look(predictions(ones)) == two.look(predictions(ones))


@pytest.mark.parametrize("total", [3, 10, 300, 307])
def test_looks_are_even_and_the_last_is_at_the_end(total: int) -> None:
    looks = [step for step in range(1, total + 1) if due(step, total)]
    assert len(looks) == min(LOOKS, total) and looks[-1] == total
    assert max(b - a for a, b in pairwise(looks)) <= -(-total // LOOKS)
