"""Marks and footnotes of a table: which results of a column may be compared, and what sets the others apart.

Results whose protocol differs from the rest of their column carry a mark that a footnote explains (the fields are those
of `protocol.standings`). Only what does not differ from the rest of its setting takes part in the race for the best.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from dept.bench.entries import Note
from dept.bench.found import Choice, Found
from dept.bench.protocol import Standing, sentence, standings
from dept.bench.suite import Suite

MARKS = "†‡§¶‖※"


class Notes:
    """Footnotes; equal texts share a mark."""

    def __init__(self) -> None:
        self.marks: dict[str, str] = {}
        self.plain: list[str] = []

    def mark(self, text: str) -> str:
        """The mark of a footnote, the same for the same text."""
        number = len(self.marks)
        return self.marks.setdefault(text, MARKS[number % len(MARKS)] * (1 + number // len(MARKS)))

    def say(self, text: str) -> None:
        """Add a footnote without a mark."""
        if text not in self.plain:
            self.plain.append(text)

    def __iter__(self) -> Iterator[Note]:
        yield from (Note(mark, text) for text, mark in self.marks.items())
        yield from (Note("", text) for text in self.plain)


def marks_of(suite: Suite, shift: str, choices: Sequence[Choice], notes: Notes) -> list[tuple[str, bool]]:
    """For each row of a column its mark, and whether it may be ranked; notes what is left out of averages.

    Marked is what differs from the rest of the column; ranked is what does not differ from the rest of its setting.
    """
    kept = {n: choice.kept[0] for n, choice in enumerate(choices) if choice.kept}
    whole = _standings(kept, dict.fromkeys(kept, ""))
    own = _standings(kept, {n: suite.rows[n].task for n in kept})
    marks = []
    for n, (row, choice) in enumerate(zip(suite.rows, choices, strict=True)):
        marks.append(_mark(kept[n], whole[n], own[n], notes) if n in kept else ("", True))
        for seed, reason in choice.aside:
            notes.say(f"Not averaged: {row.label} on {shift}, seed {seed} ({reason}).")
    return marks


def _standings(kept: Mapping[int, Found], groups: Mapping[int, str]) -> dict[int, Standing]:
    """The standing of every result among those of its group."""
    found: dict[int, Standing] = {}
    for group in set(groups.values()):
        members = [n for n in kept if groups[n] == group]
        found |= zip(members, standings([kept[n].record for n in members]), strict=True)
    return found


def _mark(one: Found, standing: Standing, own: Standing, notes: Notes) -> tuple[str, bool]:
    marks = ""
    if one.departures:
        marks += notes.mark(f"not as the suite defines it: {sentence(one.departures)}")
        # What follows from the departure need not be told twice.
        return marks, False
    if standing.apart:
        marks += notes.mark(f"comparable only with rows of the same mark: {sentence(standing.apart)}")
    if standing.noted:
        marks += notes.mark(f"note: {sentence(standing.noted)}")
    return marks, not own.apart
