"""The layers of a prompted ViT, computed only as far as somebody reads the result.

A ViT of L layers is cut into M stages. P prompts enter a stage's first layer and leave after its last.
Attention does not see the order of tokens, so the sequence [prefix, prompts, patches] is kept as
[prefix, patches, prompts]: dropping the prompts is then a slice. What is never read is never computed:

* first layer of a stage: prompts are the same for every sample, so LayerNorm, Q, K and V once per batch;
* last layer of a stage: only K and V of the prompts, unless their output (the aggregated prompts) is asked for;
* last layer of all: only the queries of tokens that are pooled (CLS, usually) or asked for.
"""

from __future__ import annotations

from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from dept.core.blocks import attend, call, is_block, project, scaled
from dept.core.frozen_mlp import mlp, sliceable

Prefix: TypeAlias = tuple[Tensor, Tensor, Tensor]
"""Queries, keys, values of prompts, each (1 or B, heads, P, D / heads)."""


def project_prompts(block: Any, prompts: Tensor) -> Prefix:
    """Queries, keys and values of prompts (1 or B, P, D) in a block. Prompts have no position: nothing turns them."""
    normed = block.norm1(prompts)
    return project(block.attn, normed, "q"), project(block.attn, normed, "k"), project(block.attn, normed, "v")


def run_stage(
    blocks: list[Any],
    ropes: list[Tensor | None],
    x: Tensor,
    prompts: Tensor,
    prefix: Prefix,
    *,
    read: bool,
    queries: int | None,
    sliced: bool,
) -> Tensor:
    """Layers of one stage over tokens x (B, N, D) and prompts (1 or B, P, D) -> (B, N or queries [+ P], D).

    Prompts are in the result only if `read`; `queries` limits the other rows to the first ones. `ropes` are the
    layers' `core.blocks.rotations`.
    """
    count = prompts.shape[-2]
    for index, (block, rope) in enumerate(zip(blocks, ropes, strict=True)):
        first, last = index == 0, index == len(blocks) - 1
        if not first and not last:
            x = whole_block(block, x, rope, sliced)  # prompts are ordinary tokens here
            continue
        if first:  # the prompts still stand apart: their projections are shared by the batch, and kept while frozen
            others, z = x, prompts
        else:
            others, z = x[:, :-count], x[:, -count:]
            prefix = project_prompts(block, z)
        keep = others.shape[1] if queries is None or not last else queries
        x = _trimmed_block(block, rope, others, z, prefix, keep=keep, keep_prompts=read or not last, sliced=sliced)
    return x


def _trimmed_block(
    block: Any,
    rope: Tensor | None,
    x: Tensor,
    z: Tensor,
    prefix: Prefix,
    *,
    keep: int,
    keep_prompts: bool,
    sliced: bool,
) -> Tensor:
    """timm's pre-norm block over [x, z], computed only for the first `keep` rows of x and, if asked, for z.

    x (B, N, D); z (1 or B, P, D) with its projections `prefix`. Keys and values of all tokens are needed, queries
    only of rows that go on.
    """
    attn, size = block.attn, x.shape[0]
    normed = block.norm1(x)
    # Only these rows are asked for a query: a row that nobody reads needs no attention, projection or MLP.
    rows = x[:, :keep]
    q_z, k_z, v_z = (t.expand(size, -1, -1, -1) for t in prefix)
    # Each by itself: a view into one joint tensor would keep all three alive, forward and backward.
    q, k = project(attn, normed[:, :keep], "q", rope), project(attn, normed, "k", rope)
    k = torch.cat([k, k_z], dim=2)
    v = project(attn, normed, "v")
    del normed
    v = torch.cat([v, v_z], dim=2)
    if keep_prompts:
        q = torch.cat([q, q_z], dim=2)
        rows = torch.cat([rows, z.expand(size, -1, -1)], dim=1)
    mixed = attend(attn, q, k, v)
    scale_norm = getattr(attn, "norm", None)  # only newer timm releases have it
    mixed = mixed if scale_norm is None else scale_norm(mixed)
    rows = rows + scaled(block, 1, attn.proj_drop(attn.proj(mixed)))
    return _mlp_half(block, rows, sliced)


def is_sliceable(block: nn.Module) -> bool:
    """Whether this is one of timm's pre-norm blocks, with an MLP that can be run in slices."""
    return is_block(block) and sliceable(block.mlp)


def _mlp_half(block: Any, x: Tensor, sliced: bool) -> Tensor:
    """The second half of timm's block; `sliced` saves memory where the MLP is frozen."""
    run = partial(mlp, block.mlp) if sliced else block.mlp
    return x + scaled(block, 2, run(block.norm2(x)))


def whole_block(block: Any, x: Tensor, rope: Tensor | None, sliced: bool = True) -> Tensor:
    """timm's block over all tokens."""
    return _mlp_half(block, x + scaled(block, 1, call(block.attn, block.norm1(x), rope)), sliced)
