"""The section that shows what the prompts of each stage look at."""

from __future__ import annotations

import numpy as np

from dept.core.attention import StageAttention, most_focused, patch_grid, prompt_attention
from dept.data.jpeg import data_uri
from dept.report import pictures
from dept.report.blocks import Gallery, Picture, Section, Table, TableCell
from dept.report.measure import Measured
from dept.report.summaries import changes

_STAGES = 4  # shown at most
_IMAGES = 3


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
    header = ["last layer of", "prompts → patches", "prompts → CLS", "prompts → prompts", "CLS → prompts"]
    rows = []
    for stage, attention in stages.items():
        shares = attention.shares()
        values = [shares[name] for name in ("patches", "prefix", "prompts", "cls_to_prompts")]
        rows.append([TableCell(f"stage {stage}"), *(TableCell(f"{100 * value:.0f} %") for value in values)])
    table = Table(header, rows, ("Share of the attention from one kind of token to another.",))
    return Section(key, title, lead, galleries=tuple(galleries), table=table)


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
    grid = patch_grid(measured.model)
    means, focused = [], []
    for stage, attention in stages.items():
        maps, prompt = attention.prompt_maps, most_focused(attention.prompt_maps)
        means.append((f"stage {stage}, all", maps[row].mean(dim=0)))
        focused.append((f"stage {stage}, no. {prompt + 1}", maps[row, prompt]))
    made = [Picture(data_uri(view), "the image as the model sees it", "image")]
    for caption, weights in (*means, *focused):
        heat = np.asarray(weights.reshape(grid), dtype=np.float64)
        peak = heat.max() / max(heat.mean(), 1e-12)
        alt = f"attention, {caption}: the brightest patch gets {peak:.1f} times the mean"
        made.append(Picture(data_uri(pictures.heat_over(view, heat)), alt, caption))
    return made
