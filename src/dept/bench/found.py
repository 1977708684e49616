"""Stored results that belong to a row of a suite, and which of them may be averaged.

The seeds of a row are averaged only if nothing but the seed differs. What fits the suite's definition comes first; a
result of another definition (another limit, another number of steps) is shown only where nothing fits, and marked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dept.bench.protocol import SEED, Difference, conflicts, differences, record, sentence
from dept.bench.runner import Cell, read_cell
from dept.bench.suite import TRAINING, Row, Suite

Stored = Mapping[str, Any]


@dataclass(frozen=True)
class Found:
    """A stored result of a row: what it says about itself, and how it departs from the suite's definition."""

    seed: int
    result: Stored
    record: Mapping[str, Any]
    departures: tuple[Difference, ...]


@dataclass(frozen=True)
class Choice:
    """Results of a row on one shift that may be averaged, and those that may not, each with the reason."""

    kept: tuple[Found, ...] = ()
    aside: tuple[tuple[int, str], ...] = ()


def stored_cells(folder: Path) -> list[dict[str, Any]]:
    """All finished cells of a suite."""
    return [read_cell(file) for file in sorted(folder.glob("*/result.json"))]


def suite_cells(suite: Suite, results: Path) -> list[dict[str, Any]]:
    """All finished cells of a suite, and what it borrows from others: source models, and rows for its own seeds."""
    homes = {row.home for row in suite.rows} | {source.home for source in suite.sources.values()}
    lent = [entry for home in sorted(homes - {""}) for entry in stored_cells(results / home)]
    return stored_cells(results / suite.name) + [entry for entry in lent if _borrowed(suite, entry["cell"])]


def _borrowed(suite: Suite, cell: Stored) -> bool:
    if cell["method"] == TRAINING:
        return any(source.home == cell["suite"] for source in suite.sources.values())
    rows = [row for row in suite.rows if row.home == cell["suite"]]
    return cell["seed"] in suite.seeds and any(_belongs(cell, row, cell["shift"]) for row in rows)


def key_of(entry: Stored) -> str:
    """The key of a stored cell."""
    return Cell(**entry["cell"]).key


def trainings(cells: Sequence[Stored]) -> dict[str, dict[str, Any]]:
    """Protocols of the stored source trainings by their key."""
    return {key_of(entry): entry["cell"]["protocol"] for entry in cells if entry["cell"]["method"] == TRAINING}


def chosen(suite: Suite, row: Row, shift: str, cells: Sequence[Stored]) -> Choice:
    """The results of a row on one shift."""
    known = trainings(cells)
    found = [
        Found(
            entry["cell"]["seed"],
            entry["result"],
            record(entry, known),
            tuple(departures(suite, row, shift, entry, known)),
        )
        for entry in cells
        if _belongs(entry["cell"], row, shift)
    ]
    groups = sorted(_groups(found), key=lambda group: (bool(group[0].departures), -len(group), group[0].seed))
    if not groups:
        return Choice()
    first, *others = groups
    aside = [(other.seed, _reason(other, first[0])) for group in others for other in group]
    by_seed = {one.seed: one for one in reversed(first)}
    kept = [by_seed[seed] for seed in sorted(by_seed)]
    return Choice(tuple(kept if row.random else kept[:1]), tuple(aside))


def departures(
    suite: Suite, row: Row, shift: str, entry: Stored, known: Mapping[str, Mapping[str, Any]]
) -> list[Difference]:
    """Where a stored cell is not the cell that the suite defines: (field, stored, defined)."""
    asked = dict(entry["cell"]["protocol"])
    defined = dict(suite.cell(row, shift, entry["cell"]["seed"], "").protocol)
    keys = asked.pop("source", "").split("+")
    defined.pop("source")
    starts = zip(suite.starts(row, shift), keys, strict=False)
    found = [_source_departures(suite, row, start, key, entry["result"], known) for start, key in starts]
    return [difference for one in found for difference in one] + differences(asked, defined)


def _source_departures(
    suite: Suite, row: Row, shift: str, key: str, result: Stored, known: Mapping[str, Mapping[str, Any]]
) -> list[Difference]:
    """The same for the source model; where its training is not stored, by what the result itself says of it."""
    if key in known:
        weights = known[key].get("weights_sha256", "")
        if suite.source_cell(row.source, shift, weights).key == key:
            return []
        found = differences({"source": known[key]}, {"source": suite.sources[row.source].protocol(weights)})
        return found or [("source", key, suite.source_cell(row.source, shift, weights).key)]
    source, said = suite.sources[row.source], record({"result": result})
    stated = {"arch": source.arch, "stages": source.stages, "prompts": source.prompts, "preprocess.size": source.size}
    # Methods that need prompts give a plain model fresh ones.
    return conflicts(said, stated, but=() if source.stages else ("stages", "prompts"))


def _belongs(cell: Stored, row: Row, shift: str) -> bool:
    return bool((cell["method"], cell["setting"], cell["shift"]) == (row.method, row.name, shift))


def _groups(found: Sequence[Found]) -> list[list[Found]]:
    """Results that differ in nothing but the seed."""
    groups: list[list[Found]] = []
    for one in sorted(found, key=lambda one: one.seed):
        for group in groups:
            if one.departures == group[0].departures and not conflicts(one.record, group[0].record, but=SEED):
                group.append(one)
                break
        else:
            groups.append([one])
    return groups


def _reason(other: Found, kept: Found) -> str:
    if other.departures:
        return sentence(other.departures)
    return sentence(conflicts(other.record, kept.record, but=SEED)) or "the kept results are of another definition"
