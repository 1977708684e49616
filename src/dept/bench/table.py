"""Tables of stored results: mean ± sd over seeds, gain, the paper's number, best and second, and marks.

A row is found by (method, setting); a column is the target of a shift (the whole shift where targets repeat), and a
last column is the mean over all of them. The best is found per column and setting (offline, online and with source data
are different tasks); source rows take part, results with a protocol of their own do not (see `notes`).
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import cast

from dept.bench.entry import Entry, Measured, hits, mean_measured, mean_of, measured
from dept.bench.notes import Note, Notes, marks_of, protocol_line, summary
from dept.bench.paper import citation, paper_notes, paper_number
from dept.bench.shift import Shift
from dept.bench.stored import Choice, Results, Run
from dept.bench.suite import Row, Suite
from dept.data.datasets.derived import split_name
from dept.metrics import paired_interval
from dept.runs.record import Result

MEAN = "mean"
"""name of the last column, where there are several"""
WHOLE = "whole stream"
MOST_NAMED = 20

Column = list[Measured]
"""an entry for every row of the suite"""


@dataclass(frozen=True)
class Line:
    """A row of the table."""

    label: str
    method: str
    setting: str
    entries: tuple[Entry, ...]
    tunable: int | None = None
    """parameters in the adapter"""
    seconds: float | None = None
    """of one run, the source training not counted"""
    changed: float | None = None


@dataclass(frozen=True)
class Table:
    """A table as data, with its footnotes and its protocol. Numbers are percent, as they are printed."""

    suite: str
    title: str
    metric: str
    columns: tuple[str, ...]
    lines: tuple[Line, ...]
    notes: tuple[Note, ...] = ()
    protocol: str = ""
    citation: str = ""
    """of the paper, where its numbers stand beside ours"""
    summary: str = ""
    """the protocol in a few words"""

    @property
    def lower_is_better(self) -> bool:
        """Whether the headline is an error."""
        return self.metric == "error"


def make_table(results: Results, *, per_class: str | None = None) -> Table:
    """The table of a suite.

    Args:
        per_class: a shift (or its target): one column per class instead of one per shift.
    """
    suite, notes = results.suite, Notes()
    if per_class is None:
        names, columns = _by_shift(results, notes)
        title, metric = suite.title, suite.metric
    else:
        shift = suite.chosen(shifts=(per_class,)).shifts[0]
        names, columns = _by_class(results, shift, notes)
        title, metric = f"{suite.title}; {shift} per class", "top1" if suite.metric == "error" else suite.metric
    if len(columns) > 1 and names[-1] != WHOLE:
        rows = zip(suite.rows, zip(*columns, strict=True), strict=True)
        columns.append([mean_measured(row, _printed(suite, own, (MEAN,))) for own, row in rows])
        names = (*names, MEAN)
    ranked = [_ranked(column, suite.rows, lower=metric == "error") for column in columns]
    lines = _shown([_line(row, [column[n] for column in ranked]) for n, row in enumerate(suite.rows)], notes)
    cited = any(entry.paper is not None for line in lines for entry in line.entries)
    return Table(
        suite.name,
        title,
        metric,
        names,
        tuple(lines),
        tuple(notes),
        protocol_line(results),
        " ".join([citation(), *(f"{note[0].upper()}{note[1:]}." for note in paper_notes(suite.paper))])
        if cited
        else "",
        summary(results),
    )


def column_names(shifts: Sequence[Shift]) -> tuple[str, ...]:
    """Targets of the shifts, "cartoon" or "snow" (for "snow/5"); whole shifts where a target comes up twice."""
    names = [s.target if len(s.targets) == 1 else f"{len(s.targets)} domains" for s in shifts]
    if len({split_name(name)[1] for name in names}) == 1:
        names = [split_name(name)[0] for name in names]
    return tuple(names if len(set(names)) == len(names) else map(str, shifts))


# -- columns -----------------------------------------------------------------------------------------------


def _by_shift(results: Results, notes: Notes) -> tuple[tuple[str, ...], list[Column]]:
    """A column per shift; a stream through several domains gets one for each of them before that of the whole."""
    suite, columns = results.suite, []
    for shift in suite.shifts:
        choices = _compared(results, shift, notes)
        marks = marks_of(suite, shift, choices, notes)
        only = (MEAN,) if len(suite.shifts) == 1 else ()  # the paper's mean stands beside a single shift
        printed = (str(shift), shift.target, split_name(shift.target)[0], *only)
        columns.append(
            [
                measured(choice.kept, suite.metric, mark, _printed(suite, row, printed))
                for row, choice, mark in zip(suite.rows, choices, marks, strict=True)
            ]
        )
    if len(suite.shifts) > 1 or len(shift.targets) == 1:
        return column_names(suite.shifts), columns
    domains = [
        [
            measured(_segments(choice.kept, domain), suite.metric, mark, None)
            for choice, mark in zip(choices, marks, strict=True)
        ]
        for domain in shift.targets
    ]
    return (*shift.targets, WHOLE), [*domains, *columns]


def _by_class(results: Results, shift: Shift, notes: Notes) -> tuple[tuple[str, ...], list[Column]]:
    """Names of the classes, and a column of accuracies for each."""
    suite, choices = results.suite, _compared(results, shift, notes)
    marks = marks_of(suite, shift, choices, notes)
    classes = next((tuple(run.result["after"]["per_class"]) for choice in choices for run in choice.kept), ())
    columns = [
        [
            measured(choice.kept, f"class:{name}", mark, _printed(suite, row, (name,)))
            for row, choice, mark in zip(suite.rows, choices, marks, strict=True)
        ]
        for name in classes
    ]
    return classes, columns


def _compared(results: Results, shift: Shift, notes: Notes) -> list[Choice]:
    """The results of every row on one shift; what was trained with source data is compared with ERM."""
    choices, rows = results.column(shift), results.suite.rows
    together = [n for n, row in enumerate(rows) if row.setting == "uda" and choices[n].kept]
    erm = {run.seed: run.result for n in together if rows[n].method == "erm" for run in choices[n].kept}
    for n in together:
        compared = tuple(_over(run, erm.get(run.seed)) for run in choices[n].kept)
        choices[n] = replace(choices[n], kept=compared)
    if together:
        notes.say("Training with source data begins with an untrained head: gain and changed are against ERM.")
    return choices


def _over(run: Run, reference: Result | None) -> Run:
    """The result as if it had begun where another one ended; without a gain if that is itself, or missing."""
    left_out = ("before", "gain", "gain_ci95", "label_free", "predictions")
    if reference is None or reference is run.result:
        return replace(run, result=_altered(run.result, left_out))
    given = run.result["predictions"].copy()
    given["before"] = reference["predictions"]["after"]
    changed = statistics.mean(p != q for p, q in zip(given["before"], given["after"], strict=True))
    begun = {"before": reference["after"], "predictions": given, "label_free": {"changed": changed}}
    result = _altered(run.result, left_out, **begun)
    if "labels" in given:
        result["gain_ci95"] = paired_interval(hits(result, "after"), hits(result, "before"))
    return replace(run, result=result)


def _segments(kept: Sequence[Run], domain: str) -> list[Run]:
    """The results as if the stream had been this domain; those whose stream mixes the domains are left out."""
    left_out = ("gain", "gain_ci95", "seconds", "label_free", "predictions")  # known of the whole stream only
    parts = [(run, run.result["segments"][domain]) for run in kept if domain in run.result.get("segments", {})]
    return [
        replace(run, result=_altered(run.result, left_out, **{when: {"top1": top1} for when, top1 in part.items()}))
        for run, part in parts
    ]


def _altered(result: Result, left_out: Sequence[str], **changes: object) -> Result:
    return cast(Result, {name: value for name, value in result.items() if name not in left_out} | changes)


def _printed(suite: Suite, row: Row, columns: Sequence[str]) -> float | None:
    if not (suite.paper and row.paper):
        return None
    numbers = (paper_number(suite.paper, row.paper, column) for column in columns)
    return next((number for number in numbers if number is not None), None)


# -- lines -------------------------------------------------------------------------------------------------


def _ranked(column: Column, rows: Sequence[Row], *, lower: bool) -> list[Measured]:
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


def _line(row: Row, cells: Sequence[Measured]) -> Line:
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
