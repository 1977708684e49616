"""Charts as inline SVG: small, without scripts, coloured by the page's CSS variables, with tooltips in <title>.

All sizes are in a view box of about 340 units, the width of a phone, so that text has the same size everywhere.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise

from dept.report.summaries import Bin, ClassRow

WIDTH = 340
_HOVER_POINTS = 40
_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
_FEW = 5  # images in a bin of the reliability diagram below which its accuracy is mostly chance


@dataclass(frozen=True)
class Series:
    """A line: its points and the CSS class that colours it."""

    name: str
    xs: Sequence[float]
    ys: Sequence[float]
    css: str = "after"


@dataclass(frozen=True)
class Frame:
    """The plotting area within the view box, and what its edges mean."""

    x: tuple[float, float]
    y: tuple[float, float]
    width: float = WIDTH
    height: float = 180
    left: float = 50
    right: float = 10
    top: float = 10
    bottom: float = 32

    def px(self, value: float) -> float:
        """Horizontal place of a value."""
        low, high = self.x
        return self.left + (value - low) / ((high - low) or 1) * (self.width - self.left - self.right)

    def py(self, value: float) -> float:
        """Vertical place of a value; up is more."""
        low, high = self.y
        return self.height - self.bottom - (value - low) / ((high - low) or 1) * (self.height - self.top - self.bottom)


def svg(width: float, height: float, label: str, *parts: str) -> str:
    """The element around the parts; `label` is what a screen reader says."""
    inner = "".join(parts)
    return (
        f'<svg viewBox="0 0 {width:g} {height:g}" style="max-width:{1.3 * width:g}px" role="img" '
        f'aria-label="{escape(label)}">{inner}</svg>'
    )


def text(x: float, y: float, words: str, *, anchor: str = "start", css: str = "tick") -> str:
    """A piece of text, escaped."""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" class="{css}">{escape(words)}</text>'


def tip(words: str) -> str:
    """What a pointer that rests on the element shows."""
    return f"<title>{escape(words)}</title>"


def ticks(low: float, high: float, most: int = 5) -> list[float]:
    """Round values between low and high: multiples of 1, 2 or 5 times a power of ten."""
    if not high > low:
        return [low]
    rough = (high - low) / most
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [round(number * step, 12) for number in range(first, math.floor(high / step + 1e-9) + 1)]


def number(value: float) -> str:
    """Short, with a real minus sign."""
    if 0 < abs(value) < 1e-3:
        digits, power = f"{value:.2e}".split("e")
        return f"{float(digits):g}·10{str(int(power)).translate(_RAISED)}".replace("-", "−")
    plain = f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return plain.replace("-", "−")


def axes(frame: Frame, *, x_name: str, percent_y: bool = False, percent_x: bool = False, rows: int = 4) -> str:
    """Grid lines, tick labels and the name of the x axis."""
    parts = []
    left, right, base = frame.left, frame.width - frame.right, frame.height - frame.bottom
    for value in ticks(*frame.y, most=rows):
        y = frame.py(value)
        parts.append(f'<line x1="{left:g}" x2="{right:g}" y1="{y:.1f}" y2="{y:.1f}" class="grid"/>')
        label = f"{100 * value:g} %" if percent_y else number(value)
        parts.append(text(left - 6, y + 3.5, label, anchor="end"))
    for value in ticks(*frame.x, most=5):
        x = frame.px(value)
        label = f"{100 * value:g} %" if percent_x else number(value)
        anchor = "end" if x > right - 8 and not percent_x else "middle"
        parts.append(text(x, base + 14, label, anchor=anchor))
    parts.append(f'<line x1="{left:g}" x2="{right:g}" y1="{base:g}" y2="{base:g}" class="axis"/>')
    parts.append(text((left + right) / 2, frame.height - 3, x_name, anchor="middle", css="name"))
    return "".join(parts)


def path(frame: Frame, xs: Sequence[float], ys: Sequence[float], css: str) -> str:
    """A polyline through the points that are numbers."""
    finite = [(x, y) for x, y in zip(xs, ys, strict=True) if math.isfinite(y)]
    points = " ".join(f"{frame.px(x):.1f},{frame.py(y):.1f}" for x, y in finite)
    return f'<polyline points="{points}" class="line {css}"/>'


def smooth(values: Sequence[float], reach: int) -> list[float]:
    """Centred running mean over `reach` values on each side, fewer at the ends."""
    sums = [0.0]
    for value in values:
        sums.append(sums[-1] + (value if math.isfinite(value) else 0.0))
    last = len(values)
    spans = [(max(0, at - reach), min(last, at + reach + 1)) for at in range(last)]
    return [(sums[end] - sums[start]) / (end - start) for start, end in spans]


def _room(values: Sequence[float]) -> tuple[float, float]:
    """Lowest and highest number with a little room, also for a constant."""
    finite = [value for value in values if math.isfinite(value)] or [0.0]
    low, high = min(finite), max(finite)
    pad = (high - low) * 0.06 or abs(high) * 0.1 or 1.0
    return low - pad, high + pad


def term_chart(name: str, steps: Sequence[int], values: Sequence[float], *, unit: str = "step") -> str:
    """One loss term over the steps (or what else `unit` says): every value thin, the running mean bold."""
    frame = Frame((steps[0], max(steps[-1], steps[0] + 1)), _room(values), height=150)
    mean = smooth(values, max(1, len(values) // 30))
    stride = max(1, len(steps) // 400)  # more points than pixels only make the file large
    raw = path(frame, steps[::stride], values[::stride], "faint")
    main = path(frame, steps[::stride], mean[::stride], "after")
    label = f"{name} over {len(steps)} {unit}s: {number(mean[0])} at first, {number(mean[-1])} at last"
    return svg(frame.width, frame.height, label, axes(frame, x_name=unit), raw, main, _hover(frame, steps, values))


def _hover(frame: Frame, xs: Sequence[float], ys: Sequence[float]) -> str:
    """Invisible strips that tell a value when pointed at."""
    stride = max(1, len(xs) // _HOVER_POINTS)
    wide = (frame.width - frame.left - frame.right) / max(1, len(xs) / stride)
    tall = frame.height - frame.top - frame.bottom
    return "".join(
        f'<rect x="{frame.px(x) - wide / 2:.1f}" y="{frame.top:g}" width="{wide:.1f}" height="{tall:g}" '
        f'class="hover">{tip(f"step {x:g}: {number(y)}")}</rect>'
        for x, y in list(zip(xs, ys, strict=True))[::stride]
    )


def accuracy_chart(series: Sequence[Series]) -> str:
    """Accuracy over steps, every score a dot; names stand at the ends of the lines."""
    values = [value for one in series for value in one.ys]
    low, high = _room(values)
    last = max(max(one.xs) for one in series)
    frame = Frame((0, last or 1), (max(0.0, low), min(1.0, high)), height=150, right=96)
    parts = [axes(frame, x_name="step", percent_y=True)]
    ends = _apart([frame.py(one.ys[-1]) for one in series], 12, frame.height - frame.bottom)
    for one, end in zip(series, ends, strict=True):
        parts.append(path(frame, one.xs, one.ys, one.css))
        for x, y in zip(one.xs, one.ys, strict=True):
            note = tip(f"{one.name}, step {x:g}: {100 * y:.1f} %")
            parts.append(f'<circle cx="{frame.px(x):.1f}" cy="{frame.py(y):.1f}" r="3" class="dot {one.css}">{note}')
            parts.append("</circle>")
        parts.append(text(frame.width - frame.right + 7, end + 3.5, one.name, css=f"label {one.css}"))
    label = "; ".join(f"{one.name} {100 * one.ys[0]:.1f} to {100 * one.ys[-1]:.1f} percent" for one in series)
    return svg(frame.width, frame.height, f"Accuracy over steps: {label}", *parts)


def _apart(places: Sequence[float], gap: float, lowest: float) -> list[float]:
    """Heights of labels moved apart so that none covers another."""
    order = sorted(range(len(places)), key=lambda i: places[i])
    moved = list(places)
    for before, after in pairwise(order):
        moved[after] = max(moved[after], moved[before] + gap)
    excess = max([moved[order[-1]] - lowest, 0.0]) if order else 0.0
    return [value - excess for value in moved]


def confidence_chart(before: Sequence[float] | None, after: Sequence[float]) -> str:
    """Histogram of the confidence: after as bars, before as an outline."""
    bins = len(after)
    top = max([*after, *(before or [])])
    frame = Frame((0, 1), (0, top * 1.08), height=250)
    parts = [axes(frame, x_name="confidence", percent_y=True, percent_x=True)]
    base = frame.py(0)
    for at, share in enumerate(after):
        low, high = at / bins, (at + 1) / bins
        old = f", before {100 * before[at]:.1f} %" if before else ""
        note = tip(f"confidence {100 * low:.0f} to {100 * high:.0f} %: {100 * share:.1f} % of the images{old}")
        x, wide, y = frame.px(low) + 0.7, frame.px(high) - frame.px(low) - 1.4, frame.py(share)
        parts.append(
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{wide:.1f}" height="{base - y:.1f}" class="bar after">{note}</rect>'
        )
    if before:
        corners = [(x, share) for at, share in enumerate(before) for x in (at / bins, (at + 1) / bins)]
        xs, ys = [0.0, *(x for x, _ in corners), 1.0], [0.0, *(y for _, y in corners), 0.0]
        parts.append(path(frame, xs, ys, "before"))
    return svg(frame.width, frame.height, "Histogram of the confidence before and after", *parts)


def reliability_chart(before: Sequence[Bin] | None, after: Sequence[Bin]) -> str:
    """Accuracy against confidence; on the dashed line a model is as right as it is sure. Area of a dot: its share."""
    frame = Frame((0, 1), (0, 1), height=250)
    parts = [axes(frame, x_name="confidence", percent_y=True, percent_x=True, rows=5)]
    ends = f'x1="{frame.px(0):.1f}" y1="{frame.py(0):.1f}" x2="{frame.px(1):.1f}" y2="{frame.py(1):.1f}"'
    parts.append(f'<line {ends} class="ideal"/>')
    for name, bins in (("before", before), ("after", after)):
        if not bins:
            continue
        total = sum(one.count for one in bins)
        joined = [one for one in bins if one.count >= _FEW]
        parts.append(path(frame, [b.confidence for b in joined], [b.accuracy for b in joined], name))
        for one in bins:
            radius = 1.8 + 12 * math.sqrt(one.count / total) * 0.8
            note = tip(
                f"{name}: {one.count} images with mean confidence {100 * one.confidence:.1f} %, "
                f"{100 * one.accuracy:.1f} % right"
            )
            place = f'cx="{frame.px(one.confidence):.1f}" cy="{frame.py(one.accuracy):.1f}" r="{radius:.1f}"'
            parts.append(f'<circle {place} class="bubble {name}">{note}</circle>')
    return svg(frame.width, frame.height, "Reliability: accuracy over confidence, before and after", *parts)


def class_bars(rows: Sequence[ClassRow], what: str) -> str:
    """Two bars per class, before above after, with the value after and the change in words."""
    step, top = 27.0, 4.0
    names = max((len(row.name) for row in rows), default=1)
    left = min(110.0, 10 + 5.9 * min(names, 17))
    height = top + step * len(rows) + 4
    high = max([1e-9, *(row.after for row in rows), *(row.before or 0.0 for row in rows)])
    reach = WIDTH - left - 78
    parts = []
    for at, row in enumerate(rows):
        y = top + at * step
        old = "" if row.before is None else f"{100 * row.before:.1f} % before, "
        count = "" if row.count is None else f" ({row.count} images)"
        parts.append(f"<g>{tip(f'{row.name}: {old}{100 * row.after:.1f} % after{count}')}")
        parts.append(text(left - 7, y + 15, clipped(row.name, 17), anchor="end", css="label"))
        if row.before is not None:
            wide = reach * row.before / high
            parts.append(f'<rect x="{left:g}" y="{y + 2:.1f}" width="{wide:.1f}" height="8" class="bar before"/>')
        wide = reach * row.after / high
        parts.append(f'<rect x="{left:g}" y="{y + 11:.1f}" width="{wide:.1f}" height="10" class="bar after"/>')
        end = left + reach * max(row.after, row.before or 0.0) / high
        parts.append(text(end + 5, y + 15, f"{100 * row.after:.0f} %", css="value"))
        if row.before is not None:
            change = 100 * (row.after - row.before)
            parts.append(text(WIDTH - 2, y + 15, signed(change), anchor="end", css="change"))
        parts.append("</g>")
    label = f"{what} per class: " + "; ".join(f"{row.name} {100 * row.after:.0f} percent" for row in rows[:30])
    return svg(WIDTH, height, label, *parts)


def signed(value: float, digits: int = 0) -> str:
    """+3, −2 or ±0: with a sign that can be read."""
    rounded = round(value, digits)
    if rounded == 0:
        return "±0"
    return f"{'+' if rounded > 0 else '−'}{abs(rounded):.{digits}f}"


def clipped(words: str, most: int) -> str:
    """At most `most` characters."""
    return words if len(words) <= most else words[: most - 1] + "…"
