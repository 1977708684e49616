"""Multiply-accumulates of a tuning step: the lower bound that a measured time is compared with.

Counted: the matrix products of patch embedding, attention and MLP. Not counted: LayerNorm, softmax, GELU, head,
and what flash attention recomputes in its backward.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Shape:
    """A ViT: layers, width, tokens (CLS included), numbers of one image's patches, MLP ratio."""

    layers: int = 12
    width: int = 768
    tokens: int = 197
    patch_inputs: int = 768
    mlp_ratio: int = 4


def block(shape: Shape, *, queries: float, keys: float, projected: float) -> float:
    """Forward MACs of a block: `queries` rows go on, `keys` rows are attended, K and V computed for `projected`."""
    dense = queries * (2 + 2 * shape.mlp_ratio) * shape.width**2 + projected * 2 * shape.width**2
    return dense + 2 * queries * keys * shape.width


def plain_forward(shape: Shape) -> float:
    """timm's forward of one image."""
    n = shape.tokens
    embed = (n - 1) * shape.patch_inputs * shape.width
    return embed + shape.layers * block(shape, queries=n, keys=n, projected=n)


def prompted_forward(shape: Shape, stages: int, prompts: int) -> float:
    """The trimmed forward of one image, without read-out of aggregated prompts; batch-shared work counts as 0."""
    n, p, per_stage = shape.tokens, prompts, shape.layers // stages
    total = float((n - 1) * shape.patch_inputs * shape.width)
    for layer in range(shape.layers):
        first, last = layer % per_stage == 0, layer % per_stage == per_stage - 1
        rows = n if last else n + p
        if layer == shape.layers - 1:
            rows = 1
        total += block(shape, queries=rows, keys=n + p, projected=n if first else n + p)
    return total


def step_bound(column: str, shape: Shape, stages: int = 0, prompts: int = 0, *, checkpoint: bool = False) -> float:
    """Least time of a tuning step as a ratio to full tuning (forward, activation and weight gradients)."""
    full = 3 * plain_forward(shape)
    if column in ("Full", "Feature"):
        return 1.0
    if column == "LN":
        return 2 * plain_forward(shape) / full  # no weight gradients
    return (3 if checkpoint else 2) * prompted_forward(shape, stages, prompts) / full


def inference_bound(shape: Shape, stages: int, prompts: int) -> float:
    """Least time of a prompted forward as a ratio to timm's."""
    return prompted_forward(shape, stages, prompts) / plain_forward(shape)
