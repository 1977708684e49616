from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dept.bench import versus as module
from dept.bench.shift import shifts
from dept.bench.suite import Suite
from dept.bench.versus import Versus
from dept.cli import bench_versus
from dept.errors import UsageError
from stored import results, small_suite, stored, training

SUITE = small_suite()
OTHER = "Tent_1 & co"
ONE, TWO = map(str, SUITE.shifts)
ONLY = small_suite(shifts=shifts(ONE))


def versus(suite: Suite, ours: str, theirs: str, entries: list[dict[str, Any]]) -> list[Versus]:
    return module.versus(results(suite, entries), ours, theirs)


def answered(label: str, hits: str, *, shift: str = ONE, seed: int = 0, **changes: Any) -> dict[str, Any]:
    """A result whose prediction for every image is right (+) or wrong."""
    entry = stored(SUITE, label, hits.count("+") / len(hits), shift=shift, seed=seed, **changes)
    labels = [n % 3 for n in range(len(hits))]
    after = [label if hit == "+" else label + 1 for label, hit in zip(labels, hits, strict=True)]
    entry["result"]["predictions"] = {"before": after, "after": after, "labels": labels}
    return entry


def cells(*entries: dict[str, Any]) -> list[dict[str, Any]]:
    return [training(SUITE, "plain"), training(SUITE, "G"), *entries]


def on_both_shifts() -> list[dict[str, Any]]:
    return cells(
        *(answered("DePT-G", "++++", shift=shift) for shift in (ONE, TWO)),
        answered(OTHER, "++--"),
        answered(OTHER, "+---", shift=TWO),
    )


def test_differences_of_shifts_and_their_mean() -> None:
    sketch, cartoon, mean = versus(SUITE, "DePT-G", OTHER, on_both_shifts())
    assert [one.column for one in (sketch, cartoon, mean)] == ["sketch", "cartoon", "mean"]
    assert [(one.ours, one.theirs) for one in (sketch, cartoon, mean)] == [(100, 50), (100, 25), (100, 37.5)]
    assert sketch.interval[0] < 50 < sketch.interval[1] <= 100


def test_pairing_sees_what_two_accuracies_do_not() -> None:
    """Both right on half of the images: the same ones leave no doubt, others leave much."""
    same, other = "+-" * 50, "-+" * 50
    equal = cells(*(answered(label, same) for label in ("DePT-G", OTHER)))
    apart = cells(answered("DePT-G", same), answered(OTHER, other))
    assert versus(ONLY, "DePT-G", OTHER, equal)[0].interval == (0.0, 0.0)
    low, high = versus(ONLY, "DePT-G", OTHER, apart)[0].interval
    assert low < -15 and high > 15


def test_only_common_seeds_count() -> None:
    found = cells(answered("DePT-G", "++++"), answered("DePT-G", "----", seed=1), answered(OTHER, "++--"))
    (one,) = versus(ONLY, "DePT-G", OTHER, found)
    assert (one.seeds, one.ours) == ((0,), 100.0)


def test_what_cannot_be_paired_is_refused() -> None:
    with pytest.raises(UsageError, match="no row 'Tnt'; choose from Source; Tent_1"):
        versus(ONLY, "DePT-G", "Tnt", cells())
    with pytest.raises(UsageError, match="no seed with results of both"):
        versus(ONLY, "DePT-G", OTHER, cells(answered("DePT-G", "++++"), answered(OTHER, "++++", seed=1)))
    with pytest.raises(UsageError, match="another order"):
        versus(ONLY, "DePT-G", OTHER, cells(answered("DePT-G", "++"), answered(OTHER, "++", list_sha256="b" * 64)))
    with pytest.raises(UsageError, match="older version"):
        versus(ONLY, "DePT-G", OTHER, cells(answered("DePT-G", "++++"), stored(SUITE, OTHER, 0.5)))
    bare = stored(SUITE, OTHER, 0.5)
    del bare["result"]["predictions"]
    with pytest.raises(UsageError, match="older version"):
        versus(ONLY, "DePT-G", OTHER, cells(answered("DePT-G", "++++"), bare))


def test_the_command_on_committed_results(capsys: pytest.CaptureFixture[str]) -> None:
    results = str(Path(__file__).parents[2] / "benchmarks" / "results")
    bench_versus.run(["digits", "DePT-G", "Tent", "--results", results])
    printed = capsys.readouterr().out
    assert "DePT-G against" in printed and "0, 1, 2" in printed and "+12." in printed
    bench_versus.run(["digits", "DePT-G", "Tent", "--results", results, "--format", "markdown"])
    assert "| Tent | +12." in capsys.readouterr().out
    with pytest.raises(UsageError, match="at least one other row"):
        bench_versus.run(["digits", "DePT-G"])
