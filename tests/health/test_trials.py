"""Ways to prepare images that are tried, on models that know what is right."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from dept.data.views import Preprocess
from dept.health.trials import NORMALISATIONS, TRIED, better_prepared, clearly_less, trials
from support import scenes

HALF = Preprocess()
Predict = Callable[[Tensor], Tensor]


def certain_where(right: Callable[[Tensor], Tensor], certain: float = 0.95) -> Predict:
    """A model of two classes that is certain of the images (B,) for which something holds."""

    def predict(prepared: Tensor) -> Tensor:
        sure = torch.where(right(prepared), certain, 0.6)
        return torch.stack([sure, 1 - sure], dim=1)

    return predict


def reddish(prepared: Tensor) -> Tensor:
    """More red than blue, and not too much green, as in `pixels` but not in their negatives."""
    red, green, blue = prepared.mean(dim=(2, 3)).unbind(dim=1)
    return (red > blue) & (green < 0)


def pixels(red: float, blue: float) -> Tensor:
    made = scenes(TRIED) * 0.2
    return made + torch.tensor([red, 0.3, blue]).view(1, 3, 1, 1)


def test_channels_in_the_wrong_order() -> None:
    assert better_prepared(certain_where(reddish), pixels(0.6, 0.1), HALF, 2) is None
    found = better_prepared(certain_where(reddish), pixels(0.1, 0.6), HALF, 2)
    assert found is not None and (found.check, found.level) == ("channel order", "warning")
    assert better_prepared(certain_where(reddish), pixels(0.1, 0.6)[:9], HALF, 2) is None  # too few to tell
    assert better_prepared(certain_where(reddish, 0.75), pixels(0.1, 0.6), HALF, 2) is None  # it hardly knows them
    assert "with red and blue swapped: mean entropy 0.20 instead of 0.67, on 64 images" in found.found


def test_negatives_and_normalisation() -> None:
    grey = scenes(TRIED).mean(dim=1, keepdim=True) * 0.1
    one = Preprocess(mean=(0.5,), std=(0.5,))
    found = better_prepared(certain_where(lambda x: x.mean(dim=(1, 2, 3)) > 0), grey, one, 2)
    assert found is not None and found.check == "negatives"
    shifted = certain_where(lambda x: x.mean(dim=(1, 2, 3)).abs() < 0.2)
    found = better_prepared(shifted, torch.full((TRIED, 3, 8, 8), 0.5), Preprocess(mean=(0.0,) * 3, std=(1.0,) * 3), 2)
    assert found is not None and found.check == "normalisation" and "dept convert" in found.advice


@pytest.mark.parametrize("normalisation", NORMALISATIONS)
def test_its_own_normalisation_is_not_tried(normalisation: tuple[tuple[float, ...], tuple[float, ...]]) -> None:
    ways = [one.way for one in trials(Preprocess(mean=normalisation[0], std=normalisation[1]))]
    assert len(ways) == 4 and f"with mean {normalisation[0]} and std {normalisation[1]}" not in ways
    assert not any("red" in one.way for one in trials(Preprocess(mean=(0.5,), std=(0.5,))))


def test_chance_and_small_differences_do_not_count() -> None:
    now = torch.linspace(0.5, 1.5, 64)
    assert clearly_less(now, now * 0.8) and not clearly_less(now, now * 0.95)
    noise = torch.randn(64, generator=torch.Generator().manual_seed(0))
    assert not clearly_less(now, now * 0.85 + noise)
