"""Gains of several methods as dots with their intervals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dept.report.svg import clipped, number, signed, svg, text, ticks, tip

LABEL = 34  # characters of a row's name


@dataclass(frozen=True)
class GainRow:
    """A gain in points with its interval (None if unknown)."""

    name: str
    gain: float
    low: float | None
    high: float | None


def gain_chart(rows: Sequence[GainRow], span: tuple[float, float], *, lower: bool = False) -> str:
    """Changes in points as dots with whiskers. `lower`: the metric is an error, so lower is better.

    Args:
        span: ends of the axis, which several figures can share.
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
        y, tone = 14 + step * at, _tone(row, lower)
        parts.append(f"<g>{tip(f'{row.name}: {_words(row)}')}")
        parts.append(text(left - 8, y + 4, clipped(row.name, LABEL), anchor="end", css="label"))
        if row.low is not None and row.high is not None:
            ends = f'x1="{px(row.low):.1f}" x2="{px(row.high):.1f}"'
            parts.append(f'<line {ends} y1="{y:g}" y2="{y:g}" class="span {tone}"/>')
        parts.append(f'<circle cx="{px(row.gain):.1f}" cy="{y:g}" r="4.5" class="dot {tone}"/></g>')
    what = "change in error, points" if lower else "gain in accuracy, points"
    parts.append(text((left + width - right) / 2, base + 22, what, anchor="middle", css="name"))
    return svg(width, base + 28, "; ".join(f"{row.name} {_words(row)}" for row in rows), *parts)


def gain_span(rows: Sequence[GainRow]) -> tuple[float, float]:
    """Ends of an axis that fits all rows, and 0."""
    ends = [value for row in rows for value in (row.gain, row.low, row.high) if value is not None]
    low, high = min([0.0, *ends]), max([0.0, *ends])
    room = (high - low) * 0.06 or 1.0
    return low - (room if low < 0 else 0), high + (room if high > 0 else 0)


def _words(row: GainRow) -> str:
    known = row.low is not None and row.high is not None
    return f"{signed(row.gain, 1)} points" + (
        f" [{signed(row.low or 0, 1)}, {signed(row.high or 0, 1)}]" if known else ""
    )


def _tone(row: GainRow, lower: bool) -> str:
    """good or bad if the interval excludes 0."""
    if row.low is None or row.high is None:
        return "unclear"
    better, worse = (row.high < 0, row.low > 0) if lower else (row.low > 0, row.high < 0)
    return "good" if better else "bad" if worse else "unclear"
