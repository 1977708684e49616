"""Stored results of a suite, chosen once for every row and shift: tables, figures and comparisons read the same ones.

The seeds of a row are averaged only if nothing but the seed differs. What fits the suite's definition comes first; a
result of another definition (another limit, another number of steps) is shown only where nothing fits, and marked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dept.bench.protocol import SEED, SOURCE, Difference, conflicts, differences, record, sentence
from dept.bench.runner import Cell, Stored, cells_of
from dept.bench.shift import Shift
from dept.bench.suite import TRAINING, Row, Suite
from dept.runs.record import Result

Trainings = Mapping[str, Mapping[str, Any]]
"""protocols of the stored source trainings by their key"""


@dataclass(frozen=True)
class Run:
    """A stored result of a row: what it says about itself, and how it departs from the suite's definition."""

    seed: int
    result: Result
    record: Mapping[str, Any]
    departures: tuple[Difference, ...]


@dataclass(frozen=True)
class Choice:
    """Results of a row on one shift that may be averaged, and those that may not, each with the reason."""

    kept: tuple[Run, ...] = ()
    aside: tuple[tuple[int, str], ...] = ()


@dataclass(frozen=True)
class Results:
    """What is stored of a suite."""

    suite: Suite
    trainings: Trainings
    choices: Mapping[tuple[Shift, str], Choice]
    """by shift and label of the row"""

    def of(self, row: Row, shift: Shift) -> Choice:
        """The results of a row on one shift."""
        return self.choices[shift, row.label]

    def column(self, shift: Shift) -> list[Choice]:
        """The results of every row on one shift."""
        return [self.of(row, shift) for row in self.suite.rows]


def stored_cells(folder: Path) -> list[Stored]:
    """All finished cells of a suite."""
    return list(cells_of(folder).values())


def suite_cells(suite: Suite, results: Path) -> list[Stored]:
    """All finished cells of a suite, and what it borrows from others: source models, and rows for its own seeds."""
    homes = {row.home for row in suite.rows} | {source.home for source in suite.sources.values()}
    lent = [one for home in sorted(homes - {""}) for one in stored_cells(results / home)]
    return stored_cells(results / suite.name) + [one for one in lent if _borrowed(suite, one.cell)]


def _borrowed(suite: Suite, cell: Cell) -> bool:
    if cell.method == TRAINING:
        return any(source.home == cell.suite for source in suite.sources.values())
    rows = {(row.method, row.name) for row in suite.rows if row.home == cell.suite}
    return cell.seed in suite.seeds and (cell.method, cell.setting) in rows


def trainings(cells: Sequence[Stored]) -> dict[str, dict[str, Any]]:
    """Protocols of the stored source trainings by their key."""
    return {one.cell.key: one.cell.protocol for one in cells if one.cell.method == TRAINING}


def choose(suite: Suite, cells: Sequence[Stored]) -> Results:
    """The stored results of every row of a suite on every shift."""
    known = trainings(cells)
    places: dict[tuple[Shift, str, str], list[Stored]] = {}
    for one in cells:
        places.setdefault((one.cell.shift, one.cell.method, one.cell.setting), []).append(one)
    choices = {
        (shift, row.label): _choice(suite, row, shift, places.get((shift, row.method, row.name), []), known)
        for shift in suite.shifts
        for row in suite.rows
    }
    return Results(suite, known, choices)


def _choice(suite: Suite, row: Row, shift: Shift, cells: Sequence[Stored], known: Trainings) -> Choice:
    runs = [
        Run(
            one.cell.seed,
            one.result,
            record(one.result, one.cell.protocol, known),
            tuple(departures(suite, row, shift, one, known)),
        )
        for one in cells
    ]
    but = SEED + SOURCE if suite.sources[row.source].per_seed else SEED
    groups = sorted(_groups(runs, but), key=lambda group: (bool(group[0].departures), -len(group), group[0].seed))
    if not groups:
        return Choice()
    first, *others = groups
    aside = [(other.seed, _reason(other, first[0], but)) for group in others for other in group]
    by_seed = {one.seed: one for one in reversed(first)}
    kept = [by_seed[seed] for seed in sorted(by_seed)]
    return Choice(tuple(kept if suite.repeats(row) else kept[:1]), tuple(aside))


def departures(suite: Suite, row: Row, shift: Shift, one: Stored, known: Trainings) -> list[Difference]:
    """Where a stored cell is not the cell that the suite defines: (field, stored, defined)."""
    asked = dict(one.cell.protocol)
    defined = dict(suite.cell(row, shift, one.cell.seed, "").protocol)
    keys = asked.pop("source", "").split("+")
    defined.pop("source")
    starts = zip(suite.starts(row, shift), keys, strict=False)
    found = [_source_departures(suite, row, start, key, one, known) for start, key in starts]
    return [difference for one in found for difference in one] + differences(asked, defined)


def _source_departures(
    suite: Suite, row: Row, shift: Shift, key: str, one: Stored, known: Trainings
) -> list[Difference]:
    """The same for the source model; where its training is not stored, by what the result itself says of it."""
    if key in known:
        weights = known[key].get("weights_sha256", "")
        defined = suite.source_cell(row.source, shift, weights, one.cell.seed).key
        if defined == key:
            return []
        found = differences({"source": known[key]}, {"source": suite.sources[row.source].protocol(weights)})
        return found or [("source", key, defined)]
    source, said = suite.sources[row.source], record(one.result, {}, {})
    stated = {"arch": source.arch, "stages": source.stages, "prompts": source.prompts, "preprocess.size": source.size}
    # Methods that need prompts give a plain model fresh ones.
    return conflicts(said, stated, but=() if source.stages else ("stages", "prompts"))


def _groups(runs: Sequence[Run], but: Sequence[str]) -> list[list[Run]]:
    """Results that differ in nothing but the seed, and the fields that follow from it."""
    groups: list[list[Run]] = []
    for one in sorted(runs, key=lambda one: one.seed):
        for group in groups:
            if one.departures == group[0].departures and not conflicts(one.record, group[0].record, but=but):
                group.append(one)
                break
        else:
            groups.append([one])
    return groups


def _reason(other: Run, kept: Run, but: Sequence[str]) -> str:
    if other.departures:
        return sentence(other.departures)
    return sentence(conflicts(other.record, kept.record, but=but)) or "the kept results are of another definition"
