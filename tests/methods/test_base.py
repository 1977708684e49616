from __future__ import annotations

import pytest
import torch

from dept import methods
from dept.methods.base import Progress, clip_each, part, prefixed
from dept.methods.tent import Tent
from support import tiny_model


def test_each_tensor_is_clipped_alone() -> None:
    large, small, unused = (torch.zeros(2, requires_grad=True) for _ in range(3))
    large.grad, small.grad = torch.tensor([3.0, 4.0]), torch.tensor([0.18, 0.24])
    clip_each([large, small, unused], 1.0)
    assert torch.allclose(large.grad, torch.tensor([0.6, 0.8]), atol=1e-5)
    assert torch.equal(small.grad, torch.tensor([0.18, 0.24]))
    assert unused.grad is None


def test_prefixes_are_inverse() -> None:
    state = {"a": torch.zeros(1), "b.c": torch.ones(1)}
    assert part(prefixed("x", state) | {"xy.a": torch.ones(1)}, "x").keys() == state.keys()


def test_registry() -> None:
    assert {"dept", "source", "tent"} <= set(methods.available())
    assert methods.available() == sorted(methods.available())
    with pytest.raises(ValueError, match=r"There is no method 'depth'; choose from .*dept"):
        methods.get("depth")


def test_epochs_grow_as_images_shrink() -> None:
    config = Tent.Config(epochs=15)
    assert [Tent.scaled(config, ratio).epochs for ratio in (1.0, 0.5, 0.1, 0.01)] == [15, 30, 150, 1500]


def test_schedule_constant_by_default() -> None:
    method = Tent(tiny_model())
    assert [method.lr_scale(Progress(step, 10, 0)) for step in (0, 5, 9)] == [1.0, 1.0, 1.0]
