"""Tables of stored results: mean ± sd over seeds, gain, the paper's number, best and second, and marks.

A row is found by (method, setting); a column is the target of a shift (the whole shift where targets repeat), and a
last column is the mean over all of them. The best is found per column and setting (offline, online and with source data
are different tasks); source rows take part, results with a protocol of their own do not (see `marks`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from dept.bench.columns import WHOLE, Cell, by_class, by_shift, column_names, mean_of, means, with_segments
from dept.bench.entries import MEAN, Entry, Line, Note, Table
from dept.bench.found import stored_cells
from dept.bench.marks import Notes
from dept.bench.paper import citation, paper_notes
from dept.bench.protocol_line import protocol_line
from dept.bench.render import render
from dept.bench.suite import Row, Suite

__all__ = ["Entry", "Line", "Note", "Table", "make_table", "protocol_line", "render", "stored_cells"]

MOST_NAMED = 20


def make_table(suite: Suite, cells: Sequence[dict[str, Any]], *, per_class: str | None = None) -> Table:
    """The table of a suite from its stored results.

    Args:
        cells: entries {"cell": …, "result": …}, as `stored_cells` reads them.
        per_class: a shift (or its target): one column per class instead of one per shift.
    """
    notes = Notes()
    if per_class is None:
        names, columns = column_names(suite.shifts), by_shift(suite, cells, notes)
        names, columns = with_segments(suite, cells, names, columns)
        headline = suite.metric
    else:
        shift = suite.chosen(shifts=(per_class,)).shifts[0]
        names, columns = by_class(suite, shift, cells, notes)
        headline = "top1" if suite.metric == "error" else suite.metric
    if len(columns) > 1 and names[-1] != WHOLE:
        names, columns = (*names, MEAN), [*columns, means(suite, columns)]
    ranked = [_ranked(column, suite.rows, lower=headline == "error") for column in columns]
    lines = _shown([_line(row, [column[n] for column in ranked]) for n, row in enumerate(suite.rows)], notes)
    return Table(
        suite.name,
        suite.title if per_class is None else f"{suite.title}; {shift} per class",
        headline,
        tuple(names),
        tuple(lines),
        tuple(notes),
        protocol_line(suite, cells),
        _citation(suite) if any(entry.paper is not None for line in lines for entry in line.entries) else "",
    )


def _citation(suite: Suite) -> str:
    """Where the paper's numbers are from, and what is odd about them."""
    notes = [f"{note[0].upper()}{note[1:]}." for note in paper_notes(suite.paper)]
    return " ".join([citation(), *notes])


def _ranked(column: Sequence[Cell], rows: Sequence[Row], *, lower: bool) -> list[Cell]:
    """Best and second of every setting, by the printed digits; no best where only one number stands."""
    made = list(column)
    for task in dict.fromkeys(row.task for row in rows):
        members = [n for n, row in enumerate(rows) if row.task == task and column[n].ranked]
        digits = {n: round(mean, 1) for n in members if (mean := column[n].entry.mean) is not None}
        places = sorted(set(digits.values()), reverse=not lower)
        for n, shown in digits.items():
            best, second = len(digits) > 1 and shown == places[0], shown in places[1:2]
            made[n] = replace(column[n], entry=replace(column[n].entry, best=best, second=second))
    return made


def _line(row: Row, cells: Sequence[Cell]) -> Line:
    entries = tuple(cell.entry for cell in cells)
    return Line(
        row.label,
        row.method,
        row.task,
        entries,
        next((cell.tunable for cell in cells if cell.tunable is not None), None),
        mean_of([entry.seconds for entry in entries]),
        mean_of([entry.changed for entry in entries]),
    )


def _shown(lines: Sequence[Line], notes: Notes) -> list[Line]:
    """The rows that have a number, of ours or the paper's; the others are named in a note."""
    empty = [line for line in lines if all(entry.mean is None and entry.paper is None for entry in line.entries)]
    if not empty or len(empty) == len(lines):
        return list(lines)
    named = "; ".join(line.label for line in empty)
    notes.say(f"No results yet: {named if len(empty) <= MOST_NAMED else f'{len(empty)} other rows'}.")
    return [line for line in lines if line not in empty]
