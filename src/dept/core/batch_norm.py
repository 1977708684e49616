"""Batch norm layers while a method adapts: which there are, and what their statistics follow."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm


def batch_norms(model: nn.Module) -> dict[str, _BatchNorm]:
    """Batch norm layers that keep running statistics, by name."""
    named = model.named_modules()
    return {name: module for name, module in named if isinstance(module, _BatchNorm) and module.track_running_stats}


@contextmanager
def training(layers: Iterable[nn.Module]) -> Iterator[None]:
    """The layers in training mode, and back to the mode they were in."""
    modes = [(layer, layer.training) for layer in layers]
    for layer, _ in modes:
        layer.train()
    try:
        yield
    finally:
        for layer, mode in modes:
            layer.train(mode)


@contextmanager
def untracked(layers: Iterable[_BatchNorm]) -> Iterator[None]:
    """Whatever passes through the layers leaves their running statistics as they are."""
    momenta = [(layer, layer.momentum) for layer in layers]
    for layer, _ in momenta:
        layer.momentum = 0.0
    try:
        yield
    finally:
        for layer, momentum in momenta:
            layer.momentum = momentum
