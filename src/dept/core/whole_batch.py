"""What depends on the whole batch inside a network, where each process runs some of its rows.

Batch norm in training mode takes statistics over all rows. Dropout and stochastic depth draw for all rows, so that a
row is dropped or kept as it would be in one process.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from dept.core import collective


def whole_batch(network: nn.Module, count: int) -> AbstractContextManager[Any]:
    """Inside, the network may be run on `own_rows` of a batch of `count` as if it saw all of it."""
    shared = 1 < collective.size() <= count
    return WholeBatch(count) if shared and any(m.training for m in network.modules()) else nullcontext()


class WholeBatch(TorchFunctionMode):
    """Takes the place of the three functions of torch that are not computed row by row."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.count = count
        self.replaced: dict[Any, Callable[..., Any]] = {
            F.batch_norm: self.batch_norm,
            F.dropout: self.dropout,
            torch.Tensor.bernoulli_: self.bernoulli_,  # how stochastic depth draws
        }

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return self.replaced.get(func, func)(*args, **(kwargs or {}))

    def bernoulli_(self, own: Tensor, p: float = 0.5) -> Tensor:
        """Draws for all rows, of which this process keeps its own (n, …)."""
        drawn = own.new_empty(self.count, *own.shape[1:]).bernoulli_(p)
        return own.copy_(collective.own_rows(drawn))

    def dropout(self, x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
        """`F.dropout` of own rows (n, …)."""
        if not training or p in (0.0, 1.0):
            return F.dropout(x, p, training, inplace)
        return x * self.bernoulli_(torch.empty_like(x), 1 - p).div_(1 - p)

    def batch_norm(
        self,
        x: Tensor,
        running_mean: Tensor | None,
        running_var: Tensor | None,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        training: bool = False,
        momentum: float = 0.1,
        eps: float = 1e-5,
    ) -> Tensor:
        """`F.batch_norm` of own rows (n, C, …), normalised by the statistics of all."""
        if not training:
            return F.batch_norm(x, running_mean, running_var, weight, bias, False, momentum, eps)
        over = [axis for axis in range(x.dim()) if axis != 1]
        shape = [-1 if axis == 1 else 1 for axis in range(x.dim())]
        number = self.count * x[0, 0].numel()  # values per channel
        mean = collective.sum_over_processes(x.sum(dim=over)) / number
        centred = x - mean.view(shape)
        # About the mean of all rows: the difference of two large sums would lose digits.
        variance = collective.sum_over_processes(centred.square().sum(dim=over)) / number
        if running_mean is not None and running_var is not None:
            with torch.no_grad():
                running_mean.lerp_(mean, momentum)
                running_var.lerp_(variance * (number / max(number - 1, 1)), momentum)
        scale = (variance + eps).rsqrt() * (1.0 if weight is None else weight)
        normalised = centred * scale.view(shape)
        return normalised if bias is None else normalised + bias.view(shape)
