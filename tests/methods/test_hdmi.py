"""HDMI against its formula, image by image."""

from __future__ import annotations

import math

import pytest
import torch

from dept.methods.hdmi import HDMI
from dept.models.model import Model
from support import moved, random_batch, spread_predictions, state_of, teach, tiny_model


@pytest.fixture
def taught() -> Model:
    """A model of two hypotheses that do not agree."""
    return teach(spread_predictions(tiny_model()), "hypothesis")


def probabilities(rows: torch.Tensor) -> list[list[float]]:
    return rows.softmax(dim=1).tolist()


def test_loss_is_that_of_the_slow_formula(taught: Model) -> None:
    """E_h[H(h(x)) - H(mean)] + λ E_{i≠j}[-Σ_c h_i log h_j], both orders of the pair."""
    batch, method = random_batch("w", 5), HDMI(taught, HDMI.Config(w_disparity=0.7))
    assert taught.auxiliary is not None
    with torch.no_grad():
        features = taught.read(batch.views[0]).features
        said = [probabilities(taught.head(features)), probabilities(taught.auxiliary(features))]
    each = [-sum(p * math.log(p) for row in rows for p in row) / 5 for rows in said]
    means = [[sum(column) / 5 for column in zip(*rows, strict=True)] for rows in said]
    spread = [sum(p * math.log(p) for p in mean) for mean in means]
    crossed = [
        -sum(p * math.log(q) for a, b in zip(said[i], said[1 - i], strict=True) for p, q in zip(a, b, strict=True)) / 5
        for i in (0, 1)
    ]
    terms = {name: float(term.detach()) for name, term in method.loss(batch).items()}
    assert terms == pytest.approx(
        {"entropy": sum(each) / 2, "class_diversity": sum(spread) / 2, "disparity": 0.7 * sum(crossed) / 2}, abs=1e-3
    )
    assert abs(crossed[0] - crossed[1]) > 0.05  # so that taking one order only would show


def test_both_classifiers_stay(taught: Model) -> None:
    before = state_of(taught)
    method = HDMI(taught)
    method.step(random_batch("w"))
    names = moved(before, taught)
    assert {"prompts", "backbone.patch_embed.proj.weight"} <= names
    assert not any(name.startswith(("head.", "auxiliary.")) for name in names)
    assert HDMI(taught, HDMI.Config(tune="prompts")).trained_names == ["prompts"]


def test_steps_bring_the_hypotheses_together(taught: Model) -> None:
    method, batch = HDMI(taught, HDMI.Config(lr=1e-3, w_disparity=5.0)), random_batch("w", 16)
    terms = [method.step(batch)["disparity"] for _ in range(30)]
    assert terms[-1] < 0.8 * terms[0]


def test_without_a_second_classifier_a_sentence() -> None:
    with pytest.raises(ValueError, match="aux=hypothesis"):
        HDMI(teach(tiny_model(), "rotation"))
