"""Charts over steps, confidence and classes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import cycle, pairwise

from dept.report.summaries import Bin, ClassRow
from dept.report.svg import WIDTH, Frame, axes, clipped, number, path, signed, svg, text, tip
from dept.runs.read import Curve

_TOOLTIPS = 40
_FEW = 5  # a bin of the reliability diagram with fewer images has an accuracy that is mostly chance
_LINES = ("after", "other1", "other2", "other3")


def term_chart(name: str, steps: Sequence[int], values: Sequence[float], *, unit: str = "step") -> str:
    """A value over steps, or over what `unit` says: every value thin, the running mean bold."""
    frame = Frame((steps[0], max(steps[-1], steps[0] + 1)), _range(values), height=150)
    mean = smooth(values, max(1, len(values) // 30))
    stride = max(1, len(steps) // 400)  # more points than pixels only make the file larger
    raw = path(frame, steps[::stride], values[::stride], "faint")
    main = path(frame, steps[::stride], mean[::stride], "after")
    label = f"{name} over {len(steps)} {unit}s: {number(mean[0])} at the start, {number(mean[-1])} at the end"
    stride = max(1, len(steps) // _TOOLTIPS)
    wide = (frame.width - frame.left - frame.right) / max(1, len(steps) / stride)
    tall = frame.height - frame.top - frame.bottom
    strips = [  # invisible, with a tooltip each
        f'<rect x="{frame.px(x) - wide / 2:.1f}" y="{frame.top:g}" width="{wide:.1f}" height="{tall:g}" '
        f'class="hover">{tip(f"step {x:g}: {number(y)}")}</rect>'
        for x, y in list(zip(steps, values, strict=True))[::stride]
    ]
    return svg(frame.width, frame.height, label, axes(frame, x_name=unit), raw, main, *strips)


def smooth(values: Sequence[float], reach: int) -> list[float]:
    """Centred running mean over `reach` values on each side, fewer at the ends."""
    sums = [0.0]
    for value in values:
        sums.append(sums[-1] + (value if math.isfinite(value) else 0.0))
    last = len(values)
    spans = [(max(0, at - reach), min(last, at + reach + 1)) for at in range(last)]
    return [(sums[end] - sums[start]) / (end - start) for start, end in spans]


def _range(values: Sequence[float]) -> tuple[float, float]:
    """Lowest and highest finite value with some margin, also for a constant."""
    finite = [value for value in values if math.isfinite(value)] or [0.0]
    low, high = min(finite), max(finite)
    pad = (high - low) * 0.06 or abs(high) * 0.1 or 1.0
    return low - pad, high + pad


def accuracy_chart(curves: Sequence[Curve]) -> str:
    """Accuracy over steps, with a dot for every score and the name at the end of each line."""
    low, high = _range([value for curve in curves for value in curve.values])
    last = max(max(curve.steps) for curve in curves)
    frame = Frame((0, last or 1), (max(0.0, low), min(1.0, high)), height=150, right=96)
    parts = [axes(frame, x_name="step", percent_y=True)]
    ends = _apart([frame.py(curve.values[-1]) for curve in curves], 12, frame.height - frame.bottom)
    for curve, end, css in zip(curves, ends, cycle(_LINES), strict=False):
        parts.append(path(frame, curve.steps, curve.values, css))
        for x, y in zip(curve.steps, curve.values, strict=True):
            note = tip(f"{curve.name}, step {x:g}: {100 * y:.1f} %")
            place = f'cx="{frame.px(x):.1f}" cy="{frame.py(y):.1f}" r="3"'
            parts.append(f'<circle {place} class="dot {css}">{note}</circle>')
        parts.append(text(frame.width - frame.right + 7, end + 3.5, curve.name, css=f"label {css}"))
    spans = [f"{one.name} {100 * one.values[0]:.1f} to {100 * one.values[-1]:.1f} percent" for one in curves]
    label = "; ".join(spans)
    return svg(frame.width, frame.height, f"Accuracy over steps: {label}", *parts)


def _apart(places: Sequence[float], gap: float, lowest: float) -> list[float]:
    """Heights of labels, moved apart so that none covers another."""
    order = sorted(range(len(places)), key=lambda i: places[i])
    moved = list(places)
    for before, after in pairwise(order):
        moved[after] = max(moved[after], moved[before] + gap)
    excess = max(0.0, max(moved) - lowest)
    return [value - excess for value in moved]


def confidence_chart(before: Sequence[float] | None, after: Sequence[float]) -> str:
    """Histogram of confidence: after as bars, before as an outline."""
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
    return svg(frame.width, frame.height, "Histogram of confidence before and after", *parts)


def reliability_chart(before: Sequence[Bin] | None, after: Sequence[Bin]) -> str:
    """Accuracy against confidence. The dashed line is perfect calibration; dots grow with their number of images."""
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
                f"{100 * one.accuracy:.1f} % correct"
            )
            place = f'cx="{frame.px(one.confidence):.1f}" cy="{frame.py(one.accuracy):.1f}" r="{radius:.1f}"'
            parts.append(f'<circle {place} class="bubble {name}">{note}</circle>')
    return svg(frame.width, frame.height, "Reliability: accuracy over confidence, before and after", *parts)


def class_bars(rows: Sequence[ClassRow], what: str) -> str:
    """Two bars per class, before above after, with the value after and the change."""
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
