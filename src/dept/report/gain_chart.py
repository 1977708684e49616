"""Gains of several methods as dots with their intervals."""

from __future__ import annotations

from collections.abc import Sequence

from dept.bench.entry import Entry
from dept.report.blocks import Tone
from dept.report.svg import Frame, clipped, number, signed, svg, text, ticks, tip

LABEL = 34  # characters of a row's name


def gain_chart(rows: Sequence[tuple[str, Entry]], span: tuple[float, float], *, lower: bool = False) -> str:
    """Named changes in points as dots with whiskers. `lower`: the metric is an error, so lower is better.

    Args:
        span: ends of the axis, which several figures can share.
    """
    left, step = 14 + 5.6 * min(LABEL, max(len(name) for name, _ in rows)), 20.0
    frame = Frame(span, (0, 1), width=left + 230, left=left, right=14.0)
    px, base = frame.px, 10 + step * len(rows)
    parts: list[str] = []
    for value in ticks(*span):
        css = "axis" if value == 0 else "grid"
        parts.append(f'<line x1="{px(value):.1f}" x2="{px(value):.1f}" y1="4" y2="{base - 6:g}" class="{css}"/>')
        parts.append(text(px(value), base + 8, number(value), anchor="middle"))
    for at, (name, entry) in enumerate(rows):
        y, tone = 14 + step * at, gain_tone(entry, lower=lower) or "unclear"
        parts.append(f"<g>{tip(f'{name}: {gain_words(entry)} points')}")
        parts.append(text(left - 8, y + 4, clipped(name, LABEL), anchor="end", css="label"))
        if entry.interval is not None:
            ends = f'x1="{px(entry.interval[0]):.1f}" x2="{px(entry.interval[1]):.1f}"'
            parts.append(f'<line {ends} y1="{y:g}" y2="{y:g}" class="span {tone}"/>')
        parts.append(f'<circle cx="{px(entry.gain or 0.0):.1f}" cy="{y:g}" r="4.5" class="dot {tone}"/></g>')
    what = "change in error, points" if lower else "gain in accuracy, points"
    parts.append(text((left + frame.width - frame.right) / 2, base + 22, what, anchor="middle", css="name"))
    return svg(frame.width, base + 28, "; ".join(f"{name} {gain_words(entry)} points" for name, entry in rows), *parts)


def gain_span(entries: Sequence[Entry]) -> tuple[float, float]:
    """Ends of an axis that fits all gains, and 0."""
    ends = [value for entry in entries for value in (entry.gain or 0.0, *(entry.interval or ()))]
    low, high = min([0.0, *ends]), max([0.0, *ends])
    room = (high - low) * 0.06 or 1.0
    return low - (room if low < 0 else 0), high + (room if high > 0 else 0)


def gain_words(entry: Entry) -> str:
    """The gain, with its interval if that is known."""
    ends = entry.interval
    return signed(entry.gain or 0.0, 1) + ("" if ends is None else f" [{signed(ends[0], 1)}, {signed(ends[1], 1)}]")


def gain_tone(entry: Entry, *, lower: bool) -> Tone:
    """good or bad if the interval excludes 0."""
    low, high = entry.interval or (0.0, 0.0)
    better, worse = (high < 0, low > 0) if lower else (low > 0, high < 0)
    return "good" if better else "bad" if worse else ""
