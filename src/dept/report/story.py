"""The story that the demo's report begins with: what happened in one picture, and a setting that went wrong.

The picture is an SVG with its own colours, so that it can stand outside the page too (see `standalone`).
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from PIL import Image

from dept.data.jpeg import data_uri
from dept.report.blocks import Figure, Section, Tile, Tone
from dept.report.measure import Measured
from dept.report.pictures import thumbnail
from dept.report.summaries import changes
from dept.report.svg import signed, svg, text, ticks
from dept.runs.record import Result

DRAWN, COLUMNS, SIDE, PITCH = 10, 5, 46, 66
DRAW_SEED = 0  # the changed images that are shown are drawn, not picked
WIDTH, HEIGHT, MIDDLE = 820, 300, 400  # the labels are left of the middle, the intervals right of it
AXIS = (-70.0, 30.0)  # points; longer if a run needs it
TONES: dict[str, Tone] = {"improved": "good", "harmful": "bad"}
COLOURS = {"ink": "#16202b", "soft": "#566270", "good": "#007a5a", "bad": "#c2410c", "unclear": "#6b5bab"}
STYLE = "".join(
    [
        "<style>.st-page{fill:#ffffff}.st-dot{fill:#16202b}.st-line{stroke:#dfe4ea}.st-zero{stroke:#566270}",
        *(f".st-{name}{{fill:{colour};font:13px system-ui,sans-serif}}" for name, colour in COLOURS.items()),
        *(f".st-bar-{name}{{fill:{colour};opacity:.3}}" for name, colour in COLOURS.items()),
        ".st-bold{fill:#16202b;font:600 14px system-ui,sans-serif}</style>",
    ]
)


@dataclass(frozen=True)
class Told:
    """A run of the story, scored on labels that it did not see."""

    name: str
    result: Result

    @property
    def said(self) -> dict[str, Any]:
        """What was expected without labels."""
        return self.result["expected"]

    @property
    def tone(self) -> Tone:
        """That of the verdict."""
        return TONES.get(self.said["verdict"], "unclear")

    @property
    def truth(self) -> float:
        """The change of accuracy that labels show, in points."""
        return 100 * (self.result["after"]["top1"] - self.result["before"]["top1"])

    @property
    def accuracies(self) -> str:
        """Before and after."""
        return f"{100 * self.result['before']['top1']:.1f} → {100 * self.result['after']['top1']:.1f} %"

    def __str__(self) -> str:
        span = " to ".join(signed(100 * self.said[side], 1) for side in ("low", "high"))
        said = f"said without labels: {self.said['verdict']}, {span} points"
        return f"{self.name}, {said}; labels say {signed(self.truth, 1)} ({self.accuracies})."


def story(measured: Measured, learned_from: Sequence[Image.Image], good: Told, wrong: Told) -> tuple[Section, Section]:
    """What happened, and how a mistake is caught.

    Args:
        learned_from: a few images of the source domain.
        good, wrong: the run of the report, and one with a bad setting.
    """
    picture = Figure(story_picture(measured, learned_from, (good, wrong)), "Before and after")
    return Section("story", "The story", f"{good} {wrong}", (picture,)), _mistake(wrong, len(measured.classes))


def _mistake(wrong: Told, classes: int) -> Section:
    """What a bad setting does, and what shows it."""
    before, after = (wrong.result["label_free"][when] for when in ("before", "after"))
    effective = f"{before['effective_classes']:.1f} → {after['effective_classes']:.1f}"
    aside = "the adapter is set aside" if wrong.tone == "bad" else "the adapter is kept"
    tiles = (
        Tile("confidence", f"{before['confidence']:.2f} → {after['confidence']:.2f}", "does not tell good from bad"),
        Tile("effective classes", effective, f"of {classes}"),
        Tile("verdict without labels", wrong.said["verdict"], aside, wrong.tone),
        Tile("accuracy", wrong.accuracies, "what labels say", "bad" if wrong.truth < 0 else ""),
    )
    lead = (
        f"{wrong.name}. A run that is judged harmful leaves `adapter.rejected.safetensors`, and `dept adapt` exits "
        "with 4, so that no script takes it by mistake."
    )
    return Section("mistake", "A wrong setting, and how it is caught", lead, tiles=tiles)


def standalone(picture: str) -> str:
    """The SVG as a file of its own, which needs the name of its language."""
    return picture.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1)


# -- the picture -------------------------------------------------------------------------------------------


def story_picture(measured: Measured, learned_from: Sequence[Image.Image], runs: Sequence[Told]) -> str:
    """Left: what the model learned from, and labels that changed. Right: intervals without labels, and the truth."""
    parts = [STYLE, f'<rect width="{WIDTH}" height="{HEIGHT}" rx="10" class="st-page"/>']
    parts.append(text(20, 30, "The model learned from", css="st-bold"))
    parts += [_image(image, 20 + PITCH * place, 40) for place, image in enumerate(learned_from[:COLUMNS])]
    label = " ".join(map(str, runs))
    return svg(WIDTH, HEIGHT, label, *parts, *_changed_labels(measured), *_intervals(runs))


def _changed_labels(measured: Measured) -> list[str]:
    """How many labels changed, and some of the images, drawn at random."""
    assert measured.before is not None and measured.labels is not None
    found = changes(measured.before.predicted, measured.after.predicted, measured.after.confidence, measured.labels)
    mended = f"{len(found.fixed):,} mended, {len(found.broken):,} spoilt"
    parts = [text(20, 118, f"{found.total:,} labels changed: {mended}", css="st-bold")]
    changed = sorted((*found.fixed, *found.broken, *found.other))
    drawn = sorted(random.Random(DRAW_SEED).sample(changed, min(DRAWN, len(changed))))
    for place, index in enumerate(drawn):
        x, y = 20 + PITCH * (place % COLUMNS), 128 + 80 * (place // COLUMNS)
        numbers = (measured.labels[index], measured.before.predicted[index], measured.after.predicted[index])
        truth, was, now = (measured.classes[int(number)] for number in numbers)
        tone, mark = ("good", "✓") if now == truth else ("bad", "✗") if was == truth else ("soft", "✗")
        parts += [_image(measured.view(index), x, y), text(x, y + SIDE + 16, f"{was} → {now} {mark}", css=f"st-{tone}")]
    return parts


def _image(image: Image.Image, x: float, y: float) -> str:
    return f'<image href="{data_uri(thumbnail(image, SIDE))}" x="{x}" y="{y}" width="{SIDE}" height="{SIDE}"/>'


def _intervals(runs: Sequence[Told]) -> list[str]:
    """A bar per run over what is expected without labels, in points, and a dot where the truth is."""
    ends = [value for one in runs for value in (100 * one.said["low"], 100 * one.said["high"], one.truth)]
    low, high = min(AXIS[0], *ends), max(AXIS[1], *ends)
    scale = (WIDTH - 30 - MIDDLE) / (high - low)
    parts = [text(MIDDLE, 30, "Change of accuracy in points", css="st-bold")]
    for value in ticks(low, high):
        x = MIDDLE + scale * (value - low)
        parts.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="44" y2="250" class="{"st-line" if value else "st-zero"}"/>')
        parts.append(text(x, 266, signed(value) if value else "0", anchor="middle", css="st-soft"))
    parts.append(text(MIDDLE, 288, "bar: said without labels; dot: measured with labels", css="st-soft"))
    for row, one in enumerate(runs):
        y, start, end = 66 + 98 * row, *(scale * (100 * one.said[side] - low) for side in ("low", "high"))
        bar = f'x="{MIDDLE + start:.1f}" y="{y + 12}" width="{max(end - start, 2):.1f}" height="22" rx="4"'
        kept = "adapter set aside" if one.tone == "bad" else "adapter kept"
        parts.append(text(MIDDLE, y + 2, one.name, css="st-ink"))
        parts.append(f'<rect {bar} class="st-bar-{one.tone}"/>')
        parts.append(f'<circle cx="{MIDDLE + scale * (one.truth - low):.1f}" cy="{y + 23}" r="6" class="st-dot"/>')
        words = f"said: {one.said['verdict']}, {kept}; accuracy {one.accuracies}"
        parts.append(text(MIDDLE, y + 54, words, css=f"st-{one.tone}"))
    return parts
