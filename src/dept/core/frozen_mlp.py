"""The MLP of a transformer block when its weights are frozen: same numbers, less memory.

Autograd keeps the hidden activations (B, N, 4 D) and, at the peak of the backward, holds two more tensors of that
size: the gradient after and before the GELU. With frozen weights neither is needed whole, so both are made in slices.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from timm.layers.mlp import Mlp
from torch import Tensor, nn

ROWS = 512  # tokens per slice: large enough for fast products, small enough for a cache


class _FrozenMlp(torch.autograd.Function):
    """fc2(gelu(fc1(x))) with gradients to x only."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor) -> Tensor:
        # Saved before the GELU: both what comes after it and its derivative follow from this one tensor.
        hidden = F.linear(x, w1, b1)
        ctx.save_for_backward(hidden, w1, w2)
        out = torch.empty_like(x, memory_format=torch.contiguous_format)
        for h, rows in zip(_slices(hidden), _slices(out), strict=True):
            torch.addmm(b2, F.gelu(h), w2.T, out=rows)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None, None]:
        hidden, w1, w2 = ctx.saved_tensors
        grad = grads[0].contiguous()
        into = torch.empty_like(grad)  # frozen weights want no gradient, so only x's is made, slice by slice
        for g, h, rows in zip(_slices(grad), _slices(hidden), _slices(into), strict=True):
            torch.mm(torch.ops.aten.gelu_backward(g @ w2, h), w1, out=rows)
        return into, None, None, None, None


def _slices(tokens: Tensor) -> tuple[Tensor, ...]:
    return torch.split(tokens.view(-1, tokens.shape[-1]), ROWS)


def mlp(module: Any, x: Tensor) -> Tensor:
    """The block's MLP on tokens x (B, N, D); by slices where that is exact and saves memory."""
    if not (torch.is_grad_enabled() and x.requires_grad and sliceable(module)):
        plain: Tensor = module(x)
        return plain
    fc1, fc2 = module.fc1, module.fc2
    out: Tensor = _FrozenMlp.apply(x, fc1.weight, fc1.bias, fc2.weight, fc2.bias)
    return out


def sliceable(module: Any) -> bool:
    """Whether the MLP is Linear, exact GELU, Linear with frozen weights, without dropout, bf16 or compilation."""
    return (
        type(module) is Mlp
        and isinstance(module.act, nn.GELU)
        and module.act.approximate == "none"
        and isinstance(module.norm, nn.Identity)
        and not (module.training and (module.drop1.p or module.drop2.p))
        and isinstance(module.fc1, nn.Linear)
        and module.fc1.bias is not None
        and module.fc2.bias is not None
        and not any(parameter.requires_grad for parameter in module.parameters())
        and not torch.is_autocast_enabled(module.fc1.weight.device.type)
        and not torch.compiler.is_compiling()
    )
