"""The page of a benchmark suite: its table, gains with intervals, source models, and the protocol of every cell."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from dept.bench import suites
from dept.bench.entry import Entry
from dept.bench.render import WIDE, below, duration, number
from dept.bench.runner import PACKED, Stored
from dept.bench.stored import choose, stored_cells, suite_cells
from dept.bench.table import MEAN, Line, make_table
from dept.bench.table import Table as Results
from dept.errors import DataError
from dept.report.blocks import Figure, Fold, Page, Section, Table, TableCell, Tile
from dept.report.gain_chart import gain_chart, gain_span, gain_tone, gain_words


def holds_cells(folder: Path) -> bool:
    """Whether a folder is that of a suite with finished cells, and not something else."""
    if (folder / "config.json").exists() or (folder / "predictions.jsonl").exists():
        return False
    return (folder / PACKED).is_file() or any(folder.glob("*/result.json"))


def bench_page(folder: Path) -> Page:
    """The page of all finished cells of a suite. Numbers, names and notes are those of `dept bench SUITE`."""
    own = stored_cells(folder)
    scored = [one for one in own if "after" in one.result]
    if not scored:
        raise DataError(f"The {len(own)} cells in {folder} hold no adaptation with scores before and after.")
    names = sorted({one.cell.suite for one in scored})
    if len(names) > 1 or names[0] not in suites.available():
        raise DataError(
            f"{folder} holds cells of {', '.join(names)}. A page shows one suite that this version of dept knows: see "
            "`dept bench list`."
        )
    suite = suites.get(names[0])
    cells = suite_cells(suite, folder.parent) if folder.name == suite.name else own
    table = make_table(choose(suite, cells))
    return Page(
        title=f"Benchmark {suite.name}",
        subtitle=suite.title,
        verdict=_verdict(table),
        tone="",  # many methods have no common verdict
        sections=tuple(_sections(table, cells)),
        folds=tuple(_folds(one for one in cells if "after" in one.result)),
    )


def _gained(table: Results) -> Iterator[tuple[str, Line, Entry]]:
    """Column, row and entry of every gain, column by column, without the mean column."""
    for at, column in enumerate(table.columns):
        for line in table.lines:
            if column != MEAN and line.entries[at].gain is not None:
                yield column, line, line.entries[at]


def _verdict(table: Results) -> str:
    found, lower = list(_gained(table)), table.lower_is_better
    if not found:
        return f"{len(table.lines)} rows, none of them an adapted source model: there is no gain to report."
    tones = [gain_tone(entry, lower=lower) for _, _, entry in found]
    unknown = sum(entry.interval is None for _, _, entry in found)
    tail = f" ({unknown} without interval)" if unknown else ""
    column, line, best = max(found, key=lambda one: (one[2].gain or 0.0) * (-1 if lower else 1))
    return (
        f"Of {len(found)} adaptations{tail}, {tones.count('good')} are clearly better and {tones.count('bad')} clearly "
        f"worse than their baseline. The largest gain is {line.label} on {column}: "
        f"{gain_words(best)} points{' of error' if lower else ''}."
    )


def _sections(table: Results, cells: Sequence[Stored]) -> Iterator[Section]:
    lower = table.lower_is_better
    lead = (
        f"Top-1 {'error' if lower else 'accuracy'} in %, mean ± standard deviation over seeds. Second line: change "
        "over the row's own source model (with source data: over ERM) in points, with the paired 95 % interval."
    )
    yield Section("table", "Methods and shifts", lead, table=_table(table))
    rows: dict[str, list[tuple[str, Entry]]] = {}
    for column, line, entry in _gained(table):
        rows.setdefault(column, []).append((line.label, entry))
    if rows:
        span = gain_span([entry for _, _, entry in _gained(table)])  # one scale for all columns
        figures = tuple(Figure(gain_chart(own, span, lower=lower), column) for column, own in rows.items())
        words = "Whiskers are paired 95 % intervals. Green is clearly better, red clearly worse, violet unclear."
        yield Section("gains", "Gains", words, figures)
    sources = []
    for one in cells:
        if "accuracy" in one.result:
            name = f"{one.cell.shift}, {one.cell.setting}, seed {one.cell.seed}"
            sources.append(Tile(name, f"{100 * one.result['accuracy']:.1f} %", "held-out source accuracy"))
    if sources:
        yield Section("sources", "Source models", tiles=tuple(sources))


def _table(table: Results) -> Table:
    """With many columns only the mean has gains. The figures show the others."""
    wide = len(table.columns) > WIDE
    rows = []
    for line in table.lines:
        tuned = f"{line.tunable:,} tuned" if line.tunable else "nothing tuned"
        changed = f"{100 * line.changed:.0f} % changed" if line.changed is not None and line.tunable else ""
        taken = "" if line.seconds is None else duration(line.seconds)
        cells = [
            _cell(entry, lower=table.lower_is_better, gain=not wide or column == MEAN)
            for column, entry in zip(table.columns, line.entries, strict=True)
        ]
        rows.append([TableCell(line.label, " · ".join(filter(None, (tuned, changed, taken)))), *cells])
    return Table(["method", *table.columns], rows, tuple(below(table)), wide=wide)


def _cell(entry: Entry, *, lower: bool, gain: bool) -> TableCell:
    paper = "" if entry.paper is None else f"paper: {entry.paper:.1f}"
    if entry.mean is None:
        return TableCell("–", extra=paper)
    seeds = f"{entry.seeds} seeds" if entry.seeds > 1 and gain else ""
    per_class = f"{entry.per_class:.1f} per class" if entry.per_class is not None and gain else ""
    return TableCell(
        number(entry),
        note=gain_words(entry) if gain and entry.gain is not None else "",
        mark=entry.mark,
        tone=gain_tone(entry, lower=lower),
        extra=", ".join(filter(None, (per_class, seeds, paper))),
        best=entry.best,
    )


def _folds(cells: Iterator[Stored]) -> Iterator[Fold]:
    """The whole protocol of every cell."""
    for one in cells:
        cell, result = one.cell, one.result
        title = ", ".join((str(cell.shift).replace("->", " → "), cell.method, cell.setting, f"seed {cell.seed}"))
        value = {"cell": cell.to_json(), **{name: result.get(name, {}) for name in ("protocol", "environment")}}
        yield Fold(title, json.dumps(value, indent=2, sort_keys=True, default=str))
