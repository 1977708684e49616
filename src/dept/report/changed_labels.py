"""The section with images whose predicted label changed."""

from __future__ import annotations

from collections import Counter

from dept.data.jpeg import data_uri
from dept.report import pictures
from dept.report.blocks import Gallery, Picture, Section, Tone
from dept.report.measure import Measured
from dept.report.summaries import changes


def changed_section(measured: Measured | None, missing: str) -> Section:
    """Thumbnails of images whose predicted label changed, before → after."""
    key, title = "changed", "Labels that changed"
    if measured is None or measured.before is None:
        return Section(key, title, missing=missing or "There is no model to compare with.")
    found = changes(measured.before.predicted, measured.after.predicted, measured.after.confidence, measured.labels)
    if not found.total:
        return Section(key, title, missing="No prediction changed.")
    lead = f"{found.total:,} of {len(measured.images):,} labels changed"
    kinds: list[tuple[str, tuple[int, ...], int, Tone, str]] = [("Changed", found.other, 48, "", "")]
    if measured.labels is not None:
        kinds = [
            ("Now right", found.fixed, 24, "good", "✓"),
            ("Now wrong", found.broken, 16, "bad", "✗"),
            ("Wrong before and after", found.other, 8, "", "≠"),
        ]
        lead += (
            f": {len(found.fixed):,} from wrong to right, {len(found.broken):,} from right to wrong, "
            f"{len(found.other):,} from one wrong class to another"
        )
    galleries = []
    for name, indices, most, tone, mark in kinds:
        chosen = _varied(measured, indices)[:most]
        if chosen:
            images = [_picture(measured, index, tone, mark) for index in chosen]
            galleries.append(Gallery(f"{name}: {len(chosen)} of {len(indices):,}", images))
    lead += ". The most confident example of each kind of change comes first."
    return Section(key, title, lead, galleries=tuple(galleries))


def _varied(measured: Measured, indices: tuple[int, ...]) -> list[int]:
    """The first of every pair (before, after), then the second of every pair, and so on: not one pair only."""
    assert measured.before is not None
    seen: Counter[tuple[int, int]] = Counter()
    turns = []
    for index in indices:
        pair = (int(measured.before.predicted[index]), int(measured.after.predicted[index]))
        turns.append((seen[pair], index))
        seen[pair] += 1
    return [index for _, index in sorted(turns, key=lambda turn: turn[0])]


def _picture(measured: Measured, index: int, tone: Tone, mark: str) -> Picture:
    assert measured.before is not None
    names = measured.classes
    old, new = names[int(measured.before.predicted[index])], names[int(measured.after.predicted[index])]
    truth = "" if measured.labels is None else f", true class {names[int(measured.labels[index])]}"
    confidence = f"{100 * float(measured.after.confidence[index]):.0f} % confident"
    alt = f"{measured.images.names()[index]}: {old} → {new} ({confidence}{truth})"
    uri = data_uri(pictures.thumbnail(measured.view(index)))
    caption = f"{old} → {new}" + (truth if mark == "≠" else "")
    return Picture(uri, alt, caption, tone, mark)
