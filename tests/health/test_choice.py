"""The choice among candidates, on shares made by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from dept.health.choice import Scored, choose, plausible, recentred_shares, shares_differ
from dept.health.prior import Prior, sampling_noise, total_variation

EVEN = Prior((0.25,) * 4, "uniform", declared=False)
LEANING, EVENED, FEW = (0.7, 0.1, 0.1, 0.1), (0.3, 0.25, 0.25, 0.2), (0.5, 0.5, 0.0, 0.0)


def candidate(name: str, after: tuple[float, ...], *, changed: float = 0.3, images: int = 400) -> Scored:
    return Scored(name, LEANING, after, changed, images)


def test_total_variation() -> None:
    assert total_variation(LEANING, EVEN.shares) == pytest.approx(0.45)  # 0.45 too many in the first class
    assert total_variation(FEW, FEW) == 0


def test_sampling_noise_is_about_the_distance_of_a_sample() -> None:
    assert sampling_noise(4, 400) == pytest.approx(0.04)


def test_the_nearest_to_the_shares_is_kept() -> None:
    choice = choose([candidate("neo", (0.5, 0.2, 0.2, 0.1)), candidate("dept+", EVENED)], EVEN, differ=False)
    assert choice.kept == "dept+" and "equal class shares" in choice.why
    assert [row["name"] for row in choice.candidates] == ["source", "neo", "dept+"]
    assert [row["distance"] for row in choice.candidates] == pytest.approx([0.45, 0.25, 0.05])


def test_the_source_model_is_kept_if_nothing_is_nearer() -> None:
    assert choose([candidate("neo", LEANING), candidate("dept+", FEW)], EVEN, differ=False).kept == "source"
    near = (0.695, 0.105, 0.1, 0.1)  # half a point nearer: not worth a change
    assert choose([candidate("neo", near)], EVEN, differ=False).kept == "source"


def test_of_candidates_that_are_as_near_the_one_that_learned_more_is_kept() -> None:
    near, nearer = (0.47, 0.2, 0.2, 0.13), (0.45, 0.2, 0.2, 0.15)  # 0.22 and 0.2 from even shares
    for images, kept in ((500, "dept+"), (100_000, "neo")):
        candidates = [candidate(name, after, images=images) for name, after in (("neo", nearer), ("dept+", near))]
        assert choose(candidates, replace(EVEN, declared=True), differ=False).kept == kept


def test_a_source_model_that_is_mostly_right_is_learned_from_unless_shares_move_away() -> None:
    near, away = (0.70, 0.12, 0.08, 0.1), (0.76, 0.08, 0.08, 0.08)
    for after, changed, kept in ((near, 0.1, "dept+"), (near, 0.3, "neo"), (away, 0.1, "neo")):
        tried = [candidate("neo", (0.65, 0.15, 0.1, 0.1), changed=0.05), candidate("dept+", after, changed=changed)]
        assert choose(tried, EVEN, differ=False, right=True).kept == kept
        assert choose(tried, EVEN, differ=False).kept == "neo"
    declared = Prior(EVEN.shares, "uniform", declared=True)  # these can tell
    assert choose([candidate("dept+", near, changed=0.1)], declared, differ=False, right=True).kept == "source"


def test_many_changes_must_bring_much() -> None:
    nearer = (0.65, 0.15, 0.1, 0.1)  # by 0.05
    for changed, kept in ((0.1, "neo"), (0.45, "neo"), (0.55, "source")):
        assert choose([candidate("neo", nearer, changed=changed, images=10_000)], EVEN, differ=False).kept == kept
    few = candidate("neo", nearer, changed=0.3, images=100)  # √(0.3 / 100) = 0.055: it may be chance
    assert choose([few], EVEN, differ=False).kept == "source"


def test_without_known_shares_only_what_assumes_nothing_may_change_predictions() -> None:
    candidates = [candidate("neo", EVENED), candidate("dept+", EVENED)]
    assert choose(candidates, EVEN, differ=True).kept == "source"
    assert choose([*candidates, candidate("notela", FEW, changed=0.2)], EVEN, differ=True).kept == "notela"
    far = choose([*candidates, candidate("notela", EVENED, changed=0.5)], EVEN, differ=True)
    assert far.kept == "source" and "`prior`" in far.why


@pytest.mark.parametrize(
    ("after", "images", "differ"),
    [
        (EVENED, 400, False),  # re-centring took the lean away: a shift
        (LEANING, 400, True),  # it did not: classes are absent
        ((0.5, 0.2, 0.15, 0.15), 400, False),  # 0.25 of 0.45 is left
        ((0.54, 0.16, 0.15, 0.15), 400, True),  # 0.29 of 0.45 is left
        ((0.54, 0.16, 0.15, 0.15), 12, False),  # of so few images this may be chance
    ],
)
def test_absent_classes_are_told_from_a_shift(after: tuple[float, ...], images: int, differ: bool) -> None:
    assert shares_differ(candidate("neo", after, images=images), EVEN) is differ


def test_a_longer_candidate_may_give_back_a_quarter_of_the_way() -> None:
    """NEO has come from 0.45 to 0.05. Up to 0.15 the longer one is kept, if nobody vouches for the shares."""
    neo = candidate("neo", (0.3, 0.25, 0.25, 0.2), images=10_000)
    behind, further = candidate("dept+", (0.39, 0.21, 0.2, 0.2)), candidate("dept+", (0.41, 0.2, 0.2, 0.19))
    behind, further = (replace(one, images=10_000) for one in (behind, further))
    assert choose([neo, behind], EVEN, differ=False).kept == "dept+"
    assert choose([neo, further], EVEN, differ=False).kept == "neo"
    assert choose([neo, behind], replace(EVEN, declared=True), differ=False).kept == "neo"


def test_the_shares_that_fit_better_are_believed() -> None:
    """A source in which classes were rare by accident, and a target in which they are not, are too, or others are."""
    uneven, found = Prior((0.6, 0.3, 0.05, 0.05), "source", declared=False), candidate("neo", EVENED)
    assert shares_differ(found, uneven)
    assert plausible(found, uneven) == (EVEN, False)
    assert plausible(candidate("neo", (0.62, 0.28, 0.05, 0.05)), uneven) == (uneven, False)  # as in the source
    absent = candidate("neo", (0.05, 0.05, 0.45, 0.45))
    assert plausible(absent, uneven) == (uneven, True)
    said = Prior(uneven.shares, "source", declared=True)
    assert plausible(absent, said) == (said, False)


def test_recentred_shares_need_no_features() -> None:
    generator = torch.Generator().manual_seed(0)
    head, features = nn.Linear(5, 4), torch.randn(60, 5, generator=generator) + 2.0
    probabilities = head(features).softmax(dim=-1)
    slow = head(features - features.mean(dim=0)).argmax(dim=1)  # NEO's W(h - m) + b
    shares = [float((slow == label).double().mean()) for label in range(4)]
    assert recentred_shares(probabilities, head.bias) == pytest.approx(shares)
    lean = [float((probabilities.argmax(dim=1) == label).double().mean()) for label in range(4)]
    assert lean != pytest.approx(shares)


def test_recentred_shares_without_a_bias_and_with_certain_predictions() -> None:
    certain = torch.eye(4)[[0, 0, 1, 2]]
    assert recentred_shares(certain, None) == [0.5, 0.25, 0.25, 0.0]
