from __future__ import annotations

import pytest

from dept.methods.full import Full
from support import PROJECTION, FixedPasses, moved, random_batch, state_of, tiny_model


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
