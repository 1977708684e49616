"""What every registered source-and-target method keeps. A new method is tested by being registered."""

from __future__ import annotations

import dataclasses
import inspect
import math
import sys
from typing import Any

import pytest
import torch
from torch import Tensor
from uda_support import make, paired_batch

from dept import methods
from dept.methods.base import Progress
from dept.methods.uda.base import PairedPasses, UDAMethod
from support import FixedPasses, moved, random_batch, same_bits, state_of, tiny_model, tiny_resnet

pytestmark = pytest.mark.parametrize("name", methods.available("uda"))


def steps(method: UDAMethod, numbers: range, *, begin: bool = True, size: int = 4) -> list[dict[str, float]]:
    """Some steps of an imaginary run of 6, with a refresh after each third."""
    passes = PairedPasses(FixedPasses(seed=1), FixedPasses(), torch.arange(10) % 3)
    if begin:
        method.begin(passes)
    terms = []
    for number in numbers:
        method.at(Progress(number + 500, 506, number // 3))  # late enough for reversed gradients to count
        terms.append(method.step(paired_batch(size, number)))
        if number % 3 == 2:
            method.refresh(passes, number // 3)
    return terms


def everything(method: UDAMethod) -> dict[str, Tensor]:
    own = {f"method.{name}": tensor.clone() for name, tensor in method.state_dict().items()}
    return own | {f"model.{name}": tensor for name, tensor in state_of(method.model).items()}


@pytest.mark.parametrize("backbone", [tiny_model, tiny_resnet])
def test_steps_are_finite_and_move_everything(name: str, backbone: Any) -> None:
    method = make(name, backbone())
    before, extra = state_of(method.model), state_of(method.extra)
    for terms in steps(method, range(3)):
        assert all(math.isfinite(value) for value in terms.values())
        if "step" not in type(method).__dict__:
            assert terms["loss"] == pytest.approx(sum(v for k, v in terms.items() if k != "loss"), abs=1e-4)
    changed = moved(before, method.model)
    assert {"head.weight", "head.bias"} <= changed and any(n.startswith("backbone.") for n in changed)
    parameters = {n for n, _ in method.extra.named_parameters()}
    assert parameters <= moved(extra, method.extra)
    if backbone is tiny_resnet:
        assert any(n.endswith("running_mean") for n in changed)


def test_model_keeps_its_tensors(name: str) -> None:
    method = make(name)
    assert set(method.model.state_dict()) == set(tiny_model().state_dict())
    counts = method.counts()
    own = sum(p.numel() for p in method.extra.parameters())
    assert counts["tunable_total"] == counts["tunable_model"] + own


@pytest.mark.parametrize("backbone", [tiny_model, tiny_resnet])
def test_state_round_trip_gives_the_same_next_steps(name: str, backbone: Any) -> None:
    first = make(name, backbone())
    steps(first, range(2))
    state = {key: tensor.clone() for key, tensor in first.state_dict().items()}
    second = make(name, backbone(), seed=99)
    second.load_state_dict(state)
    assert same_bits(first.state_dict(), second.state_dict())
    expected, terms = (steps(method, range(2, 5), begin=False) for method in (first, second))
    assert terms == expected
    assert same_bits(everything(first), everything(second))


def test_reset_and_seed(name: str) -> None:
    method = make(name, seed=3)
    initial = everything(method)
    first = steps(method, range(3))
    method.reset()
    assert same_bits(everything(method), initial)
    torch.manual_seed(999)  # the global generator must not matter
    assert steps(method, range(3)) == first
    assert steps(make(name, seed=3), range(3)) == first


def test_learning_rates(name: str) -> None:
    method = make(name)
    config = method.config
    assert method.optimizer is not None
    method.at(Progress(1000, 2000, 0))
    head, backbone, *own = [group["lr"] for group in method.optimizer.param_groups]
    assert head == pytest.approx(config.lr * (1 + 1000 * config.decay) ** -config.power)
    assert backbone == pytest.approx(config.backbone_scale * head)
    assert own == [head] * len(own)


def test_predict_uses_running_statistics_and_keeps_the_mode(name: str) -> None:
    method = make(name, tiny_resnet())
    before = everything(method)
    images = torch.randn(5, 3, 32, 32)
    logits = method.predict(images)
    assert torch.allclose(logits[:1], method.predict(images[:1]), atol=1e-5)
    assert method.model.training and same_bits(everything(method), before)


def test_an_unpaired_batch_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="source and target images together"):
        make(name).loss(random_batch("w"))


def test_card(name: str) -> None:
    kind = methods.get(name)
    assert kind.name == name and 10 < len(kind.summary) <= 120
    card = inspect.getdoc(sys.modules[kind.__module__]) or ""
    assert "Cost:" in card and "Fails when:" in card, "the module docstring is the method's card"
    with pytest.raises(dataclasses.FrozenInstanceError):
        kind.Config().lr = 1.0  # type: ignore[misc]
    for preset in kind.presets:
        assert isinstance(kind.preset(preset), kind.Config)
