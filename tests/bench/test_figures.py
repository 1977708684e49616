from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from dept.bench.figures import Point, draw, ratio_curves, step_curves
from dept.bench.shift import shifts
from dept.bench.suite import Row
from dept.errors import UsageError
from stored import results, small_suite, stored, training

SHARES = (0.05, 1.0)
RATIOS = small_suite(
    shifts=shifts("photo->sketch"),
    rows=tuple(Row(f"DePT-G, {100 * r:g} %", "dept", "G", tag=f"-{r:g}", extra={"ratio": r}) for r in SHARES),
)
SCORED = small_suite(
    shifts=shifts("photo->sketch"),
    rows=(Row("DePT-G", "dept", "G", extra={"eval_every": 1}),),
)


def test_one_curve_over_the_shares_with_the_spread_of_seeds() -> None:
    cells = [
        training(RATIOS, "G"),
        stored(RATIOS, "DePT-G, 100 %", 0.8),
        stored(RATIOS, "DePT-G, 5 %", 0.5, ratio=0.05),
        stored(RATIOS, "DePT-G, 5 %", 0.7, ratio=0.05, seed=1),
    ]
    curves = ratio_curves(results(RATIOS, cells), RATIOS.shifts[0])
    assert list(curves) == ["DePT-G"]
    low, high = curves["DePT-G"]
    assert (low.x, high) == (5, Point(100, pytest.approx(80.0), 0.0))
    assert (low.mean, low.sd) == (pytest.approx(60.0), pytest.approx(200**0.5))


def test_a_curve_over_the_steps_and_a_figure(tmp_path: Path) -> None:
    cell = stored(SCORED, "DePT-G", 0.8)
    cell["result"]["curve"] = {"student": {"steps": [0, 10], "top1": [0.5, 0.75]}}
    found = results(SCORED, [training(SCORED, "G"), cell])
    curves = step_curves(found, SCORED.shifts[0])
    assert curves == {"DePT-G": [Point(0, 50.0, 0.0), Point(10, 75.0, 0.0)]}
    draw(found, tmp_path / "figure.png")
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")


def test_a_curve_shows_the_metric_of_its_suite() -> None:
    suite = replace(SCORED, metric="mean_per_class")
    cell, old = stored(suite, "DePT-G", 0.8), stored(suite, "DePT-G", 0.8, seed=1)
    curve = {"steps": [0, 10], "top1": [0.5, 0.75], "mean_per_class": [0.4, 0.6]}
    cell["result"]["curve"] = {"student": curve}
    old["result"]["curve"] = {"student": {"steps": [0, 10], "top1": [0.9, 0.9]}}  # of a version that knew top-1 only
    found = step_curves(results(suite, [training(suite, "G"), cell, old]), suite.shifts[0])
    assert found == {"DePT-G": [Point(0, 40.0, 0.0), Point(10, 60.0, 0.0)]}


def test_nothing_to_draw_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="nothing to draw for small"):
        draw(results(RATIOS, []), tmp_path / "figure.png")
