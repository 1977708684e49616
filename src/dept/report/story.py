"""The story that the demo's report begins with: what happened in one picture, and a setting that went wrong.

The picture is an SVG with its own colours, so that it can stand outside the page too (see `standalone`).
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
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
WIDTH, HEIGHT, MIDDLE = 820, 312, 400  # the labels are left of the middle, the intervals right of it
AXIS = (-70.0, 30.0)  # points; longer if a run needs it
TONES: dict[str, Tone] = {"improved": "good", "harmful": "bad"}
LIGHT = {
    "page": "#ffffff", "line": "#dfe4ea", "ink": "#16202b", "soft": "#566270", "good": "#007a5a", "bad": "#c2410c",
    "unclear": "#6b5bab",
}  # fmt: skip
DARK = {
    "page": "#161d25", "line": "#2b3542", "ink": "#e7ebf0", "soft": "#9daab8", "good": "#35c796", "bad": "#ff8a5c",
    "unclear": "#b0a2f0",
}  # fmt: skip
SOFT = "st-text st-soft"
FONTS = (  # words have a rim, because lines run behind them
    ".st-text,.st-bold{font:13px system-ui,sans-serif;paint-order:stroke;stroke-width:4px;stroke-linejoin:round}"
    ".st-bold{font-weight:600;font-size:14px}.st-bar{opacity:.35}"
)


def _style() -> str:
    """Colours for a light and a dark page, by the names of `LIGHT`."""

    def rules(colours: Mapping[str, str]) -> str:
        fills = "".join(f".st-{name}{{fill:{colour}}}" for name, colour in colours.items())
        strokes = f".st-line{{stroke:{colours['line']}}}.st-zero{{stroke:{colours['soft']}}}"
        return f"{fills}{strokes}.st-text,.st-bold{{stroke:{colours['page']}}}"

    return f"<style>{FONTS}{rules(LIGHT)}@media(prefers-color-scheme:dark){{{rules(DARK)}}}</style>"


@dataclass(frozen=True)
class Estimate:
    """What is said about the gain of a run from few labels, or from none."""

    labels: int
    verdict: str
    low: float
    high: float
    """points"""

    @property
    def tone(self) -> Tone:
        """That of the verdict."""
        return TONES.get(self.verdict, "unclear")

    @property
    def title(self) -> str:
        """What it rests on, and the verdict."""
        return f"{f'with {self.labels} labels' if self.labels else 'without labels'}: {self.verdict}"

    def __str__(self) -> str:
        return f"{self.title}, {signed(self.low, 1)} to {signed(self.high, 1)}"


@dataclass(frozen=True)
class Told:
    """A run of the story, scored on labels that it did not see."""

    name: str
    result: Result
    judged: Mapping[str, Any] | None = None
    """what `dept judge` says of it, if it was asked"""

    @property
    def said(self) -> Estimate:
        """What was expected without labels."""
        expected = self.result["expected"]
        return Estimate(0, expected["verdict"], 100 * expected["low"], 100 * expected["high"])

    @property
    def estimates(self) -> list[Estimate]:
        """Without labels, then with some."""
        if self.judged is None:
            return [self.said]
        low, high = (100 * end for end in self.judged["ci95"])
        return [self.said, Estimate(len(self.judged["labels"]), self.judged["verdict"], low, high)]

    @property
    def truth(self) -> float:
        """The change of accuracy that labels show, in points."""
        return 100 * (self.result["after"]["top1"] - self.result["before"]["top1"])

    @property
    def accuracies(self) -> str:
        """Before and after."""
        return f"{100 * self.result['before']['top1']:.1f} → {100 * self.result['after']['top1']:.1f} %"

    def __str__(self) -> str:
        estimates = ". ".join(str(one).capitalize() for one in self.estimates)
        return f"{self.name}: accuracy {self.accuracies}, {signed(self.truth, 1)} points. {estimates}."


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
    aside = "the adapter is set aside" if wrong.said.tone == "bad" else "the adapter is kept"
    tiles = (
        Tile("confidence", f"{before['confidence']:.2f} → {after['confidence']:.2f}", "does not tell good from bad"),
        Tile("effective classes", effective, f"of {classes}"),
        Tile("verdict without labels", wrong.said.verdict, aside, wrong.said.tone),
        Tile("accuracy", wrong.accuracies, "by all labels", "bad" if wrong.truth < 0 else ""),
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
    """Left: what the model learned from, and predictions that changed. Right: estimates of the gain, and the truth."""
    parts = [_style(), f'<rect width="{WIDTH}" height="{HEIGHT}" rx="10" class="st-page"/>']
    parts.append(text(20, 30, "Trained on", css="st-bold st-ink"))
    parts += [_image(image, 20 + PITCH * place, 40) for place, image in enumerate(learned_from[:COLUMNS])]
    label = " ".join(map(str, runs))
    return svg(WIDTH, HEIGHT, label, *parts, *_changed_labels(measured), *_intervals(runs))


def _changed_labels(measured: Measured) -> list[str]:
    """How many predictions changed, and some of the images, drawn at random."""
    assert measured.before is not None and measured.labels is not None
    found = changes(measured.before.predicted, measured.after.predicted, measured.after.confidence, measured.labels)
    counts = f"{found.total:,} predictions changed: {len(found.fixed):,} corrected, {len(found.broken):,} broken"
    parts = [text(20, 114, "Adapted to, without labels", css="st-bold st-ink"), text(20, 132, counts, css=SOFT)]
    changed = sorted((*found.fixed, *found.broken, *found.other))
    drawn = sorted(random.Random(DRAW_SEED).sample(changed, min(DRAWN, len(changed))))
    for place, index in enumerate(drawn):
        x, y = 20 + PITCH * (place % COLUMNS), 142 + 80 * (place // COLUMNS)
        numbers = (measured.labels[index], measured.before.predicted[index], measured.after.predicted[index])
        truth, was, now = (measured.classes[int(number)] for number in numbers)
        tone, mark = ("good", "✓") if now == truth else ("bad", "✗") if was == truth else ("soft", "✗")
        words = text(x, y + SIDE + 16, f"{was} → {now} {mark}", css=f"st-text st-{tone}")
        parts += [_image(measured.view(index), x, y), words]
    return parts


def _image(image: Image.Image, x: float, y: float) -> str:
    return f'<image href="{data_uri(thumbnail(image, SIDE))}" x="{x}" y="{y}" width="{SIDE}" height="{SIDE}"/>'


def _intervals(runs: Sequence[Told]) -> list[str]:
    """For every run a bar per estimate of its gain in points, and a dot where the truth is."""
    ends = [value for run in runs for one in run.estimates for value in (one.low, one.high, run.truth)]
    low, high = min(AXIS[0], *ends), max(AXIS[1], *ends)
    scale, bottom = (WIDTH - 30 - MIDDLE) / (high - low), 260
    parts = [text(MIDDLE, 30, "Change in accuracy, points", css="st-bold st-ink")]
    for value in ticks(low, high):
        x = MIDDLE + scale * (value - low)
        css = "st-line" if value else "st-zero"
        parts.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="42" y2="{bottom}" class="{css}"/>')
        parts.append(text(x, bottom + 16, signed(value) if value else "0", anchor="middle", css=SOFT))
    y = 60
    for run in runs:
        parts.append(text(MIDDLE, y, f"{run.name}: {run.accuracies}", css="st-text st-ink"))
        dot = f'cx="{MIDDLE + scale * (run.truth - low):.1f}" r="6" class="st-ink"'
        for one in run.estimates:
            bar = f'x="{MIDDLE + scale * (one.low - low):.1f}" width="{max(scale * (one.high - one.low), 2):.1f}"'
            words = f"{one.title}, adapter set aside" if one.tone == "bad" else one.title
            parts.append(text(MIDDLE, y + 19, words, css=f"st-text st-{one.tone}"))
            parts.append(f'<rect {bar} y="{y + 26}" height="16" rx="4" class="st-bar st-{one.tone}"/>')
            parts.append(f'<circle {dot} cy="{y + 34}"/>')
            y += 44
        y += 34
    parts.append(text(MIDDLE, bottom + 38, "bar: estimated; dot: measured with all labels", css=SOFT))
    return parts
