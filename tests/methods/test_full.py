from __future__ import annotations

from dataclasses import replace

import pytest

from dept.methods.dept import DePT
from dept.methods.full import Full
from support import PROJECTION, FixedPasses, moved, random_batch, state_of, tiny_model


def test_the_released_form_has_one_rate_for_everything() -> None:
    for changes, expected in (({}, 5e-3), ({"lr": 1e-3}, 1e-3)):
        config = replace(Full.preset("official"), **PROJECTION, **changes)  # type: ignore[arg-type]
        assert {group.lr for group in Full(tiny_model(), config).groups} == {expected}
    assert set(Full.presets) == set(DePT.presets) and DePT.presets["official"] == {}


@pytest.mark.parametrize("stages", [0, 2])
def test_everything_moves_and_the_backbone_more_slowly(stages: int) -> None:
    model = tiny_model(stages=stages, prompts=3 if stages else 0)
    method = Full(model, Full.Config(**PROJECTION))  # type: ignore[arg-type]
    before = state_of(model)
    method.begin(FixedPasses(10, 4))
    method.step(random_batch("wss"))
    parameters = {n for n, p in model.named_parameters() if p.requires_grad}
    assert moved(before, model) == parameters
    rates = {name: group.lr for group in method.groups for name in group.names}
    assert rates["backbone.norm.weight"] == 2e-4 and rates["head.weight"] == 5e-3
    assert "backbone.norm.weight" in method.adapter().tensors
    assert Full.preset("paper").tune == "all"  # type: ignore[attr-defined]
