"""What is exported: a graph from normalised images (B, channels, H, W) to logits (B, C), for any batch size B.

Prompts and head are constants of the graph, or further inputs of it: then one graph serves every domain.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from dept.core.adapter import Adapter
from dept.core.vit import AdaptedModel
from dept.errors import DeptError

LARGEST_DIFFERENCE = 1e-4
"""of the logits, relative to the largest of them if that is above 1"""
TRACED = 2  # images; a batch of one would be taken for a constant
CHECKED = 3  # images; not the number of the tracing

Tensors = dict[str, Tensor]


class Classifier(nn.Module):
    """The exported module: a model whose adapter, if there is one, is a plain dict of tensors."""

    def __init__(self, model: AdaptedModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor, adapter: Tensors | None = None) -> Tensor:
        """Logits (B, C) of images (B, channels, H, W)."""
        logits: Tensor = self.model(images, None if adapter is None else Adapter(adapter))
        return logits


@dataclass(frozen=True)
class Graph:
    """A module to export, with what a user of the file must know."""

    module: Classifier
    image: tuple[int, int, int]
    """channels, height and width"""
    meta: dict[str, Any]
    """goes into the file as JSON"""
    inputs: Tensors
    """prompts and head that are inputs, by name, with the values of the model itself; empty if they are constants"""

    @property
    def version(self) -> int:
        """A number of 31 bits for backbone and classes, in graph and adapters: they belong together if it is equal."""
        return model_version(self.meta["backbone_sha256"], self.meta["classes"])


def model_version(backbone_sha256: str, classes: Sequence[str]) -> int:
    """Of a backbone and its classes, in the integer that ONNX files and adapters of ONNX Runtime have for it."""
    text = json.dumps([backbone_sha256, *classes])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4]) >> 1


def trace(graph: Graph) -> ExportedProgram:
    """The module as operators. Shapes but the batch are fixed, and no branch is left."""
    arguments: tuple[Any, ...] = (torch.zeros(TRACED, *graph.image),)
    shapes: tuple[Any, ...] = ({0: Dim("batch")},)
    if graph.inputs:
        arguments, shapes = (*arguments, graph.inputs), (*shapes, dict.fromkeys(graph.inputs))
    try:
        with torch.no_grad():
            return torch.export.export(graph.module, arguments, dynamic_shapes=shapes, strict=False)
    except Exception as error:  # torch raises many types; all mean that this architecture cannot be traced
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise DeptError(f"torch.export cannot trace {graph.meta['arch']!r}: {reason}") from error


@torch.no_grad()
def check(graph: Graph, run: Callable[[Tensor, Tensors], Tensor], adapters: Iterable[Tensors]) -> float:
    """Largest difference between the logits of an exported graph and the model's; a DeptError if it is too large.

    Args:
        run: the exported graph: images and adapter -> logits.
        adapters: what to run it with; empty dicts if the graph takes none.
    """
    images = torch.randn(CHECKED, *graph.image, generator=torch.Generator().manual_seed(0))
    worst = 0.0
    for tensors in adapters:
        expected = graph.module(images, tensors or None)
        difference = float((run(images, tensors) - expected).abs().max())
        if not difference <= LARGEST_DIFFERENCE * max(1.0, float(expected.abs().max())):  # true for NaN too
            raise DeptError(
                f"The exported {graph.meta['arch']} is not the model: its logits differ by {difference:.1e} on random "
                f"images, at most {LARGEST_DIFFERENCE:.0e} is expected. Nothing was written. Try another version of "
                "torch, onnxscript or onnxruntime."
            )
        worst = max(worst, difference)
    return worst
