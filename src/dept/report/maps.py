"""Charts that are no curves: the change of a matrix, points in a plane, gains with their intervals."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dept.report.charts import WIDTH, clipped, number, signed, svg, text, ticks, tip

SHAPES = 4
COLOURS = 8


LABEL = 34  # letters of a row's name


@dataclass(frozen=True)
class GainRow:
    """A gain in points with its interval (None if unknown)."""

    name: str
    gain: float
    low: float | None
    high: float | None


def matrix_change(matrix: Sequence[Sequence[int]], names: Sequence[str], row_totals: Sequence[int]) -> str:
    """Cells of a confusion matrix that gained or lost images; colour says better or worse, the number how many."""

    def cell(i: int, j: int) -> tuple[str, str, str]:
        value = matrix[i][j]
        tone = "good" if (value > 0) == (i == j) else "bad"
        return tone, signed(value), f"{names[i]} seen as {names[j]}: {signed(value)} of {row_totals[i]} images"

    label = "Change of the confusion matrix in images; rows are true classes, columns predicted ones"
    return _grid(matrix, names, label, cell)


def moves(matrix: Sequence[Sequence[int]], names: Sequence[str]) -> str:
    """How many images went from a class (row) to another (column); no labels, hence neither better nor worse."""

    def cell(i: int, j: int) -> tuple[str, str, str]:
        return "moved", str(matrix[i][j]), f"{matrix[i][j]} images: {names[i]} → {names[j]}"

    label = "Images whose label changed; rows are labels before, columns labels after"
    return _grid(matrix, names, label, cell)


def _grid(
    matrix: Sequence[Sequence[int]], names: Sequence[str], label: str, cell: Callable[[int, int], tuple[str, str, str]]
) -> str:
    """A square of cells with names on two sides; `cell` gives tone, text and tooltip of one that is not zero."""
    left = min(92.0, 12 + 5.6 * min(14, max(len(name) for name in names)))
    side, top = (WIDTH - left - 16) / len(names), 12 + (left - 12) * 0.86
    largest = max(1, max(abs(value) for row in matrix for value in row))
    parts = []
    for i, name in enumerate(names):
        x, y = left + i * side, top + i * side
        parts.append(text(left - 5, y + side / 2 + 3.5, clipped(name, 14), anchor="end", css="label"))
        turned = f"translate({x + side / 2 + 3:.1f} {top - 5:.1f}) rotate(-60)"
        parts.append(f'<g transform="{turned}">{text(0, 0, clipped(name, 14), css="label")}</g>')
        for j, value in enumerate(matrix[i]):
            tone, words, note = cell(i, j) if value else ("none", "", f"{name}, {names[j]}: no change")
            # The square root lets single images be seen beside hundreds.
            strength = 0.12 + 0.88 * (abs(value) / largest) ** 0.5 if value else 0.07
            parts.append(_cell(left + j * side, y, side, tone, strength, words, note))
    return svg(WIDTH, top + len(names) * side + 4, label, *parts)


def _cell(x: float, y: float, side: float, tone: str, strength: float, words: str, note: str) -> str:
    gap = 1.0 if side > 12 else 0.4
    box = (
        f'<rect x="{x + gap / 2:.1f}" y="{y + gap / 2:.1f}" width="{side - gap:.1f}" height="{side - gap:.1f}" '
        f'rx="2" class="cell {tone}" style="fill-opacity:{strength:.2f}"/>'
    )
    css = "on strong" if strength > 0.6 else "on"
    inner = text(x + side / 2, y + side / 2 + 3.2, words, anchor="middle", css=css) if words and side >= 17 else ""
    return f"<g>{tip(note)}{box}{inner}</g>"


def scatter(points: NDArray[np.floating[Any]], groups: Sequence[int], names: Sequence[str], label: str) -> str:
    """Images as points (n, 2): colour and shape by group, group names at their medians, group −1 in grey."""
    side, pad = 320.0, 12.0
    low, high = points.min(axis=0), points.max(axis=0)
    span = float(max((high - low).max(), 1e-9))
    offset = (span - (high - low)) / 2
    places = pad + (points - low + offset) / span * (side - 2 * pad)
    xs, ys = places[:, 0], side - places[:, 1]
    parts = []
    for group in sorted(set(groups)):
        inside = [i for i, own in enumerate(groups) if own == group]
        marks = "".join(_mark(float(xs[i]), float(ys[i]), max(0, group) // COLOURS) for i in inside)
        colour = "rest" if group < 0 else f"c{group % COLOURS}"
        note = tip(f"{names[group] if group >= 0 else 'other classes'}: {len(inside)} images")
        parts.append(f'<path d="{marks}" class="points {colour}">{note}</path>')
    taken: list[tuple[float, float, float]] = []
    for group in sorted(set(groups)):
        inside = [i for i, own in enumerate(groups) if own == group]
        if group >= 0 and len(inside) > 2:
            words = clipped(names[group], 16)
            place = _free(float(np.median(xs[inside])), float(np.median(ys[inside])), 3.4 * len(words), taken)
            parts.append(text(place[0], place[1] + 4, words, anchor="middle", css="halo"))
    return svg(side, side, label, *parts)


def _free(x: float, y: float, half: float, taken: list[tuple[float, float, float]]) -> tuple[float, float]:
    """The nearest height at which a label `half` wide to each side covers no other; remembered in `taken`."""
    for shift in sorted(range(-60, 61, 4), key=abs):
        if all(abs(x - a) > half + b or abs(y + shift - c) >= 12 for a, c, b in taken):
            taken.append((x, y + shift, half))
            return x, y + shift
    return x, y


def _mark(x: float, y: float, shape: int) -> str:
    """A small closed shape as path data: circle, square, triangle, diamond."""
    kind = shape % SHAPES
    if kind == 0:
        return f"M{x - 2:.1f} {y:.1f}a2 2 0 1 0 4 0a2 2 0 1 0-4 0z"
    if kind == 1:
        return f"M{x - 1.9:.1f} {y - 1.9:.1f}h3.8v3.8h-3.8z"
    if kind == 2:
        return f"M{x:.1f} {y - 2.5:.1f}l2.4 4.3h-4.8z"
    return f"M{x:.1f} {y - 2.7:.1f}l2.7 2.7l-2.7 2.7l-2.7-2.7z"


def gains(rows: Sequence[GainRow], span: tuple[float, float], *, lower: bool = False) -> str:
    """Changes in points as dots with whiskers; with `lower`, of an error, where less is better.

    Args:
        span: ends of the axis, so that several figures can share them.
    """
    left, right, step = 14 + 5.6 * min(LABEL, max(len(row.name) for row in rows)), 14.0, 20.0
    width, base = left + 230, 10 + step * len(rows)
    low, high = span

    def px(value: float) -> float:
        return left + (value - low) / (high - low) * (width - left - right)

    parts: list[str] = []
    for value in ticks(low, high):
        css = "axis" if value == 0 else "grid"
        parts.append(f'<line x1="{px(value):.1f}" x2="{px(value):.1f}" y1="4" y2="{base - 6:g}" class="{css}"/>')
        parts.append(text(px(value), base + 8, number(value), anchor="middle"))
    for at, row in enumerate(rows):
        y, tone = 14 + step * at, _clearly(row, lower)
        parts.append(f"<g>{tip(f'{row.name}: {_words(row)}')}")
        parts.append(text(left - 8, y + 4, clipped(row.name, LABEL), anchor="end", css="label"))
        if row.low is not None and row.high is not None:
            ends = f'x1="{px(row.low):.1f}" x2="{px(row.high):.1f}"'
            parts.append(f'<line {ends} y1="{y:g}" y2="{y:g}" class="span {tone}"/>')
        parts.append(f'<circle cx="{px(row.gain):.1f}" cy="{y:g}" r="4.5" class="dot {tone}"/></g>')
    what = "change of the error, points" if lower else "gain in accuracy, points"
    parts.append(text((left + width - right) / 2, base + 22, what, anchor="middle", css="name"))
    return svg(width, base + 28, "; ".join(f"{row.name} {_words(row)}" for row in rows), *parts)


def gain_span(rows: Sequence[GainRow]) -> tuple[float, float]:
    """Ends of an axis that has room for all rows, and 0."""
    ends = [value for row in rows for value in (row.gain, row.low, row.high) if value is not None]
    low, high = min([0.0, *ends]), max([0.0, *ends])
    room = (high - low) * 0.06 or 1.0
    return low - (room if low < 0 else 0), high + (room if high > 0 else 0)


def _words(row: GainRow) -> str:
    known = row.low is not None and row.high is not None
    return f"{signed(row.gain, 1)} points" + (
        f" [{signed(row.low or 0, 1)}, {signed(row.high or 0, 1)}]" if known else ""
    )


def _clearly(row: GainRow, lower: bool) -> str:
    """good or bad where the interval leaves no doubt."""
    if row.low is None or row.high is None:
        return "unsure"
    better, worse = (row.high < 0, row.low > 0) if lower else (row.low > 0, row.high < 0)
    return "good" if better else "bad" if worse else "unsure"
