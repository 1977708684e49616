"""Models over one set of backbone tensors: nothing is copied until a tensor is about to change.

A process that runs many adaptations in turn reads the backbone once. Every run gets a `borrowed` copy of the model. Its
modules, prompts and heads are its own, and its backbone tensors share their memory with the original. Whoever is going
to write into tensors calls `own` first.
"""

from __future__ import annotations

from collections.abc import Iterable
from copy import deepcopy
from typing import TypeVar

import torch
from torch import Tensor, nn

Module = TypeVar("Module", bound=nn.Module)
_MARK = "dept_borrowed"  # on the tensor, because models that are made from a borrowed one carry its tensors on


def borrowed(model: Module, part: nn.Module) -> Module:
    """A copy of the model that shares the memory of the tensors of one part, its backbone."""
    held = [*part.parameters(), *part.buffers()]
    return deepcopy(model, {id(tensor): _alias(tensor) for tensor in held})


def _alias(tensor: Tensor) -> Tensor:
    """Another tensor over the same memory, with its own gradient and its own place to be moved to."""
    plain = tensor.detach()
    alias = nn.Parameter(plain, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else plain
    setattr(alias, _MARK, True)
    return alias


@torch.no_grad()
def own(tensors: Iterable[Tensor]) -> None:
    """Give borrowed tensors memory of their own. Other tensors are left as they are."""
    for tensor in tensors:
        if getattr(tensor, _MARK, False):
            tensor.data = tensor.data.clone()
            setattr(tensor, _MARK, False)
