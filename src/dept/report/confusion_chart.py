"""Which class is taken for which: what adaptation changed, as a grid of classes."""

from __future__ import annotations

from collections.abc import Sequence

from dept.report.svg import WIDTH, clipped, signed, svg, text, tip


def confusion_chart(matrix: Sequence[Sequence[int]], names: Sequence[str], totals: Sequence[int] | None) -> str:
    """Change of a confusion matrix in images, coloured by better or worse.

    Without labels, images that moved from one predicted class (row) to another (column).

    Args:
        totals: number of images of each true class, None without labels.
    """
    label = "Images whose label changed. Rows are labels before, columns are labels after."
    if totals:
        label = "Change of the confusion matrix in images. Rows are true classes, columns are predicted classes."
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
            tone, words, note = "none", "", f"{name}, {names[j]}: no change"
            if value and totals:
                tone, words = "good" if (value > 0) == (i == j) else "bad", signed(value)
                note = f"{name} predicted as {names[j]}: {words} of {totals[i]} images"
            elif value:
                tone, words, note = "moved", str(value), f"{value} images: {name} → {names[j]}"
            # The square root keeps single images visible beside hundreds.
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
