"""Sections that show images: labels that changed, the space of features, what prompts attend to."""

from __future__ import annotations

from collections import Counter
from typing import Literal

import numpy as np
from torch import Tensor

from dept.core.attention import StageAttention, most_focused, patch_grid, prompt_attention
from dept.report import embedding, maps, pictures
from dept.report.blocks import Cell, Figure, Gallery, Picture, Section, Table, Tone
from dept.report.measure import Measured
from dept.report.summaries import Changes, changes

_SHOWN = {"fixed": 24, "broken": 16, "other": 8}
_STAGES = 4
_ATTENDED = 3
_COLOURED = 24  # classes that can be told apart by colour and shape


def changed_section(measured: Measured | None, missing: str) -> Section:
    """Thumbnails of images whose label changed, before → after."""
    key, title = "changed", "Labels that changed"
    if measured is None or measured.before is None:
        return Section(key, title, missing=missing or "There is no model before.")
    found = changes(measured.before.predicted, measured.after.predicted, measured.after.confidence, measured.labels)
    if not found.total:
        return Section(key, title, missing="No prediction changed.")
    if measured.labels is None:
        shown = _varied(measured, found.other)[:48]
        heading = f"{len(shown)} of {found.total:,}, the surest of every kind of change first"
        galleries = [Gallery(heading, [_changed(measured, i, "", "") for i in shown])]
        return Section(key, title, f"{found.total:,} of {len(measured.images):,} labels changed.", (), tuple(galleries))
    lead = (
        f"{found.total:,} of {len(measured.images):,} labels changed: {len(found.fixed):,} from wrong to right, "
        f"{len(found.broken):,} from right to wrong, {len(found.other):,} from one wrong class to another. "
        "The surest of every kind of change come first."
    )
    return Section(key, title, lead, (), tuple(_groups(measured, found)))


def _groups(measured: Measured, found: Changes) -> list[Gallery]:
    kinds: list[tuple[str, tuple[int, ...], Tone, str, str]] = [
        ("Now right", found.fixed, "good", "✓", "fixed"),
        ("Now wrong", found.broken, "bad", "✗", "broken"),
        ("Wrong before and after", found.other, "", "≠", "other"),
    ]
    made = []
    for name, indices, tone, mark, kind in kinds:
        few = _varied(measured, indices)[: _SHOWN[kind]]
        if few:
            pictured = [_changed(measured, i, tone, mark) for i in few]
            made.append(Gallery(f"{name}: {len(few)} of {len(indices):,}", pictured))
    return made


def _varied(measured: Measured, indices: tuple[int, ...]) -> list[int]:
    """The surest of every pair (before, after), then the second of every pair, and so on: not one pair only."""
    assert measured.before is not None
    seen: Counter[tuple[int, int]] = Counter()
    turns = []
    for index in indices:
        pair = (int(measured.before.predicted[index]), int(measured.after.predicted[index]))
        turns.append((seen[pair], index))
        seen[pair] += 1
    return [index for _, index in sorted(turns, key=lambda turn: turn[0])]


def _changed(measured: Measured, index: int, tone: Tone, mark: str) -> Picture:
    assert measured.before is not None
    names = measured.classes
    old, new = names[int(measured.before.predicted[index])], names[int(measured.after.predicted[index])]
    sure = 100 * float(measured.after.confidence[index])
    truth = "" if measured.labels is None else f", truly {names[int(measured.labels[index])]}"
    alt = f"{measured.images.names()[index]}: {old} → {new} ({sure:.0f} % sure{truth})"
    uri = pictures.data_uri(pictures.thumbnail(measured.view(index)))
    wrong = f", is {names[int(measured.labels[index])]}" if mark == "≠" and measured.labels is not None else ""
    return Picture(uri, alt, f"{old} → {new}{wrong}", tone, mark)


def features_section(measured: Measured | None, missing: str, rule: Literal["auto", "pca", "tsne"]) -> Section:
    """Features before and after, side by side."""
    key, title = "features", "Features"
    if measured is None or len(measured.images) < 3:
        return Section(key, title, missing=missing or "There are too few images.")
    how = embedding.choose(rule, len(measured.images))
    readouts = [one for one in (measured.before, measured.after) if one is not None]
    placed = embedding.project([one.features.numpy() for one in readouts], how)
    truth = measured.labels if measured.labels is not None else measured.after.predicted
    groups = _groups_of(truth, len(measured.classes))
    titles = ["Before", "After"] if len(readouts) == 2 else ["Features"]
    figures = [
        Figure(maps.scatter(points, groups, measured.classes, f"Features of the images, {name.lower()}"), name)
        for name, points in zip(titles, placed, strict=True)
    ]
    name = "PCA, both on the same axes" if how == "pca" else "t-SNE; the second starts where the first ended"
    by = "true" if measured.labels is not None else "predicted"
    return Section(key, title, f"One point per image, coloured by {by} class. {name}.", tuple(figures))


def _groups_of(labels: Tensor, classes: int) -> list[int]:
    """The class of each image, or −1 for classes beyond those that colours can tell apart."""
    values = [int(value) for value in labels]
    if classes <= _COLOURED:
        return values
    common = {value for value, _ in Counter(values).most_common(_COLOURED)}
    return [value if value in common else -1 for value in values]


def attention_section(measured: Measured | None, missing: str) -> Section:
    """What the prompts of each stage look at, on a few images."""
    key, title = "attention", "What the prompts look at"
    if measured is None:
        return Section(key, title, missing=missing)
    model = measured.model
    if model.prompts is None:
        return Section(key, title, missing="This model has no prompts.")
    chosen = _worth_seeing(measured)
    stages = prompt_attention(model, measured.batch(chosen))
    few = sorted({round(i * (len(stages) - 1) / max(1, min(_STAGES, len(stages)) - 1)) for i in range(_STAGES)})
    few = [stage for stage in few if stage < len(stages)]
    focused = {stage: most_focused(stages[stage].prompt_maps) for stage in few}
    galleries = [
        Gallery(_heading(measured, index), _maps(measured, index, row, stages, few, focused), maps=True)
        for row, index in enumerate(chosen)
    ]
    lead = (
        "Attention of prompts over the patches in the last layer of a stage, mean over heads; each map goes from its "
        "own minimum (dark) to its maximum (bright). “All” is the mean over the stage's prompts, a number is the most "
        "focused prompt."
    )
    return Section(key, title, lead, galleries=tuple(galleries), table=_shares(stages, few))


def _worth_seeing(measured: Measured) -> list[int]:
    """Images that adaptation got right, surest first; else any that changed; else the first ones."""
    count = len(measured.images)
    first: list[int] = []
    if measured.before is not None:
        before, after = measured.before, measured.after
        found = changes(before.predicted, after.predicted, after.confidence, measured.labels)
        seen: set[int] = set()
        for index in (*found.fixed, *found.other, *found.broken):  # one per class, so that they differ
            if int(after.predicted[index]) not in seen:
                seen.add(int(after.predicted[index]))
                first.append(index)
    spread = [round(i * (count - 1) / max(1, _ATTENDED - 1)) for i in range(_ATTENDED)]
    return list(dict.fromkeys([*first[:_ATTENDED], *spread]))[:_ATTENDED]


def _heading(measured: Measured, index: int) -> str:
    label = measured.classes[int(measured.after.predicted[index])]
    return f"{measured.images.paths[index].name}, labelled {label}"


def _maps(
    measured: Measured, index: int, row: int, stages: list[StageAttention], few: list[int], focused: dict[int, int]
) -> list[Picture]:
    view = pictures.thumbnail(measured.view(index))
    rows, columns = patch_grid(measured.model)
    first = Picture(pictures.data_uri(view), "the image as the model sees it", "image")
    made: tuple[list[Picture], list[Picture]] = ([], [])
    for stage in few:
        every = stages[stage].prompt_maps[row]
        kinds = (("all", every.mean(dim=0)), (f"no. {focused[stage] + 1}", every[focused[stage]]))
        for place, (name, weights) in enumerate(kinds):
            heat = np.asarray(weights.reshape(rows, columns), dtype=np.float64)
            peak = heat.max() / max(heat.mean(), 1e-12)
            alt = f"attention of stage {stage + 1}, {name}: the brightest patch gets {peak:.1f} times the mean"
            uri = pictures.data_uri(pictures.heat_over(view, heat))
            made[place].append(Picture(uri, alt, f"stage {stage + 1}, {name}"))
    return [first, *made[0], *made[1]]


def _shares(stages: list[StageAttention], few: list[int]) -> Table:
    header = ["last layer of", "prompts → patches", "prompts → CLS", "prompts → prompts", "CLS → prompts"]
    rows = []
    for stage in few:
        shares = stages[stage].shares()
        values = [shares[name] for name in ("patches", "prefix", "prompts", "cls_to_prompts")]
        rows.append([Cell(f"stage {stage + 1}"), *(Cell(f"{100 * value:.0f} %") for value in values)])
    return Table(header, rows, ("Shares of the attention that goes from one kind of token to another.",))
