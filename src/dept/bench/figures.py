"""Figures of stored results: accuracy against the share of target images, and accuracy over the steps."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from dept.bench.entry import headline
from dept.bench.notes import METRICS
from dept.bench.shift import Shift
from dept.bench.stored import Results
from dept.bench.suite import Suite
from dept.errors import UsageError, missing_extra


class Point(NamedTuple):
    """A place on a curve: mean over seeds in percent, and their standard deviation (0 for one seed)."""

    x: float
    mean: float
    sd: float


Curves = dict[str, list[Point]]


def ratio_curves(results: Results, shift: Shift) -> Curves:
    """Accuracy over the share of images in percent; one curve for all rows whose labels differ in the share only."""
    curves: Curves = {}
    for row in results.suite.rows:
        values = [headline(run.result["after"], results.suite.metric) for run in results.of(row, shift).kept]
        if "ratio" in row.extra and values:
            curves.setdefault(row.label.rpartition(", ")[0], []).append(_point(100 * row.extra["ratio"], values))
    return {name: sorted(points) for name, points in curves.items()}


def step_curves(results: Results, shift: Shift) -> Curves:
    """Accuracy of the student, as the suite measures it, over the steps of the rows that were scored on the way."""
    curves, metric = Curves(), step_metric(results.suite)
    for row in results.suite.rows:
        kept = [run.result["curve"]["student"] for run in results.of(row, shift).kept if "curve" in run.result]
        found = [curve for curve in kept if metric in curve]
        steps = found[0]["steps"] if found else []
        for n, step in enumerate(steps):
            curves.setdefault(row.label, []).append(_point(step, [100 * one[metric][n] for one in found]))
    return curves


def step_metric(suite: Suite) -> str:
    """What a curve over the steps shows: the metric of the suite, but accuracy where that is the error."""
    return "mean_per_class" if suite.metric == "mean_per_class" else "top1"


def draw(results: Results, path: Path) -> None:
    """One panel per shift; needs the extra `report`."""
    suite = results.suite
    scored = any("eval_every" in row.extra for row in suite.rows)
    make, name = (step_curves, "steps") if scored else (ratio_curves, "share of the target images, %")
    metric = METRICS[step_metric(suite) if scored else suite.metric]
    panels = {shift: make(results, shift) for shift in suite.shifts}
    if not any(panels.values()):
        raise UsageError(
            f"There is nothing to draw for {suite.name}: it has no finished cells with a share of the images (ratio) "
            "or with scores on the way (eval_every)."
        )
    try:
        import matplotlib.pyplot as plt
    except ImportError as error:
        raise missing_extra("matplotlib", "report") from error
    size = (5.2 * len(panels), 3.6)
    figure, axes = plt.subplots(1, len(panels), figsize=size, squeeze=False, constrained_layout=True)
    for axis, (shift, curves) in zip(axes[0], panels.items(), strict=True):
        for label, points in curves.items():
            x, mean, sd = zip(*points, strict=True)
            axis.errorbar(x, mean, yerr=sd, marker="o", markersize=4, capsize=3, label=label)
        axis.set(title=str(shift), xlabel=name, ylabel=f"{metric}, %")
        if not scored:
            shares = sorted({point.x for points in curves.values() for point in points})
            axis.set_xscale("log")
            axis.set_xticks(shares, [f"{share:g}" for share in shares])
            axis.set_xticks([], minor=True)
        axis.grid(alpha=0.3)
        axis.legend(frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def _point(x: float, values: Sequence[float]) -> Point:
    return Point(x, statistics.mean(values), statistics.stdev(values) if len(values) > 1 else 0.0)
