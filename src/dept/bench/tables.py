"""Tables of stored results: mean ± sd over seeds, gain, the paper's number, best and second, and marks.

A row is found by (method, setting); a column is the target of a shift (the whole shift where targets repeat), and a
last column is the mean over all of them. Results whose protocol differs from the rest of their column carry a mark
that a footnote explains (see `protocol.standings` for the fields) and take no part in the race for the best one.
It is run per column and setting (offline, online and with source data are different tasks); source rows take part.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from dept.bench.entries import Entry, Line, Note, Table
from dept.bench.found import Choice, Found, chosen, stored_cells
from dept.bench.paper import citation, paper_number
from dept.bench.protocol import Standing, sentence, standings
from dept.bench.protocol_line import protocol_line
from dept.bench.render import render
from dept.bench.suite import Row, Suite
from dept.errors import UsageError

__all__ = ["Entry", "Line", "Note", "Table", "make_table", "protocol_line", "render", "stored_cells"]

MARKS = "†‡§¶‖※"
MEAN = "mean"
WHOLE = "whole stream"
MOST_NAMED = 20


def make_table(suite: Suite, cells: Sequence[dict[str, Any]], *, per_class: str | None = None) -> Table:
    """The table of a suite from its stored results.

    Args:
        cells: entries {"cell": …, "result": …}, as `stored_cells` reads them.
        per_class: a shift (or its target): one column per class instead of one per shift.
    """
    notes = _Notes()
    if per_class is None:
        names, columns = column_names(suite.shifts), _by_shift(suite, cells, notes)
        names, columns = _with_segments(suite, cells, names, columns)
        headline = suite.metric
    else:
        shift = _shift(suite, per_class)
        names, columns = _by_class(suite, shift, cells, notes)
        headline = "top1" if suite.metric == "error" else suite.metric
    if len(columns) > 1 and names[-1] != WHOLE:
        names, columns = (*names, MEAN), [*columns, _means(suite, columns)]
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
        citation() if any(entry.paper is not None for line in lines for entry in line.entries) else "",
    )


def column_names(shifts: Sequence[str]) -> tuple[str, ...]:
    """Targets of the shifts, "cartoon" or "snow" (for "snow/5"); whole shifts where a target comes up twice."""
    targets = [_brief(shift.split("->")[-1]) for shift in shifts]
    severities = {target.partition("/")[2] for target in targets}
    if len(severities) == 1:
        targets = [target.partition("/")[0] for target in targets]
    return tuple(targets if len(set(targets)) == len(targets) else shifts)


def value(scores: Mapping[str, Any], metric: str) -> float:
    """The headline in percent: top1, mean_per_class, error, or the accuracy of a class ("class:NAME")."""
    if metric.startswith("class:"):
        return 100.0 * float(scores["per_class"][metric.removeprefix("class:")])
    return 100.0 * (1.0 - scores["top1"] if metric == "error" else float(scores[metric]))


# -- columns -----------------------------------------------------------------------------------------------


@dataclass
class _Cell:
    """An entry on its way into the table: values by seed, and whether it may be ranked."""

    entry: Entry
    values: dict[int, float] = field(default_factory=dict)
    tunable: int | None = None
    ranked: bool = True


class _Notes:
    """Footnotes; equal texts share a mark."""

    def __init__(self) -> None:
        self.marks: dict[str, str] = {}
        self.plain: list[str] = []

    def mark(self, text: str) -> str:
        number = len(self.marks)
        return self.marks.setdefault(text, MARKS[number % len(MARKS)] * (1 + number // len(MARKS)))

    def say(self, text: str) -> None:
        if text not in self.plain:
            self.plain.append(text)

    def __iter__(self) -> Iterator[Note]:
        yield from (Note(mark, text) for text, mark in self.marks.items())
        yield from (Note("", text) for text in self.plain)


def _by_shift(suite: Suite, cells: Sequence[dict[str, Any]], notes: _Notes) -> list[list[_Cell]]:
    columns = []
    for shift in suite.shifts:
        choices = _choices(suite, shift, cells, notes)
        marks = _marks(suite, shift, choices, notes)
        columns.append(
            [
                _cell(choice.kept, suite.metric, mark, _paper(suite, row, shift))
                for row, choice, mark in zip(suite.rows, choices, marks, strict=True)
            ]
        )
    return columns


def _choices(suite: Suite, shift: str, cells: Sequence[dict[str, Any]], notes: _Notes) -> list[Choice]:
    """The results of every row on one shift; what was trained with source data is compared with ERM."""
    choices = [chosen(suite, row, shift, cells) for row in suite.rows]
    together = [n for n, row in enumerate(suite.rows) if row.setting == "uda" and choices[n].kept]
    erm = {one.seed: one.result for n in together if suite.rows[n].method == "erm" for one in choices[n].kept}
    for n in together:
        compared = tuple(_over(one, erm.get(one.seed, {})) for one in choices[n].kept)
        choices[n] = replace(choices[n], kept=compared)
    if together:
        notes.say("Training with source data begins with an untrained head: gain and changed are against ERM.")
    return choices


def _over(one: Found, reference: Mapping[str, Any]) -> Found:
    """The result as if it had begun where another one ended; without a gain if that is itself, or missing."""
    left_out = ("before", "gain_ci95", "label_free")
    result = {name: value for name, value in one.result.items() if name not in left_out}
    if reference and reference is not one.result:
        ours, theirs = (r["predictions"]["after"] for r in (one.result, reference))
        changed = statistics.mean(p != q for p, q in zip(ours, theirs, strict=True))
        result |= {"before": reference["after"], "label_free": {"changed": changed}}
    return replace(one, result=result)


def _with_segments(
    suite: Suite, cells: Sequence[dict[str, Any]], names: tuple[str, ...], columns: list[list[_Cell]]
) -> tuple[tuple[str, ...], list[list[_Cell]]]:
    """A stream through several domains gets a column for each of them before that of the whole."""
    domains = suite.shifts[0].split("->")[-1].split(",")
    if len(suite.shifts) > 1 or len(domains) == 1:
        return names, columns
    choices = [chosen(suite, row, suite.shifts[0], cells) for row in suite.rows]
    made = [
        [
            _cell(_segments(choice.kept, domain), suite.metric, (whole.entry.mark, whole.ranked), None)
            for choice, whole in zip(choices, columns[0], strict=True)
        ]
        for domain in domains
    ]
    return (*domains, WHOLE), [*made, *columns]


def _segments(kept: Sequence[Found], domain: str) -> list[Found]:
    """The results as if the stream had been this domain; those whose stream mixes the domains are left out."""
    left_out = ("gain_ci95", "seconds", "label_free")  # known of the whole stream only
    return [
        replace(
            one,
            result={name: value for name, value in one.result.items() if name not in left_out}
            | {when: {"top1": one.result["segments"][domain][when]} for when in ("before", "after")},
        )
        for one in kept
        if domain in one.result.get("segments", {})
    ]


def _by_class(
    suite: Suite, shift: str, cells: Sequence[dict[str, Any]], notes: _Notes
) -> tuple[tuple[str, ...], list[list[_Cell]]]:
    choices = _choices(suite, shift, cells, notes)
    marks = _marks(suite, shift, choices, notes)
    classes = next((tuple(one.result["after"]["per_class"]) for choice in choices for one in choice.kept), ())
    columns = [
        [
            _cell(choice.kept, f"class:{name}", mark, _printed(suite, row, (name,)))
            for row, choice, mark in zip(suite.rows, choices, marks, strict=True)
        ]
        for name in classes
    ]
    return classes, columns


def _marks(suite: Suite, shift: str, choices: Sequence[Choice], notes: _Notes) -> list[tuple[str, bool]]:
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


def _mark(one: Found, standing: Standing, own: Standing, notes: _Notes) -> tuple[str, bool]:
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


def _cell(kept: Sequence[Found], metric: str, mark: tuple[str, bool], paper: float | None) -> _Cell:
    """The statistics of the results of one row in one column."""
    if not kept:
        return _Cell(Entry(paper=paper), ranked=False)
    results = [one.result for one in kept]
    values = {one.seed: value(one.result["after"], metric) for one in kept}
    gains = [] if results[0].get("method") == "source" else _gains(results, metric)
    entry = Entry(
        mean=statistics.mean(values.values()),
        sd=statistics.stdev(values.values()) if len(values) > 1 else None,
        seeds=len(values),
        gain=statistics.mean(gains) if gains else None,
        interval=_interval(results, metric) if gains else None,
        per_class=_per_class(results) if metric == "top1" else None,
        paper=paper,
        mark=mark[0],
        seconds=_mean([result.get("seconds") for result in results]),
        changed=_mean([result.get("label_free", {}).get("changed") for result in results]),
    )
    return _Cell(entry, values, results[0].get("tunable_model"), mark[1])


def _per_class(results: Sequence[Mapping[str, Any]]) -> float | None:
    found = _mean([result["after"].get("mean_per_class") for result in results])
    return None if found is None else 100.0 * found


def _gains(results: Sequence[Mapping[str, Any]], metric: str) -> list[float]:
    pairs = [(r["after"], r["before"]) for r in results if "before" in r]
    return [value(after, metric) - value(before, metric) for after, before in pairs]


def _interval(results: Sequence[Mapping[str, Any]], metric: str) -> tuple[float, float] | None:
    """Stored for the gain in top-1; none for other metrics."""
    ends = [r["gain_ci95"] for r in results if r.get("gain_ci95")]
    if metric not in ("top1", "error") or not ends:
        return None
    low, high = (100.0 * statistics.mean(end[side] for end in ends) for side in (0, 1))
    return (-high, -low) if metric == "error" else (low, high)


def _means(suite: Suite, columns: Sequence[Sequence[_Cell]]) -> list[_Cell]:
    """The last column. The sd is that of the seeds' own means."""
    return [
        _mean_cell([column[n] for column in columns], _printed(suite, row, (MEAN,))) for n, row in enumerate(suite.rows)
    ]


def _mean_cell(cells: Sequence[_Cell], paper: float | None) -> _Cell:
    """Mean of a row over all columns; nothing if one is missing."""
    entries = [cell.entry for cell in cells]
    if any(entry.mean is None for entry in entries):
        return _Cell(Entry(paper=paper), ranked=False)
    seeds = set.intersection(*(set(cell.values) for cell in cells))
    values = {seed: statistics.mean(cell.values[seed] for cell in cells) for seed in sorted(seeds)}
    entry = Entry(
        mean=_mean([entry.mean for entry in entries]),
        sd=statistics.stdev(values.values()) if len(values) > 1 else None,
        seeds=min(entry.seeds for entry in entries),
        gain=_mean([entry.gain for entry in entries]),
        per_class=_mean([entry.per_class for entry in entries]),
        paper=paper,
        mark="".join(dict.fromkeys(entry.mark for entry in entries)),
        seconds=_mean([entry.seconds for entry in entries]),
        changed=_mean([entry.changed for entry in entries]),
    )
    return _Cell(entry, values, cells[0].tunable, all(cell.ranked for cell in cells))


# -- rows --------------------------------------------------------------------------------------------------


def _ranked(column: Sequence[_Cell], rows: Sequence[Row], *, lower: bool) -> list[_Cell]:
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


def _line(row: Row, cells: Sequence[_Cell]) -> Line:
    entries = tuple(cell.entry for cell in cells)
    return Line(
        row.label,
        row.method,
        row.task,
        entries,
        next((cell.tunable for cell in cells if cell.tunable is not None), None),
        _mean([entry.seconds for entry in entries]),
        _mean([entry.changed for entry in entries]),
    )


def _shown(lines: Sequence[Line], notes: _Notes) -> list[Line]:
    """The rows that have a number, of ours or the paper's; the others are named in a note."""
    empty = [line for line in lines if all(entry.mean is None and entry.paper is None for entry in line.entries)]
    if not empty or len(empty) == len(lines):
        return list(lines)
    named = "; ".join(line.label for line in empty)
    notes.say(f"No results yet: {named if len(empty) <= MOST_NAMED else f'{len(empty)} other rows'}.")
    return [line for line in lines if line not in empty]


def _paper(suite: Suite, row: Row, shift: str) -> float | None:
    """The paper's number of a shift; its mean where the suite has one shift only."""
    target = shift.split("->")[-1]
    only = (MEAN,) if len(suite.shifts) == 1 else ()
    return _printed(suite, row, (shift, target, target.partition("/")[0], *only))


def _printed(suite: Suite, row: Row, columns: Sequence[str]) -> float | None:
    if not (suite.paper and row.paper):
        return None
    numbers = (paper_number(suite.paper, row.paper, column) for column in columns)
    return next((number for number in numbers if number is not None), None)


def _mean(values: Sequence[float | None]) -> float | None:
    known = [number for number in values if number is not None]
    return statistics.mean(known) if known else None


def _shift(suite: Suite, name: str) -> str:
    found = [shift for shift in suite.shifts if name in (shift, shift.split("->")[-1])]
    if not found:
        raise UsageError(f"The suite has no shift {name!r}; choose from {', '.join(suite.shifts)}.")
    return found[0]


def _brief(target: str) -> str:
    domains = target.split(",")
    return target if len(domains) == 1 else f"{len(domains)} domains"
