"""What the prompts look at: exact attention weights in the last layer of every stage, and the section that shows them.

The model itself never forms these weights because its attention is fused. So the stages are run here once more, with
all tokens, in the order [prefix, patches, prompts] of `core.vit`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dept.core.vit import project
from dept.models.model import Model
from dept.report import pictures
from dept.report.blocks import Gallery, Picture, Section, Table, TableCell
from dept.report.measure import Measured
from dept.report.summaries import changes

_STAGES = 4  # shown at most
_IMAGES = 3


@dataclass(frozen=True)
class StageAttention:
    """Weights (B, heads, N + P, N + P) of a stage's last layer. Rows are queries and sum to one.

    The tokens are `prefix` leading ones (CLS, registers), then the patches, then `prompts` prompts.
    """

    weights: Tensor
    prefix: int
    prompts: int

    @property
    def prompt_maps(self) -> Tensor:
        """(B, P, patches): attention of each prompt on each patch, mean over heads."""
        return self.weights[:, :, -self.prompts :, self.prefix : -self.prompts].mean(dim=1)

    def shares(self) -> dict[str, float]:
        """Mean share of the prompts' attention on each kind of token, and of the attention of CLS on prompts."""
        mean = self.weights.mean(dim=(0, 1))
        rows = mean[-self.prompts :]
        return {
            "patches": float(rows[:, self.prefix : -self.prompts].sum(dim=1).mean()),
            "prefix": float(rows[:, : self.prefix].sum(dim=1).mean()),
            "prompts": float(rows[:, -self.prompts :].sum(dim=1).mean()),
            "cls_to_prompts": float(mean[0, -self.prompts :].sum()),
        }


@torch.no_grad()
def prompt_attention(model: Model, images: Tensor) -> list[StageAttention]:
    """Attention in the last layer of every stage, for normalised images (B, channels, H, W)."""
    if model.prompts is None:
        return []
    vit: Any = model.backbone
    x = model.embed(images).tokens
    plain, count = x.shape[1], model.prompts_per_stage
    layers = len(vit.blocks) // model.stages
    found = []
    for stage, prompts in enumerate(model.prompts):
        x = torch.cat([x[:, :plain], prompts.expand(len(x), -1, -1)], dim=1)
        for block in vit.blocks[stage * layers : (stage + 1) * layers - 1]:
            x = block(x)
        last = vit.blocks[(stage + 1) * layers - 1]
        found.append(StageAttention(attention_weights(last, x), int(vit.num_prefix_tokens), count))
        x = last(x)
    return found


def attention_weights(block: Any, x: Tensor) -> Tensor:
    """softmax(q kᵀ / √d) of a timm block over tokens x (B, N, D) -> (B, heads, N, N)."""
    normed = block.norm1(x)
    q, k = project(block.attn, normed, "q"), project(block.attn, normed, "k")
    weights: Tensor = (q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5).softmax(dim=-1)
    return weights


def most_focused(maps: Tensor) -> int:
    """The prompt in maps (B, P, patches) with the lowest entropy over the patches, mean over the images."""
    shares = maps / maps.sum(dim=-1, keepdim=True).clamp_min(1e-12)
    return int(torch.special.entr(shares).sum(dim=-1).mean(dim=0).argmin())


def attention_section(measured: Measured | None, missing: str) -> Section:
    """What the prompts of each stage look at, on a few images."""
    key, title = "attention", "What the prompts look at"
    if measured is None:
        return Section(key, title, missing=missing)
    if measured.model.prompts is None:
        return Section(key, title, missing="This model has no prompts.")
    images = _examples(measured)
    found = prompt_attention(measured.model, measured.batch(images))
    last, count = len(found) - 1, min(_STAGES, len(found))
    numbers = sorted({round(i * last / max(1, count - 1)) for i in range(count)})  # evenly spread over the stages
    stages = {number + 1: found[number] for number in numbers}
    galleries = []
    for row, index in enumerate(images):
        label = measured.classes[int(measured.after.predicted[index])]
        heading = f"{measured.images.paths[index].name}, predicted {label}"
        galleries.append(Gallery(heading, _heat_maps(measured, index, row, stages), maps=True))
    lead = (
        "Attention of the prompts on the patches in the last layer of a stage, mean over heads. Each map is scaled "
        "from its own minimum (dark) to its own maximum (bright). “All” is the mean over the prompts of the stage, and "
        "a number is the most focused prompt."
    )
    return Section(key, title, lead, galleries=tuple(galleries), table=_share_table(stages))


def _examples(measured: Measured) -> list[int]:
    """Images that adaptation corrected, else others that changed, one per class. Else images spread over the list."""
    first: dict[int, int] = {}
    if measured.before is not None:
        before, after = measured.before, measured.after
        found = changes(before.predicted, after.predicted, after.confidence, measured.labels)
        for index in (*found.fixed, *found.other, *found.broken):
            first.setdefault(int(after.predicted[index]), index)
    last = len(measured.images) - 1
    spread = [round(i * last / max(1, _IMAGES - 1)) for i in range(_IMAGES)]
    return list(dict.fromkeys([*list(first.values())[:_IMAGES], *spread]))[:_IMAGES]


def _heat_maps(measured: Measured, index: int, row: int, stages: dict[int, StageAttention]) -> list[Picture]:
    """The image, then the mean over the prompts of each stage, then its most focused prompt."""
    view = pictures.thumbnail(measured.view(index))
    vit: Any = measured.model.backbone
    grid = tuple(int(side) for side in vit.patch_embed.grid_size)
    means, focused = [], []
    for stage, attention in stages.items():
        maps, prompt = attention.prompt_maps, most_focused(attention.prompt_maps)
        means.append((f"stage {stage}, all", maps[row].mean(dim=0)))
        focused.append((f"stage {stage}, no. {prompt + 1}", maps[row, prompt]))
    made = [Picture(pictures.data_uri(view), "the image as the model sees it", "image")]
    for caption, weights in (*means, *focused):
        heat = np.asarray(weights.reshape(grid), dtype=np.float64)
        peak = heat.max() / max(heat.mean(), 1e-12)
        alt = f"attention, {caption}: the brightest patch gets {peak:.1f} times the mean"
        made.append(Picture(pictures.data_uri(pictures.heat_over(view, heat)), alt, caption))
    return made


def _share_table(stages: dict[int, StageAttention]) -> Table:
    header = ["last layer of", "prompts → patches", "prompts → CLS", "prompts → prompts", "CLS → prompts"]
    rows = []
    for stage, attention in stages.items():
        shares = attention.shares()
        values = [shares[name] for name in ("patches", "prefix", "prompts", "cls_to_prompts")]
        rows.append([TableCell(f"stage {stage}"), *(TableCell(f"{100 * value:.0f} %") for value in values)])
    return Table(header, rows, ("Share of the attention from one kind of token to another.",))
