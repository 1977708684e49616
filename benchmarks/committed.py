"""The committed results in words, for the pages that are written from them."""

from __future__ import annotations

import statistics
from functools import cache
from pathlib import Path

from dept.bench import suites
from dept.bench.entry import Entry
from dept.bench.render import number
from dept.bench.stored import choose, suite_cells
from dept.bench.table import MEAN, WHOLE, Line, Table, make_table

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"


@cache
def table(suite: str) -> Table | None:
    """The table of a suite, if a result of it is committed."""
    if not (RESULTS / suite).is_dir():
        return None
    found = suites.get(suite)
    return make_table(choose(found, suite_cells(found, RESULTS)))


def line(suite: str, label: str) -> Line:
    """A row of a table that must be there."""
    found = table(suite)
    return next(one for one in found.lines if one.label == label) if found else Line(label, "", "", ())


def result(found: Table, one: Line) -> str:
    """The mean over all targets, or what there is of it."""
    whole, parts = _entries(found, one)
    if whole is not None:
        return number(whole)
    return f"{_mean([entry.mean for entry in parts]):.1f} ({_targets(found, parts)})"


def gain(found: Table, one: Line) -> str:
    """The gain that belongs to `result`, with its interval if all targets were run."""
    whole, parts = _entries(found, one)
    if whole is not None or len(parts) == 1:
        entry = whole or parts[0]
        ends = "" if entry.interval is None else f" [{entry.interval[0]:+.1f}, {entry.interval[1]:+.1f}]"
        return "" if entry.gain is None else f"{entry.gain:+.1f}{ends}"
    gains = [entry.gain for entry in parts]
    if all(value is None for value in gains):
        return ""
    return f"{_mean([value or 0.0 for value in gains]):+.1f}"  # where `auto` kept the source model, nothing changed


def _entries(found: Table, one: Line) -> tuple[Entry | None, list[Entry]]:
    """The entry for all targets if there is one, and those of the single targets that were run."""
    by_name = dict(zip(found.columns, one.entries, strict=True))
    whole = by_name.pop(MEAN, None) or by_name.pop(WHOLE, None)
    parts = [entry for entry in by_name.values() if entry.mean is not None]
    return whole if whole and whole.mean is not None else None, parts


def _targets(found: Table, parts: list[Entry]) -> str:
    names = [name for name in found.columns if name not in (MEAN, WHOLE)]
    return names[0] if len(names) == 1 else f"{len(parts)} of {len(names)} targets"


def _mean(values: list[float | None]) -> float:
    return statistics.mean(value for value in values if value is not None)
