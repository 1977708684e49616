"""The linear classifier among the tensors of a checkpoint."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

NAMES = ("head", "heads", "fc", "classifier", "cls_classifier", "distillation_classifier", "head_dist", "linear",
         "linear_head")  # fmt: skip
"""what the last layer, or a module that holds it, is usually called"""


class Head(NamedTuple):
    """The classifier, or the reason why there is none."""

    weight: Tensor | None = None
    """(C, D)"""
    bias: Tensor | None = None
    """(C,), or None for a head without bias"""
    names: tuple[str, ...] = ()
    """the tensors it was made from"""
    missing: str = ""
    """why there is no head that can be used"""

    def tensors(self, module: str) -> dict[str, Tensor]:
        """Its tensors by name below a module."""
        named = {f"{module}.weight": self.weight, f"{module}.bias": self.bias}
        return {name: tensor for name, tensor in named.items() if tensor is not None}

    def layer(self) -> nn.Linear:
        """The classifier as a layer; without a bias of its own, with zeros."""
        assert self.weight is not None
        rows, width = self.weight.shape
        made = nn.Linear(width, rows)
        made.load_state_dict({"weight": self.weight, "bias": torch.zeros(rows) if self.bias is None else self.bias})
        return made


def find_head(tensors: dict[str, Tensor], width: int, called: tuple[str, ...] = ()) -> Head:
    """The head that reads `width` features.

    Args:
        tensors: everything that is not part of the backbone.
        called: its name must be one of these, if any are given.
    """
    layers = [name for name, tensor in tensors.items() if name.endswith("weight") and tensor.dim() == 2]
    if called:
        layers = [name for name in layers if name.split(".")[-2:-1] and name.split(".")[-2] in called]
        if not layers:
            return Head(missing=f"It has no linear layer called {called[0]}; what another one would read is not known.")
    usual = [name for name in layers if _module(name)]
    # A head may have any name if it is the only layer that reads the features.
    layers = usual or [name for name in layers if tensors[name].shape[1] == width]
    if not layers:
        return Head(missing="It has no classifier: no linear layer called head, fc or classifier.")
    if len(layers) > 1:
        return Head(missing=f"It has {len(layers)} linear layers that classify, {listed(layers)}; one is expected.")
    (name,) = layers
    reads = tensors[name].shape[1]
    if reads == 2 * width:
        return Head(
            missing=f"Its classifier ({name}) reads {reads} features, but the model gives out {width}. If it reads CLS "
            'beside the mean of the patches, as DINOv2\'s does, say so in `timm`: {"cls_and_mean": true}.'
        )
    if reads != width:
        return Head(missing=f"Its classifier ({name}) reads {reads} features, but the model gives out {width}.")
    names = (name, f"{name.removesuffix('weight')}bias")
    module = _module(name)
    if module and (others := [one for one in tensors if one.startswith(module) and one not in names]):
        return Head(missing=f"Its classifier has more than one linear layer: there is {listed(others)} too.")
    return Head(tensors[name], tensors.get(names[1]), names)


def _module(name: str) -> str:
    """The prefix of the outermost module that is called like a head; empty if there is none."""
    parts = name.split(".")[:-1]
    index = next((index for index, part in enumerate(parts) if part in NAMES), None)
    return "" if index is None else ".".join(parts[: index + 1]) + "."


def listed(names: list[str]) -> str:
    """The first three of them."""
    return ", ".join(names[:3]) + (" …" if len(names) > 3 else "")
