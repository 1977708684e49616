"""The maths of the guard against slow formulas, and its decisions on sequences made by hand."""

from __future__ import annotations

import itertools
import math
from collections import Counter

import pytest
import torch
from torch import Tensor

from dept.health.guard import (
    CALM,
    EVERY,
    FEWEST,
    PAIRS,
    RAREST,
    SOON,
    TOLERATED,
    WINDOW,
    Guard,
    Notice,
    effective_classes,
    expected_entropy,
    farther,
    page_sum,
    variety,
)

EVEN = (0.25,) * 4


def logits(labels: Tensor | list[int], classes: int = 4, confidence: float = 0.7) -> Tensor:
    """Logits whose softmax gives the labels that confidence, and the rest evenly to the other classes."""
    labels = torch.as_tensor(labels)
    shares = torch.full((len(labels), classes), (1 - confidence) / (classes - 1))
    return shares.scatter(1, labels[:, None], confidence).log()


def turn(guard: Guard, source: list[int], own: list[int], confidence: float = 0.7) -> tuple[bool, str]:
    """A turn in which the source is always asked: whether learning was allowed, and what is wrong."""
    guard.look(logits(source, confidence=confidence))
    allowed = guard.allowed()
    guard.hear(logits(own))
    found = guard.harm()
    guard.turn_over()
    return allowed, found


def mixed(count: int = FEWEST) -> list[int]:
    return [n % 4 for n in range(count)]


def actions(guard: Guard) -> list[str]:
    return [notice.action for notice in guard.notices]


# -- maths ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shares", [(0.5, 0.3, 0.2), (1.0, 0.0), (0.25,) * 4])
def test_expected_entropy_is_the_mean_over_all_draws(shares: tuple[float, ...]) -> None:
    """Every sequence of five images, weighted by its probability."""
    slow = 0.0
    for draw in itertools.product(range(len(shares)), repeat=5):
        chance = math.prod(shares[label] for label in draw)
        slow -= chance * sum(n / 5 * math.log(n / 5) for n in Counter(draw).values())
    assert expected_entropy(shares, 5) == pytest.approx(slow, abs=1e-9)


@pytest.mark.parametrize(("classes", "images", "share"), [(12, 512, 0.996), (126, 64, 0.795), (1000, 512, 0.857)])
def test_expected_entropy_of_many_classes(classes: int, images: int, share: float) -> None:
    assert expected_entropy((1 / classes,) * classes, images) / math.log(classes) == pytest.approx(share, abs=1e-3)


def test_variety() -> None:
    even, one = torch.arange(400) % 4, torch.zeros(400, dtype=torch.long)
    assert effective_classes(even, 4) == pytest.approx(4) and effective_classes(one, 4) == pytest.approx(1)
    assert variety(one, EVEN) == 0.0 and variety(even, EVEN) == pytest.approx(1, abs=0.02)
    # Two of four classes, equally frequent: one class beyond the first, of three.
    assert variety(even % 2, EVEN) == pytest.approx(1 / 3, abs=0.01)
    # If the source had only these two, nothing is missing.
    assert variety(even % 2, (0.5, 0.5, 0.0, 0.0)) == pytest.approx(1, abs=0.01)


def test_page_sum_is_the_largest_excess_of_any_recent_stretch() -> None:
    seen = torch.rand(200, generator=torch.Generator().manual_seed(3)) < 0.15
    steps = [float(one) - 0.1 for one in seen]
    slow = max([0.0, *(sum(steps[at:]) for at in range(len(steps)))])
    assert page_sum(0.0, seen, 0.1) == pytest.approx(slow)
    assert page_sum(page_sum(0.0, seen[:77], 0.1), seen[77:], 0.1) == pytest.approx(slow)  # in two parts


def test_farther_from_the_expected_shares() -> None:
    source = torch.tensor([0] * 40 + [1] * 20 + [2] * 20 + [3] * 20)  # 15 % too many of class 0
    own = source.clone()
    own[40:50] = 0  # ten more
    distance, chance = farther(own, source, EVEN)
    assert distance == pytest.approx(0.10) and chance == pytest.approx(2.5 * math.sqrt(0.1 / 100))


# -- decisions ------------------------------------------------------------------------------------------------


def test_a_quiet_stream_is_learned_from() -> None:
    guard = Guard(EVEN)
    for _ in range(20):
        assert turn(guard, mixed(), mixed()) == (True, "")
    assert guard.clean and not guard.notices and len(guard.own) == WINDOW


def quiet_turns(guard: Guard, count: int) -> list[int]:
    """Turns in which nothing happens; returns those in which the source is asked."""
    asked = []
    for _ in range(count):
        if guard.due:
            asked.append(guard.turns)
            guard.look(logits(mixed()))
            assert guard.due  # until the turn is over: it may have several groups of images
        assert guard.allowed()
        guard.hear(logits(mixed()))
        guard.harm()
        guard.turn_over()
    return asked


def test_the_source_is_asked_in_every_fourth_turn() -> None:
    guard = Guard(EVEN)
    assert quiet_turns(guard, 9) == [0, 4, 8]
    assert guard.turns == 9


def test_the_source_is_asked_less_often_while_nothing_happens() -> None:
    """At most in every 16th turn, and in every fourth again after an alarm."""
    guard = Guard(EVEN)
    asked = quiet_turns(guard, 400)
    gaps = [after - before for before, after in itertools.pairwise(asked)]
    assert gaps[:8] == [EVERY] * 8 and gaps == sorted(gaps) and gaps[-1] == RAREST
    # A look is one forward, an update of the cheapest methods two: 5 % of 400 of them are 40 looks.
    assert len(asked) <= 40
    guard.raise_alarm("a test says so", snapshots=True)
    assert quiet_turns(guard, 9)[-2:] == [404, 408]


def test_a_guard_of_an_earlier_version_is_continued() -> None:
    guard = Guard(EVEN)
    quiet_turns(guard, 200)
    state = guard.state_dict()
    del state["last"]
    older = Guard(EVEN)
    older.load_state_dict(state)
    assert not older.due and quiet_turns(older, 9) == [203, 207]


def test_a_single_class_pauses_and_variety_resumes() -> None:
    guard = Guard(EVEN)
    assert turn(guard, mixed(), mixed())[0]
    assert not turn(guard, [1] * FEWEST, [1] * FEWEST)[0]
    assert guard.due and not guard.clean  # asked in every turn now
    allowed = [turn(guard, mixed(), mixed())[0] for _ in range(CALM)]
    assert allowed == [False] * (CALM - 1) + [True]
    assert actions(guard) == ["pause", "resume"] and not any(notice.alarm for notice in guard.notices)
    assert "sees 1.0 effective classes in 64 images, 3.9 are usual" in str(guard.notices[0])


def test_methods_for_sorted_classes_are_not_paused() -> None:
    guard = Guard(EVEN, pauses=False)
    assert turn(guard, [1] * FEWEST, [1] * FEWEST) == (True, "") and not guard.notices


def test_few_classes_seen_by_the_adapted_model_ask_the_source_at_once() -> None:
    guard = Guard(EVEN)
    turn(guard, mixed(), mixed())
    assert not guard.due
    guard.hear(logits([2] * FEWEST))
    guard.turn_over()
    assert guard.suspicious and guard.due and guard.turns % EVERY


def test_small_turns_wait_until_there_is_something_to_judge_by() -> None:
    guard = Guard(EVEN)
    allowed = [turn(guard, mixed(16), mixed(16))[0] for _ in range(5)]
    assert allowed == [False, False, False, True, True] and not guard.notices


def test_contradictions_where_the_source_is_confident() -> None:
    """A wrong permutation: as many classes as before, as often as before, and all of them wrong."""
    guard = Guard(EVEN)
    turn(guard, mixed(), mixed())
    wrong = [(label + 1) % 4 for label in mixed()]
    found = turn(guard, mixed(), wrong)[1]
    assert "contradicts the source model" in found


def test_contradictions_where_it_is_not_confident_are_what_adaptation_is_for() -> None:
    guard = Guard(EVEN)
    for _ in range(10):
        guard.look(torch.cat([logits(mixed(48), confidence=0.4), logits(mixed(16), confidence=0.9)]))
        assert guard.allowed()
        guard.hear(logits([(label + 1) % 4 for label in mixed(48)] + mixed(16)))
        assert guard.harm() == ""
        guard.turn_over()


def test_a_tolerated_share_of_contradictions_is_no_alarm() -> None:
    guard = Guard(EVEN)
    sure = torch.arange(FEWEST) % 4 == 0  # a quarter of the images, of all classes
    source = torch.arange(FEWEST) // 4 % 4
    own = source.clone()
    own[0] = 1  # one of 16
    assert 1 / int(sure.sum()) < TOLERATED
    for _ in range(50):
        guard.look(torch.where(sure[:, None], logits(source, confidence=0.9), logits(source, confidence=0.4)))
        guard.hear(logits(own))
        assert guard.harm() == ""
        guard.turn_over()


def test_class_shares_that_move_away() -> None:
    guard = Guard(EVEN)
    # Unsure images of class 1 become class 0: no confident prediction is contradicted.
    own = [0 if label == 1 and n >= 16 else label for n, label in enumerate(mixed())]
    found = []
    for _ in range(PAIRS // FEWEST):
        guard.look(torch.cat([logits(mixed()[:16], confidence=0.9), logits(mixed()[16:], confidence=0.4)]))
        guard.allowed()
        guard.hear(logits(own))
        found.append(guard.harm())
        guard.turn_over()
    assert found[:-1] == [""] * (len(found) - 1) and "19 points farther from the expected ones" in found[-1]


def test_alarms_lead_further_back_and_slow_down() -> None:
    guard = Guard(EVEN)
    assert [guard.raise_alarm("x", snapshots=True) for _ in range(4)] == ["newest", "oldest", "source", "stop"]
    assert guard.damping == 1 / 16 and guard.stopped and not guard.due and not guard.allowed()
    assert guard.alarms == 4 and all(notice.alarm for notice in guard.notices)


def test_an_alarm_long_after_the_last_begins_anew() -> None:
    guard = Guard(EVEN)
    guard.raise_alarm("x", snapshots=True)
    guard.turns += SOON + 1
    assert guard.raise_alarm("x", snapshots=True) == "newest" and guard.damping == 1 / 4


def test_without_snapshots_the_way_back_is_to_the_source() -> None:
    guard = Guard(EVEN)
    turn(guard, mixed(), mixed())
    assert guard.raise_alarm("x", snapshots=False) == "source"
    assert len(guard.own) == 0 and str(guard.notices[0]).startswith("Back to the source model, at half")
    assert guard.notices[0] == Notice("source", "x", 2)


def test_state_is_restored() -> None:
    first = Guard(EVEN)
    for own in (mixed(), [0] * FEWEST):
        turn(first, own, mixed())
    first.raise_alarm("x", snapshots=True)
    first.look(logits([1, 2], confidence=0.9))
    first.hear(logits([1, 3]))
    second = Guard(EVEN)
    second.load_state_dict({name: tensor.clone() for name, tensor in first.state_dict().items()})
    assert all(torch.equal(second.state_dict()[name], tensor) for name, tensor in first.state_dict().items())
    for guard in (first, second):
        guard.harm()
        guard.turn_over()
    assert {**vars(first), "notices": 0}.keys() == vars(second).keys()
    assert all(torch.equal(second.state_dict()[name], tensor) for name, tensor in first.state_dict().items())
