"""What prompts look at: the exact attention weights of the last layer of every stage.

The model itself never forms these weights (its attention is fused), so the stages are run here once more, with all
tokens, in the order [prefix, patches, prompts] of `core.trimming`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dept.core.blocks import call, project, rotations
from dept.core.vit import AdaptedModel


@dataclass(frozen=True)
class StageAttention:
    """Weights (B, heads, N + P, N + P) of a stage's last layer; rows are queries, rows sum to one.

    Tokens are `prefix` leading ones (CLS, registers), then the patches, then `prompts` prompts.
    """

    weights: Tensor
    prefix: int
    prompts: int

    @property
    def prompt_maps(self) -> Tensor:
        """(B, P, patches): mean over heads of what each prompt gives to each patch."""
        return self.weights[:, :, -self.prompts :, self.prefix : -self.prompts].mean(dim=1)

    def shares(self) -> dict[str, float]:
        """Mean share of the prompts' attention on each kind of token, and of CLS's on prompts."""
        mean = self.weights.mean(dim=(0, 1))
        rows = mean[-self.prompts :]
        return {
            "patches": float(rows[:, self.prefix : -self.prompts].sum(dim=1).mean()),
            "prefix": float(rows[:, : self.prefix].sum(dim=1).mean()),
            "prompts": float(rows[:, -self.prompts :].sum(dim=1).mean()),
            "cls_to_prompts": float(mean[0, -self.prompts :].sum()),
        }


@torch.no_grad()
def prompt_attention(model: AdaptedModel, images: Tensor) -> list[StageAttention]:
    """Attention in the last layer of every stage, for normalised images (B, channels, H, W)."""
    if model.prompts is None:
        return []
    vit: Any = model.backbone
    x, rope = model.embed(images)
    plain, count = x.shape[1], model.prompts_per_stage
    layers = len(vit.blocks) // model.stages
    found = []
    for index, (block, turn) in enumerate(zip(vit.blocks, rotations(vit, rope, count), strict=True)):
        stage, layer = divmod(index, layers)
        if layer == 0:
            x = torch.cat([x[:, :plain], model.prompts[stage].expand(len(x), -1, -1)], dim=1)
        if layer == layers - 1:
            found.append(StageAttention(attention_weights(block, x, turn), int(vit.num_prefix_tokens), count))
        x = call(block, x, turn)
    return found


def attention_weights(block: Any, x: Tensor, rope: Tensor | None = None) -> Tensor:
    """softmax(q kᵀ / √d) of a timm block over tokens x (B, N, D) -> (B, heads, N, N).

    `rope` turns all tokens after the prefix (see `core.blocks.rotations`).
    """
    normed = block.norm1(x)
    q, k = project(block.attn, normed, "q", rope), project(block.attn, normed, "k", rope)
    weights: Tensor = (q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5).softmax(dim=-1)
    return weights


def patch_grid(model: AdaptedModel) -> tuple[int, int]:
    """Rows and columns of patches in an image."""
    vit: Any = model.backbone
    rows, columns = vit.patch_embed.grid_size
    return int(rows), int(columns)


def most_focused(maps: Tensor) -> int:
    """Of maps (B, P, patches), the prompt with the lowest entropy over the patches, on average over the images."""
    shares = maps / maps.sum(dim=-1, keepdim=True).clamp_min(1e-12)
    return int(torch.special.entr(shares).sum(dim=-1).mean(dim=0).argmin())
