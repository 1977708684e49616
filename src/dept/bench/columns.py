"""Columns of a table: for every row of a suite the statistics of its results on one shift, class or domain."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from dept.bench.entries import MEAN, Entry
from dept.bench.found import Choice, Found, chosen
from dept.bench.marks import Notes, marks_of
from dept.bench.paper import paper_number
from dept.bench.suite import Row, Suite
from dept.metrics import averaged_interval, paired_interval

WHOLE = "whole stream"


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


@dataclass
class Cell:
    """An entry on its way into the table: what it was made of by seed, and whether it may be ranked."""

    entry: Entry
    values: dict[int, float] = field(default_factory=dict)
    gains: dict[int, np.ndarray] = field(default_factory=dict)
    """by seed (n,): points that every image adds to the gain"""
    tunable: int | None = None
    ranked: bool = True


def by_shift(suite: Suite, cells: Sequence[dict[str, Any]], notes: Notes) -> list[list[Cell]]:
    """One column per shift; each holds a cell per row of the suite."""
    columns = []
    for shift in suite.shifts:
        choices = _choices(suite, shift, cells, notes)
        marks = marks_of(suite, shift, choices, notes)
        columns.append(
            [
                _cell(choice.kept, suite.metric, mark, _paper(suite, row, shift))
                for row, choice, mark in zip(suite.rows, choices, marks, strict=True)
            ]
        )
    return columns


def _choices(suite: Suite, shift: str, cells: Sequence[dict[str, Any]], notes: Notes) -> list[Choice]:
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
    left_out = ("before", "gain", "gain_ci95", "label_free", "predictions")
    result = {name: value for name, value in one.result.items() if name not in left_out}
    if reference and reference is not one.result:
        given = one.result["predictions"] | {"before": reference["predictions"]["after"]}
        changed = statistics.mean(p != q for p, q in zip(given["before"], given["after"], strict=True))
        result |= {"before": reference["after"], "predictions": given, "label_free": {"changed": changed}}
        if "labels" in given:
            result["gain_ci95"] = paired_interval(hits(result, "after"), hits(result, "before"))
    return replace(one, result=result)


def with_segments(
    suite: Suite, cells: Sequence[dict[str, Any]], names: tuple[str, ...], columns: list[list[Cell]]
) -> tuple[tuple[str, ...], list[list[Cell]]]:
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
    left_out = ("gain", "gain_ci95", "seconds", "label_free", "predictions")  # known of the whole stream only
    return [
        replace(
            one,
            result={name: value for name, value in one.result.items() if name not in left_out}
            | {when: {"top1": one.result["segments"][domain][when]} for when in ("before", "after")},
        )
        for one in kept
        if domain in one.result.get("segments", {})
    ]


def by_class(
    suite: Suite, shift: str, cells: Sequence[dict[str, Any]], notes: Notes
) -> tuple[tuple[str, ...], list[list[Cell]]]:
    """Names of the classes, and a column of accuracies for each."""
    choices = _choices(suite, shift, cells, notes)
    marks = marks_of(suite, shift, choices, notes)
    classes = next((tuple(one.result["after"]["per_class"]) for choice in choices for one in choice.kept), ())
    columns = [
        [
            _cell(choice.kept, f"class:{name}", mark, _printed(suite, row, (name,)))
            for row, choice, mark in zip(suite.rows, choices, marks, strict=True)
        ]
        for name in classes
    ]
    return classes, columns


def _cell(kept: Sequence[Found], metric: str, mark: tuple[str, bool], paper: float | None) -> Cell:
    """The statistics of the results of one row in one column."""
    if not kept:
        return Cell(Entry(paper=paper), ranked=False)
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
        seconds=mean_of([result.get("seconds") for result in results]),
        changed=mean_of([result.get("label_free", {}).get("changed") for result in results]),
    )
    return Cell(entry, values, _image_gains(kept, metric) if gains else {}, results[0].get("tunable_model"), mark[1])


def hits(result: Mapping[str, Any], when: str) -> np.ndarray:
    """(n,) 1 where the prediction `before` or `after` adaptation is right; of a result that stores labels."""
    given = result["predictions"]
    right: np.ndarray = np.equal(given[when], given["labels"]).astype(np.float64)
    return right


def _image_gains(kept: Sequence[Found], metric: str) -> dict[int, np.ndarray]:
    points = -100.0 if metric == "error" else 100.0
    return {
        one.seed: points * (hits(one.result, "after") - hits(one.result, "before"))
        for one in kept
        if "labels" in one.result.get("predictions", {})
    }


def _per_class(results: Sequence[Mapping[str, Any]]) -> float | None:
    found = mean_of([result["after"].get("mean_per_class") for result in results])
    return None if found is None else 100.0 * found


def _gains(results: Sequence[Mapping[str, Any]], metric: str) -> list[float]:
    """Of top-1 as stored, counted in whole images: differences of rounded accuracies may round otherwise."""
    if metric in ("top1", "error") and all("gain" in result for result in results):
        return [(-100.0 if metric == "error" else 100.0) * result["gain"] for result in results]
    pairs = [(r["after"], r["before"]) for r in results if "before" in r]
    return [value(after, metric) - value(before, metric) for after, before in pairs]


def _interval(results: Sequence[Mapping[str, Any]], metric: str) -> tuple[float, float] | None:
    """Stored for the gain in top-1; none for other metrics."""
    ends = [r["gain_ci95"] for r in results if r.get("gain_ci95")]
    if metric not in ("top1", "error") or not ends:
        return None
    low, high = (100.0 * statistics.mean(end[side] for end in ends) for side in (0, 1))
    return (-high, -low) if metric == "error" else (low, high)


def means(suite: Suite, columns: Sequence[Sequence[Cell]]) -> list[Cell]:
    """The last column. The sd is that of the seeds' own means."""
    return [
        _mean_cell([column[n] for column in columns], _printed(suite, row, (MEAN,))) for n, row in enumerate(suite.rows)
    ]


def _mean_cell(cells: Sequence[Cell], paper: float | None) -> Cell:
    """Mean of a row over all columns; nothing if one is missing."""
    entries = [cell.entry for cell in cells]
    if any(entry.mean is None for entry in entries):
        return Cell(Entry(paper=paper), ranked=False)
    seeds = set.intersection(*(set(cell.values) for cell in cells))
    values = {seed: statistics.mean(cell.values[seed] for cell in cells) for seed in sorted(seeds)}
    entry = Entry(
        mean=mean_of([entry.mean for entry in entries]),
        sd=statistics.stdev(values.values()) if len(values) > 1 else None,
        seeds=min(entry.seeds for entry in entries),
        gain=mean_of([entry.gain for entry in entries]),
        interval=_mean_interval(cells),
        per_class=mean_of([entry.per_class for entry in entries]),
        paper=paper,
        mark="".join(dict.fromkeys(entry.mark for entry in entries)),
        seconds=mean_of([entry.seconds for entry in entries]),
        changed=mean_of([entry.changed for entry in entries]),
    )
    return Cell(entry, values, {}, cells[0].tunable, all(cell.ranked for cell in cells))


def _mean_interval(cells: Sequence[Cell]) -> tuple[float, float] | None:
    """95 % of the mean gain, ends averaged over the seeds that all columns have."""
    if any(cell.entry.interval is None for cell in cells):
        return None
    seeds = set.intersection(*(set(cell.gains) for cell in cells))
    return averaged_interval([[cell.gains[seed] for cell in cells] for seed in sorted(seeds)]) if seeds else None


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


def mean_of(values: Sequence[float | None]) -> float | None:
    """Mean of the numbers that are known."""
    known = [number for number in values if number is not None]
    return statistics.mean(known) if known else None


def _brief(target: str) -> str:
    domains = target.split(",")
    return target if len(domains) == 1 else f"{len(domains)} domains"
