"""DeYO against its formulas: which rows are learned from, what each weighs, and how an object is destroyed."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from dept.core.losses import entropy
from dept.data.loader import Batch
from dept.methods.deyo import DeYO, shuffled_patches
from dept.models.model import Model
from support import moved, random_batch, same_bits, spread_predictions, state_of, tiny_config, tiny_model


@pytest.fixture
def model() -> Model:
    return spread_predictions(tiny_model(stages=0, prompts=0))


def deyo(model: Model, **changes: Any) -> DeYO:
    return DeYO(model, tiny_config(DeYO, **{"entropy_margin": 0.9, **changes}))  # type: ignore[arg-type]


def test_patches_move_as_wholes() -> None:
    """A 4 × 4 image of two by two patches, whose patches are numbered by hand."""
    image = torch.tensor([[0.0, 1, 10, 11], [2, 3, 12, 13], [20, 21, 30, 31], [22, 23, 32, 33]])[None, None]
    both = image.expand(2, 3, -1, -1)
    made = shuffled_patches(both, torch.tensor([[0, 1, 2, 3], [3, 0, 2, 1]]))
    assert torch.equal(made[0], both[0])
    assert made[1, 2].tolist() == [[30, 31, 0, 1], [32, 33, 2, 3], [20, 21, 10, 11], [22, 23, 12, 13]]


def test_a_side_that_is_not_divisible_is_resized_and_back() -> None:
    images = torch.randn(2, 3, 30, 33)
    order = torch.rand(2, 16).argsort(dim=1)
    made = shuffled_patches(images, order)
    small = torch.nn.functional.interpolate(images, size=[28, 32], mode="bilinear")
    assert made.shape == images.shape
    back = torch.nn.functional.interpolate(shuffled_patches(small, order), size=[30, 33], mode="bilinear")
    torch.testing.assert_close(made, back)


def test_margins_follow_the_number_of_classes() -> None:
    method = DeYO(tiny_model(1000, stages=0, prompts=0))
    assert method.margin == pytest.approx(0.5 * math.log(1000)) and method.weight_margin == pytest.approx(2.7631, 1e-4)
    assert {name.split(".")[2] for name in method.trained_names} == {"0", "1", "2"}  # of 4 blocks


def test_a_step_equals_the_formula_over_the_whole_batch(model: Model) -> None:
    """Rows, weights and gradient of one step of plain gradient descent, row by row."""
    method = deyo(model, momentum=0.0, lr=0.1)
    images = random_batch("t", 16).views[0]
    draws = torch.Generator().manual_seed(0)
    sure = [row for row in range(16) if float(entropy(model(images))[row].detach()) < method.margin]
    order = torch.rand(len(sure), 64, generator=draws).argsort(dim=1)
    total, count = torch.zeros(()), 0
    for place, row in enumerate(sure):
        p = model(images[row : row + 1]).softmax(dim=1)[0]
        with torch.no_grad():
            q = model(shuffled_patches(images[row : row + 1], order[place : place + 1])).softmax(dim=1)[0]
        label = int(p.argmax())
        plpd = float(p[label].detach() - q[label])
        if plpd > 0.2:
            h = -(p * p.log()).sum()
            total, count = total + (math.exp(method.weight_margin - float(h.detach())) + math.exp(plpd)) * h, count + 1
    assert 0 < count < len(sure) < 16
    names = method.trained_names
    gradients = torch.autograd.grad(total / count, [model.get_parameter(name) for name in names])
    expected = {n: model.get_parameter(n).detach() - 0.1 * g for n, g in zip(names, gradients, strict=True)}
    terms = method.step(Batch((images,), torch.arange(16)))
    assert terms["selected"] == count and terms["loss"] == pytest.approx(float(total.detach()) / count, rel=1e-4)
    for name, tensor in expected.items():
        torch.testing.assert_close(model.get_parameter(name).detach(), tensor, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("nobody", [{"entropy_margin": 1e-9}, {"least_drop": 1.0}])
def test_nobody_selected_nothing_moves(nobody: dict[str, float], model: Model) -> None:
    method, before = deyo(model, **nobody), state_of(model)
    assert method.step(random_batch("t", 8)) == {"loss": 0.0, "selected": 0.0}
    assert not moved(before, model)


def test_shuffles_are_drawn_from_the_methods_own_generator(model: Model) -> None:
    batch, ends = random_batch("t", 16), []
    for seed in (0, 0, 1):
        method = DeYO(model, tiny_config(DeYO, lr=0.1), seed=seed)  # type: ignore[arg-type]
        torch.manual_seed(len(ends))
        method.step(batch)
        ends.append({n: t.clone() for n, t in method.adapter().tensors.items()})
        method.reset()
    assert same_bits(ends[0], ends[1]) and not same_bits(ends[0], ends[2])


def test_the_backward_sees_selected_rows_only(model: Model) -> None:
    seen: list[int] = []
    model.backbone.patch_embed.register_forward_pre_hook(
        lambda module, args: seen.append(len(args[0])) if torch.is_grad_enabled() else None
    )
    selected = int(deyo(model).step(random_batch("t", 16))["selected"])
    assert 0 < selected < 16 and seen == [selected]
