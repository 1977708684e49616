"""`dept bench SUITE`: run the cells that have no result yet, then print the table."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from dept.bench import suites
from dept.cli.bench import about
from dept.cli.command import Command
from dept.cli.parse import parse
from dept.cli.parts import BenchInputs, Device
from dept.cli.show import say

if TYPE_CHECKING:
    from dept.bench.execute import Executor
    from dept.bench.runner import Cell, Outcome
    from dept.runs.runners.options import RunnerOptions


@dataclass(frozen=True)
class CellChoice:
    """Which cells are run."""

    methods: tuple[str, ...] = ()
    """only these methods, or rows by their label"""
    shifts: tuple[str, ...] = ()
    """only these shifts, or target domains"""
    seeds: tuple[int, ...] = ()
    """seeds instead of the suite's; of stored results, only these"""
    max_iters: int = 0
    """steps of every run instead of the suite's (another protocol: marked in tables)"""
    limit: int = 0
    """use at most N target images per domain (another protocol: marked in tables)"""
    shard: str = "1/1"
    """i/n: only every n-th cell, starting with the i-th"""
    list: bool = False
    """list the cells and whether they have a result, and run nothing"""
    force_preprocess: bool = False
    """run even if the preprocessing contradicts the weights' own config (the results are marked)"""


@dataclass(frozen=True)
class ResultTable:
    """How results are shown."""

    table: bool = False
    """print the table of stored results and run nothing"""
    format: Literal["terminal", "markdown", "brief", "latex", "json"] = "terminal"
    """format of the table; brief: Markdown with one number per cell"""
    per_class: str | None = None
    """show the per-class accuracies of this shift"""
    plot: Path | None = None
    """also plot accuracy against the share of images or over the steps, for suites that vary them"""


COMMAND = Command(
    "bench SUITE",
    "Run a benchmark suite.",
    {
        "Input and output": BenchInputs,
        "Cells": CellChoice,
        "Table": ResultTable,
        "Run": Device,
        "Runner": "dept.runs.runners.options:CellRunner",
    },
    common=("results", "data", "weights", "methods", "shifts", "seeds", "list", "table", "format", "device", "workers",
            "runner", "jobs"),
)  # fmt: skip


def run(name: str, argv: Sequence[str]) -> int:
    """Run what is missing of a suite; 1 if a cell failed."""
    given, choice, shown, how, runner = parse(replace(COMMAND, name=f"bench {name}", about=about(name)), list(argv))
    from dept.bench.execute import Executor
    from dept.bench.figures import draw
    from dept.bench.render import render
    from dept.bench.runner import shard, stored
    from dept.bench.stored import choose, suite_cells, trainings
    from dept.bench.suite import TRAINING
    from dept.bench.table import make_table

    whole, failed = suites.get(name), 0
    picked = {"methods": choice.methods, "shifts": choice.shifts}
    if not shown.table:
        suite = whole.chosen(**picked, seeds=choice.seeds, max_iters=choice.max_iters, limit=choice.limit)
        given = given if runner.runner == "here" else given.absolute()
        executor = Executor(
            suite, given.domains(), given.weights, given.work, how.device, how.workers, force=choice.force_preprocess
        )
        if choice.list:
            # Keys depend on the weights: those given, else those of the stored results if they agree.
            protocols = trainings(suite_cells(whole, given.results)).values()
            ids = {protocol.get("weights_sha256", "timm") for protocol in protocols}
            known = executor.weights_id if given.weights else ids.pop() if len(ids) == 1 else "timm"
            for cell in shard(suite.cells(known), choice.shard):
                print(f"{cell.key}  {'done' if stored(given.results, cell) else 'open'}  {cell.title}")
            return 0
        failed = _run_all(shard(suite.cells(executor.weights_id), choice.shard), executor, given.results, runner)
    found = [
        one
        for one in suite_cells(whole, given.results)
        if not choice.seeds or one.cell.method in (TRAINING, "source") or one.cell.seed in choice.seeds
    ]
    results = choose(whole.chosen(**picked), found)
    print(render(make_table(results, per_class=shown.per_class), shown.format))
    if shown.plot is not None:
        draw(results, shown.plot)
        say(f"Figure: {shown.plot}")
    return 1 if failed else 0


def _run_all(cells: Sequence[Cell], executor: Executor, results: Path, runner: RunnerOptions) -> int:
    """Run the cells without a result, with a line for each; returns how many failed."""
    from dept.bench.jobs import run_cells_with
    from dept.bench.runner import run_cells, stored

    failed = fresh = 0
    open_cells = sum(stored(results, cell) is None for cell in cells)
    if open_cells:
        executor.domains.ready(executor.suite.data)  # reported once, not by every cell
    start = time.monotonic()
    here = runner.runner == "here"
    outcomes = run_cells(cells, executor.run, results) if here else run_cells_with(runner, cells, executor, results)
    for number, outcome in enumerate(outcomes, 1):
        failed += outcome.result is None
        fresh += outcome.fresh or outcome.result is None
        # The remaining cells are expected to take as long as those done.
        minutes = (time.monotonic() - start) / max(1, fresh) * (open_cells - fresh) / 60
        left = f"  (about {minutes:.0f} min left)" if 0 < fresh < open_cells else ""
        say(f"[{number}/{len(cells)}] {outcome.cell.title}: {_summary(outcome)}{left}")
    return failed


def _summary(outcome: Outcome) -> str:
    result = outcome.result
    if result is None:
        return f"FAILED ({outcome.error})"
    stored = "" if outcome.fresh else " (stored)"
    if "after" not in result:
        return f"held-out {100 * result['accuracy']:.1f} %{stored}"
    change = f"{100 * result['before']['top1']:.1f} -> {100 * result['after']['top1']:.1f} %"
    return f"{change} in {result['seconds']:.0f} s{stored}"
