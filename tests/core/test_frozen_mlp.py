from __future__ import annotations

import pytest
import torch
from timm.layers.mlp import Mlp
from torch import Tensor, nn

from dept.core import frozen_mlp
from dept.core.frozen_mlp import mlp, sliceable
from dept.core.select import freeze_except, select
from support import tiny_model


@pytest.fixture
def module() -> Mlp:
    torch.manual_seed(0)
    made = Mlp(8, 32).double()
    return made.requires_grad_(False)


@pytest.mark.parametrize("rows", [3, 5, 512])
def test_values_and_gradients_are_autograds(module: Mlp, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frozen_mlp, "ROWS", rows)
    x = torch.randn(2, 7, 8, dtype=torch.float64, requires_grad=True)
    upstream = torch.randn(2, 7, 8, dtype=torch.float64)
    assert sliceable(module)
    ours, expected = mlp(module, x), module(x)
    torch.testing.assert_close(ours, expected)
    (a,), (b,) = (torch.autograd.grad(y, x, upstream) for y in (ours, expected))
    torch.testing.assert_close(a, b)


def test_second_look_by_finite_differences(module: Mlp) -> None:
    x = torch.randn(1, 3, 8, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda t: mlp(module, t), (x,))


def test_expanded_and_transposed_gradients(module: Mlp) -> None:
    """The gradient that arrives need not be contiguous."""
    x = torch.randn(2, 4, 8, dtype=torch.float64, requires_grad=True)
    mlp(module, x).sum().backward()
    ours, x.grad = x.grad, None
    module(x).sum().backward()
    torch.testing.assert_close(ours, x.grad)


def test_what_is_left_to_autograd(module: Mlp) -> None:
    assert not sliceable(Mlp(8, 32))  # weights are trained
    assert not sliceable(Mlp(8, 32, act_layer=nn.ReLU).requires_grad_(False))
    assert not sliceable(Mlp(8, 32, drop=0.1).requires_grad_(False).train())
    assert sliceable(Mlp(8, 32, drop=0.1).requires_grad_(False).eval())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert not sliceable(module)


def test_tuning_norms_only_gives_timms_gradients() -> None:
    """A plain ViT whose LayerNorms are tuned takes the saving path; its gradients are those of timm's forward."""
    model = tiny_model(4, stages=0, prompts=0).double()
    images = torch.randn(2, 3, 32, 32, dtype=torch.float64)

    def gradients(names: list[str]) -> tuple[Tensor, list[Tensor]]:
        logits = model(images)
        return logits, list(torch.autograd.grad(logits.square().sum(), [model.get_parameter(n) for n in names]))

    names = select(model, "norm")
    expected_logits, expected = gradients(names)  # everything requires a gradient: timm's own forward
    freeze_except(model, names)
    logits, ours = gradients(names)
    torch.testing.assert_close(logits, expected_logits)
    for a, b in zip(ours, expected, strict=True):
        torch.testing.assert_close(a, b)
