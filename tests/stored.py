"""Hand-made stored results for the tests of tables, protocols and verification."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dept.bench.runner import Cell, Stored
from dept.bench.shift import Shift, shifts
from dept.bench.stored import Results, choose
from dept.bench.suite import Row, Source, Suite
from dept.bench.table import Table, make_table

WEIGHTS = "a" * 64
ENVIRONMENT = {"dept": "0.1.0", "torch": "2.9", "timm": "1.0", "python": "3.11", "device": "cpu", "threads": 1}
PREPROCESS = {"size": 32, "resize": 36, "rule": "squash", "interpolation": "bilinear", "mean": [0.5], "std": [0.5]}


def small_suite(**changes: Any) -> Suite:
    settings: dict[str, Any] = {
        "name": "small",
        "title": "a_small & simple suite",
        "data": "pacs",
        "shifts": shifts("photo->sketch", "photo->cartoon"),
        "sources": {"plain": Source("vit_tiny", size=32), "G": Source("vit_tiny", 4, 20, 32)},
        "rows": (
            Row("Source", "source", "plain"),
            Row("Tent_1 & co", "tent", "plain", config={"batch": 8}),
            Row("DePT-G", "dept", "G"),
            Row("DePT-G, online", "dept", "G", "online"),
        ),
        "seeds": (0, 1),
        "most": 1000,
    }
    return Suite(**settings | changes)


def read(entry: dict[str, Any]) -> Stored:
    """An entry as if it had been read from its file."""
    return Stored(Cell.from_json(entry["cell"]), entry["result"])


def results(suite: Suite, entries: Sequence[dict[str, Any]]) -> Results:
    return choose(suite, list(map(read, entries)))


def table_of(suite: Suite, entries: Sequence[dict[str, Any]], **options: Any) -> Table:
    return make_table(results(suite, entries), **options)


def training(suite: Suite, name: str, weights: str = WEIGHTS) -> dict[str, Any]:
    cell = suite.source_cell(name, suite.shifts[0], weights)
    return {"cell": cell.to_json(), "result": {"accuracy": 0.9, "protocol": {}, "seconds": 50.0}}


def stored(
    suite: Suite,
    label: str,
    top1: float,
    *,
    shift: str = "photo->sketch",
    seed: int = 0,
    before: float = 0.5,
    environment: dict[str, Any] | None = None,
    seconds: float = 60.0,
    **changes: Any,
) -> dict[str, Any]:
    """A result of a row; `changes` go into its protocol."""
    row = suite.row(label)
    source = suite.sources[row.source]
    protocol = {
        "arch": source.arch, "stages": source.stages, "prompts": source.prompts, "preprocess": PREPROCESS,
        "images": 1000, "list_sha256": shift.encode().hex().ljust(64, "0"), "method": row.method, "seed": seed,
        "config": {"batch": 32, "max_iters": 300}, "setting": row.setting, "ratio": 1.0, "subset": "all",
        "readout": "student, direct, last iterate", "evaluated_on": "scored images", "backbone_sha256": row.source * 64,
    }  # fmt: skip
    scores = {"n": 1000, "top1": top1, "mean_per_class": top1 - 0.1, "per_class": {"dog": top1, "cat_1": 1 - top1}}
    old = {"n": 1000, "top1": before, "mean_per_class": before - 0.1, "per_class": {"dog": before, "cat_1": before}}
    result = {
        "method": row.method,
        "tunable_model": 12_345,
        "label_free": {"changed": 0.25},
        "before": old,
        "after": scores,
        "gain": top1 - before,
        "gain_ci95": [top1 - before - 0.02, top1 - before + 0.02],
        "predictions": {"before": [0, 1], "after": [1, round(100 * top1)]},
        "protocol": protocol | changes,
        "environment": ENVIRONMENT | (environment or {}),
        "seconds": seconds,
    }
    return {"cell": suite.cell(row, Shift.parse(shift), seed, WEIGHTS).to_json(), "result": result}
