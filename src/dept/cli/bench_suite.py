"""`dept bench SUITE`: run the cells that have no result yet, then print the table."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from dept.bench import suites
from dept.bench.execute import Executor
from dept.bench.figures import draw
from dept.bench.render import render
from dept.bench.runner import Cell, Outcome, Stored, run_cells, shard, stored
from dept.bench.stored import choose, suite_cells, trainings
from dept.bench.suite import TRAINING
from dept.bench.table import make_table
from dept.cli.parse import parse
from dept.cli.show import say
from dept.data.datasets.derived import Domains


@dataclass(frozen=True)
class Files:
    """What is run, and where results go."""

    data: Path | None = None
    """folder of the data sets (default: $DEPT_DATA)"""
    weights: Path | None = None
    """timm weights of the backbone (safetensors); by default timm downloads them"""
    results: Path = Path("benchmarks/results")
    """folder of results; finished cells in it are not run again"""
    work: Path = Path("runs")
    """folder for models and run folders"""
    methods: tuple[str, ...] = ()
    """only these methods, or rows by their label"""
    shifts: tuple[str, ...] = ()
    """only these shifts, or target domains"""
    seeds: tuple[int, ...] = ()
    """seeds instead of the suite's; of stored results, only these"""
    max_iters: int = 0
    """steps of every run instead of the suite's (another protocol: marked in tables)"""
    limit: int = 0
    """at most so many target images per domain (another protocol: marked in tables)"""
    shard: str = "1/1"
    """i/n: only every n-th cell, starting with the i-th"""
    table: bool = False
    """print the table of stored results instead of running"""
    format: Literal["terminal", "markdown", "brief", "latex", "json"] = "terminal"
    """of the table; brief: Markdown with one number per cell"""
    per_class: str | None = None
    """a shift whose accuracies per class are tabulated"""
    plot: Path | None = None
    """also draw accuracy against the share of images, or over the steps, for the suites that vary them"""
    list: bool = False
    """print the cells and whether they have a result (with --weights, or with those of the results), and run nothing"""
    force_preprocess: bool = False
    """run although the preprocessing contradicts the weights' own config (the results are marked)"""
    device: str = "auto"
    """cpu, cuda, mps or auto"""
    workers: int = 0
    """processes that decode images and make views"""


def run(name: str, argv: Sequence[str]) -> int:
    """Run what is missing of a suite; 1 if a cell failed."""
    whole = suites.get(name)
    files: Files = parse(f"bench {name}", whole.title, list(argv), files=Files).files
    failed = 0
    if not files.table:
        suite = whole.chosen(
            methods=files.methods,
            shifts=files.shifts,
            seeds=files.seeds,
            max_iters=files.max_iters,
            limit=files.limit,
        )
        executor = Executor(
            suite,
            domains(files.data, files.work),
            files.weights,
            files.work,
            files.device,
            files.workers,
            force=files.force_preprocess,
        )
        if files.list:
            known = executor.weights_id if files.weights else _weights_of(suite_cells(whole, files.results))
            return _list(shard(suite.cells(known), files.shard), files.results)
        cells = shard(suite.cells(executor.weights_id), files.shard)
        failed = _run(cells, executor, files.results)
    found = [
        one
        for one in suite_cells(whole, files.results)
        if not files.seeds or one.cell.method in (TRAINING, "source") or one.cell.seed in files.seeds
    ]
    results = choose(whole.chosen(methods=files.methods, shifts=files.shifts), found)
    print(render(make_table(results, per_class=files.per_class), files.format))
    if files.plot is not None:
        draw(results, files.plot)
        say(f"Figure: {files.plot}")
    return 1 if failed else 0


def domains(data: Path | None, work: Path) -> Domains:
    """The data folder: given, or of the environment."""
    root = data or (Path(os.environ["DEPT_DATA"]) if "DEPT_DATA" in os.environ else None)
    return Domains(root, work / "data")


def _weights_of(cells: Sequence[Stored]) -> str:
    """The id of the weights that stored results were made with, where it is one; else that of timm's own."""
    ids = {protocol.get("weights_sha256", "timm") for protocol in trainings(cells).values()}
    return ids.pop() if len(ids) == 1 else "timm"


def _list(cells: Sequence[Cell], results: Path) -> int:
    for cell in cells:
        print(f"{cell.key}  {'done' if stored(results, cell) else 'open'}  {cell.title}")
    return 0


def _run(cells: Sequence[Cell], executor: Executor, results: Path) -> int:
    """Run with a line per cell; returns how many failed."""
    failed = fresh = 0
    open_cells = sum(stored(results, cell) is None for cell in cells)
    if open_cells:
        executor.domains.ready(executor.suite.data)  # said once, not by every cell
    start = time.monotonic()
    for number, outcome in enumerate(run_cells(cells, executor.run, results), 1):
        failed += outcome.result is None
        fresh += outcome.fresh or outcome.result is None
        say(f"[{number}/{len(cells)}] {outcome.cell.title}: {_summary(outcome)}{_left(start, fresh, open_cells)}")
    return failed


def _left(start: float, done: int, total: int) -> str:
    """Time left, if cells to come take as long as those done."""
    if not done or done == total:
        return ""
    minutes = (time.monotonic() - start) / done * (total - done) / 60
    return f"  (about {minutes:.0f} min left)"


def _summary(outcome: Outcome) -> str:
    result = outcome.result
    if result is None:
        return f"FAILED ({outcome.error})"
    stored = "" if outcome.fresh else " (stored)"
    if "after" not in result:
        return f"held-out {100 * result['accuracy']:.1f} %{stored}"
    change = f"{100 * result['before']['top1']:.1f} -> {100 * result['after']['top1']:.1f} %"
    return f"{change} in {result['seconds']:.0f} s{stored}"
