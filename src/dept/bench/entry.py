"""One number of a table: the statistics of the results of a row on a shift, a class or a domain. All in percent."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from dept.bench.stored import Run
from dept.metrics import Scores, averaged_interval
from dept.runs.record import Result


@dataclass(frozen=True)
class Entry:
    """One number: mean and standard deviation over seeds, beside the gain over the row's own source model.

    What was trained with source data has no such model: its gain is over ERM.
    """

    mean: float | None = None
    sd: float | None = None
    seeds: int = 0
    gain: float | None = None
    interval: tuple[float, float] | None = None
    """95 % of the gain, paired bootstrap over images; ends averaged over seeds"""
    per_class: float | None = None
    """mean per-class accuracy, beside a headline of top-1: classes may be unbalanced"""
    paper: float | None = None
    """what the paper prints"""
    mark: str = ""
    """signs that footnotes explain: another protocol than the rest of the column"""
    best: bool = False
    second: bool = False
    seconds: float | None = None
    changed: float | None = None
    """share of predictions that adaptation changed"""


@dataclass(frozen=True)
class Measured:
    """An entry on its way into the table: what it was made of by seed, and whether it may be ranked."""

    entry: Entry
    values: Mapping[int, float] = field(default_factory=dict)
    gains: Mapping[int, np.ndarray] = field(default_factory=dict)
    """by seed (n,): points that every image adds to the gain"""
    tunable: int | None = None
    ranked: bool = True


def headline(scores: Scores, metric: str) -> float:
    """In percent: top1, mean_per_class, error, or the accuracy of a class ("class:NAME")."""
    if metric.startswith("class:"):
        return 100.0 * scores["per_class"][metric.removeprefix("class:")]
    if metric == "mean_per_class":
        return 100.0 * scores["mean_per_class"]
    return 100.0 * (1.0 - scores["top1"] if metric == "error" else scores["top1"])


def hits(result: Result, when: str) -> np.ndarray:
    """(n,) 1 where the prediction `before` or `after` adaptation is right; of a result that stores labels."""
    given = result["predictions"]
    predicted = given["before"] if when == "before" else given["after"]
    right: np.ndarray = np.equal(predicted, given["labels"]).astype(np.float64)
    return right


def mean_of(values: Sequence[float | None]) -> float | None:
    """Mean of the numbers that are known."""
    known = [number for number in values if number is not None]
    return statistics.mean(known) if known else None


def measured(runs: Sequence[Run], metric: str, mark: tuple[str, bool], paper: float | None) -> Measured:
    """The statistics of the results of one row in one column."""
    if not runs:
        return Measured(Entry(paper=paper), ranked=False)
    results = [run.result for run in runs]
    values = {run.seed: headline(run.result["after"], metric) for run in runs}
    gains = [] if results[0].get("method") == "source" else _gains(results, metric)
    per_class = mean_of([result["after"].get("mean_per_class") for result in results])
    entry = Entry(
        mean=statistics.mean(values.values()),
        sd=_deviation(values),
        seeds=len(values),
        gain=statistics.mean(gains) if gains else None,
        interval=_interval(results, metric) if gains else None,
        per_class=100.0 * per_class if metric == "top1" and per_class is not None else None,
        paper=paper,
        mark=mark[0],
        seconds=mean_of([result.get("seconds") for result in results]),
        changed=mean_of([result["label_free"]["changed"] for result in results if "label_free" in result]),
    )
    points = -100.0 if metric == "error" else 100.0
    image_gains = {
        run.seed: points * (hits(run.result, "after") - hits(run.result, "before"))
        for run in runs
        if gains and "labels" in run.result.get("predictions", {})
    }
    return Measured(entry, values, image_gains, results[0].get("tunable_model"), mark[1])


def mean_measured(row: Sequence[Measured], paper: float | None) -> Measured:
    """Mean of a row over all columns; nothing if one is missing. The sd is that of the seeds' own means."""
    entries = [one.entry for one in row]
    if any(entry.mean is None for entry in entries):
        return Measured(Entry(paper=paper), ranked=False)
    seeds = sorted(set.intersection(*(set(one.values) for one in row)))
    values = {seed: statistics.mean(one.values[seed] for one in row) for seed in seeds}
    interval = None  # of the mean gain, ends averaged over the seeds that all columns have
    paired = sorted(set.intersection(*(set(one.gains) for one in row)))
    if paired and all(entry.interval is not None for entry in entries):
        interval = averaged_interval([[one.gains[seed] for one in row] for seed in paired])
    entry = Entry(
        mean=mean_of([entry.mean for entry in entries]),
        sd=_deviation(values),
        seeds=min(entry.seeds for entry in entries),
        gain=mean_of([entry.gain for entry in entries]),
        interval=interval,
        per_class=mean_of([entry.per_class for entry in entries]),
        paper=paper,
        mark="".join(dict.fromkeys(entry.mark for entry in entries)),
        seconds=mean_of([entry.seconds for entry in entries]),
        changed=mean_of([entry.changed for entry in entries]),
    )
    return Measured(entry, values, {}, row[0].tunable, all(one.ranked for one in row))


def _deviation(values: Mapping[int, float]) -> float | None:
    return statistics.stdev(values.values()) if len(values) > 1 else None


def _gains(results: Sequence[Result], metric: str) -> list[float]:
    """Of top-1 as stored, counted in whole images: differences of rounded accuracies may round otherwise."""
    if metric in ("top1", "error") and all("gain" in result for result in results):
        return [(-100.0 if metric == "error" else 100.0) * result["gain"] for result in results]
    pairs = [(result["after"], result["before"]) for result in results if "before" in result]
    return [headline(after, metric) - headline(before, metric) for after, before in pairs]


def _interval(results: Sequence[Result], metric: str) -> tuple[float, float] | None:
    """Stored for the gain in top-1; none for other metrics."""
    ends = [result["gain_ci95"] for result in results if result.get("gain_ci95")]
    if metric not in ("top1", "error") or not ends:
        return None
    low, high = (100.0 * statistics.mean(end[side] for end in ends) for side in (0, 1))
    return (-high, -low) if metric == "error" else (low, high)
