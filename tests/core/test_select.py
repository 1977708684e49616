from __future__ import annotations

import pytest
import torch

from dept.core.select import count, freeze_except, select
from dept.models.model import Model, create_model
from support import tiny_model


def vit_base(classes: int, stages: int) -> Model:
    """ViT-B/16 with 50 prompts per stage, without memory for it."""
    with torch.device("meta"):
        return create_model("vit_base_patch16_224", classes, stages=stages, prompts=50)


@pytest.mark.parametrize(("stages", "classes", "expected"), [
    (1, 12, 47_628), (4, 12, 162_828), (12, 12, 470_028), (4, 126, 250_494),
])  # fmt: skip
def test_counts_of_the_paper(stages: int, classes: int, expected: int) -> None:
    model = vit_base(classes, stages)
    assert count(model, select(model, "prompts", "head")) == expected


def test_counts_of_norms_and_projections() -> None:
    model = vit_base(12, 4)
    assert count(model, select(model, "norm")) == 38_400
    model.add_projections(hidden=2048, bottleneck=256, out=2048)
    assert len(model.projections) == 4
    assert sum(p.numel() for p in model.projections[0].parameters() if p.requires_grad) == 2_623_744


def test_groups_are_disjoint_where_they_should_be() -> None:
    model = tiny_model()
    model.add_projections(hidden=8, bottleneck=4, out=8)
    names = {n for n, _ in model.named_parameters() if not n.startswith("projections.")}
    prompts, head, backbone = ({*select(model, g)} for g in ("prompts", "head", "backbone"))
    assert prompts == {"prompts"} and head == {"head.weight", "head.bias"}
    assert prompts | head | backbone == names == {*select(model, "all")}
    assert {*select(model, "encoder")} == backbone | prompts
    norm = select(model, "norm")
    assert len(norm) == 2 * (2 * 4 + 1) and {*norm} < backbone and all("norm" in name for name in norm)
    assert select(model, "head", "prompts", "head") == ["prompts", "head.weight", "head.bias"]


def test_batch_norms_count_as_norms() -> None:
    model = create_model("resnet10t", 3)
    assert "backbone.layer1.0.bn1.weight" in select(model, "norm")


def test_unknown_group_is_refused() -> None:
    with pytest.raises(ValueError, match="Unknown parameter group 'bias'; choose from prompts, head"):
        select(tiny_model(), "bias")


def test_freeze_except() -> None:
    model = tiny_model()
    model.add_projections(hidden=8, bottleneck=4, out=8)
    freeze_except(model, ["prompts"])
    free = {name for name, p in model.named_parameters() if p.requires_grad}
    assert {name for name in free if not name.startswith("projections.")} == {"prompts"}
    assert "projections.0.mlp.0.weight" in free
    assert "projections.0.prototypes.parametrizations.weight.original0" not in free
