"""The section with the features of the images in the plane, before and after."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from dept.report import embedding
from dept.report.blocks import Figure, Section
from dept.report.measure import Measured
from dept.report.svg import clipped, svg, text, tip

COLOURS = 8
# Small closed shapes as path data: circle, square, triangle, diamond. First where each begins, from its centre.
SHAPES = (
    (2.0, 0.0, "a2 2 0 1 0 4 0a2 2 0 1 0-4 0z"),
    (1.9, 1.9, "h3.8v3.8h-3.8z"),
    (0.0, 2.5, "l2.4 4.3h-4.8z"),
    (0.0, 2.7, "l2.7 2.7l-2.7 2.7l-2.7-2.7z"),
)
_COLOURED = 24  # classes that colour and shape can tell apart


def features_section(measured: Measured | None, missing: str, rule: Literal["auto", "pca", "tsne"]) -> Section:
    """Features before and after, side by side."""
    key, title = "features", "Features"
    if measured is None or len(measured.images) < 3:
        return Section(key, title, missing=missing or "At least three images are needed.")
    how = embedding.choose(rule, len(measured.images))
    readouts = [one for one in (measured.before, measured.after) if one is not None]
    placed = (embedding.pca if how == "pca" else embedding.tsne)([one.features.numpy() for one in readouts])
    groups = (measured.after.predicted if measured.labels is None else measured.labels).tolist()
    if len(measured.classes) > _COLOURED:
        common = {group for group, _ in Counter(groups).most_common(_COLOURED)}
        groups = [group if group in common else -1 for group in groups]
    titles = ["Before", "After"] if len(readouts) == 2 else ["Features"]
    figures = [
        Figure(scatter(points, groups, measured.classes, f"Features of the images, {name.lower()}"), name)
        for name, points in zip(titles, placed, strict=True)
    ]
    by = "true" if measured.labels is not None else "predicted"
    axes = "PCA" if how == "pca" else "t-SNE"
    if len(readouts) == 2:
        axes += ", both on the same axes" if how == "pca" else ", the second started from the first"
    return Section(key, title, f"One point per image, coloured by {by} class. {axes}.", tuple(figures))


def scatter(points: NDArray[np.floating[Any]], groups: Sequence[int], names: Sequence[str], label: str) -> str:
    """Images as points (n, 2): colour and shape by group, group names at their medians, group −1 in grey."""
    side, pad = 320.0, 12.0
    low, high = points.min(axis=0), points.max(axis=0)
    span = float(max((high - low).max(), 1e-9))
    offset = (span - (high - low)) / 2
    places = pad + (points - low + offset) / span * (side - 2 * pad)
    xs, ys = places[:, 0], side - places[:, 1]
    dots, labels = [], []
    taken: list[tuple[float, float, float]] = []
    for group in sorted(set(groups)):
        inside = [i for i, own in enumerate(groups) if own == group]
        dx, dy, shape = SHAPES[max(0, group) // COLOURS % len(SHAPES)]
        shapes = "".join(f"M{xs[i] - dx:.1f} {ys[i] - dy:.1f}{shape}" for i in inside)
        colour = "rest" if group < 0 else f"c{group % COLOURS}"
        note = tip(f"{names[group] if group >= 0 else 'other classes'}: {len(inside)} images")
        dots.append(f'<path d="{shapes}" class="points {colour}">{note}</path>')
        if group >= 0 and len(inside) > 2:
            words = clipped(names[group], 16)
            x, y = float(np.median(xs[inside])), float(np.median(ys[inside]))
            labels.append(text(x, _free_height(x, y, 3.4 * len(words), taken) + 4, words, anchor="middle", css="halo"))
    return svg(side, side, label, *dots, *labels)  # labels last: points must not cover them


def _free_height(x: float, y: float, half: float, taken: list[tuple[float, float, float]]) -> float:
    """The height nearest to y where a label of `half` width to each side covers no other; remembered in `taken`."""
    for shift in sorted(range(-60, 61, 4), key=abs):
        if all(abs(x - a) > half + b or abs(y + shift - c) >= 12 for a, c, b in taken):
            taken.append((x, y + shift, half))
            return y + shift
    return y
