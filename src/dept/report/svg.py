"""Building blocks of charts: inline SVG without scripts, coloured by the page's CSS, with tooltips in <title>.

All sizes are in a view box about 340 units wide, the width of a phone, so that text has the same size everywhere.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH = 340
_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


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
        """Horizontal position of a value."""
        low, high = self.x
        return self.left + (value - low) / ((high - low) or 1) * (self.width - self.left - self.right)

    def py(self, value: float) -> float:
        """Vertical position of a value, larger ones higher."""
        low, high = self.y
        return self.height - self.bottom - (value - low) / ((high - low) or 1) * (self.height - self.top - self.bottom)


def svg(width: float, height: float, label: str, *parts: str) -> str:
    """The element around the parts. `label` is read by screen readers."""
    inner = "".join(parts)
    return (
        f'<svg viewBox="0 0 {width:g} {height:g}" style="max-width:{1.3 * width:g}px" role="img" '
        f'aria-label="{escape(label)}">{inner}</svg>'
    )


def text(x: float, y: float, words: str, *, anchor: str = "start", css: str = "tick") -> str:
    """Escaped text."""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" class="{css}">{escape(words)}</text>'


def tip(words: str) -> str:
    """Tooltip of the element around it."""
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
    """Three significant digits, with a real minus sign."""
    if 0 < abs(value) < 1e-3:
        digits, power = f"{value:.2e}".split("e")
        return f"{float(digits):g}·10{str(int(power)).translate(_SUPERSCRIPTS)}".replace("-", "−")
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
    """A polyline through the finite points."""
    finite = [(x, y) for x, y in zip(xs, ys, strict=True) if math.isfinite(y)]
    points = " ".join(f"{frame.px(x):.1f},{frame.py(y):.1f}" for x, y in finite)
    return f'<polyline points="{points}" class="line {css}"/>'


def signed(value: float, digits: int = 0) -> str:
    """+3, −2 or ±0, with a real minus sign."""
    rounded = round(value, digits)
    if rounded == 0:
        return "±0"
    return f"{'+' if rounded > 0 else '−'}{abs(rounded):.{digits}f}"


def clipped(words: str, most: int) -> str:
    """At most `most` characters."""
    return words if len(words) <= most else words[: most - 1] + "…"
