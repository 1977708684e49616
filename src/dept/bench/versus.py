"""Is one row of a suite better than another? Paired over images, for the seeds that both have.

With one seed both rows predicted the same images in the same order: a bootstrap over the images of each shift gives the
interval of the difference. Ends are averaged over seeds, as in tables.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dept.bench.entry import hits
from dept.bench.protocol import sentence
from dept.bench.shift import Shift
from dept.bench.stored import Results, Run
from dept.bench.suite import Row
from dept.bench.table import MEAN, column_names
from dept.errors import UsageError
from dept.metrics import averaged_interval


@dataclass(frozen=True)
class Versus:
    """Accuracy of two rows on a shift (or its mean over several), in percent, and their difference."""

    column: str
    seeds: tuple[int, ...]
    ours: float
    theirs: float
    interval: tuple[float, float]
    """95 % of ours - theirs"""


def versus(results: Results, ours: str, theirs: str) -> list[Versus]:
    """Two rows of a suite, by their labels, on every shift of it and, if there are several, in the mean."""
    suite = results.suite
    rows = [suite.row(label) for label in (ours, theirs)]
    found = [[_by_seed(results, row, shift) for row in rows] for shift in suite.shifts]
    seeds = sorted(set.intersection(*(set(by_seed) for pair in found for by_seed in pair)))
    if not seeds:
        raise UsageError(
            f"{ours} and {theirs} have no seed with results of both on {', '.join(map(str, suite.shifts))}; "
            f"`dept bench {suite.name}` runs what is missing."
        )
    right = [
        np.array([_paired(rows, shift, one[seed], other[seed]) for seed in seeds])
        for shift, (one, other) in zip(suite.shifts, found, strict=True)
    ]
    names = column_names(suite.shifts)
    compared = [_compared(name, tuple(seeds), [hit]) for name, hit in zip(names, right, strict=True)]
    return compared if len(right) == 1 else [*compared, _compared(MEAN, tuple(seeds), right)]


def _compared(column: str, seeds: tuple[int, ...], right: Sequence[np.ndarray]) -> Versus:
    """From the hits (seeds, 2, images) of each shift."""
    gains = [[100.0 * (hit[seed, 0] - hit[seed, 1]) for hit in right] for seed in range(len(seeds))]
    ours, theirs = (100.0 * float(np.mean([hit[:, side].mean() for hit in right])) for side in (0, 1))
    return Versus(column, seeds, ours, theirs, averaged_interval(gains))


def _by_seed(results: Results, row: Row, shift: Shift) -> dict[int, Run]:
    found = {run.seed: run for run in results.of(row, shift).kept}
    for run in found.values():
        if run.departures:
            raise UsageError(f"{row.label} on {shift} is not as the suite defines it: {sentence(run.departures)}.")
    return found


def _paired(rows: Sequence[Row], shift: Shift, one: Run, other: Run) -> list[np.ndarray]:
    """Which images (2, n) the two rows were right on."""
    lists = [run.result["protocol"]["list_sha256"] for run in (one, other)]
    if lists[0] != lists[1]:
        raise UsageError(
            f"{rows[0].label} and {rows[1].label} predicted other images on {shift}, or in another order (lists "
            f"{lists[0][:12]} and {lists[1][:12]}): nothing can be paired. Compare rows of one setting."
        )
    for run in (one, other):
        if "labels" not in run.result.get("predictions", {}):
            raise UsageError(f"A result on {shift} was stored without labels, by an older version: run it again.")
    return [hits(run.result, "after") for run in (one, other)]
