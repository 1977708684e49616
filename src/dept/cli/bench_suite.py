"""`dept bench SUITE`: run the cells that have no result yet, then print the table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from dept.bench import suites
from dept.cli.bench import about
from dept.cli.command import Command
from dept.cli.parse import parse
from dept.cli.parts import BenchInputs, Device
from dept.cli.show import say


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
    {"Input and output": BenchInputs, "Cells": CellChoice, "Table": ResultTable, "Run": Device},
    common=("results", "data", "weights", "methods", "shifts", "seeds", "list", "table", "format", "device", "workers"),
)


def run(name: str, argv: Sequence[str]) -> int:
    """Run what is missing of a suite; 1 if a cell failed."""
    given, choice, shown, how = parse(replace(COMMAND, name=f"bench {name}", about=about(name)), list(argv))
    from dept.bench.execute import Executor
    from dept.bench.figures import draw
    from dept.bench.render import render
    from dept.bench.runner import shard, stored
    from dept.bench.stored import choose, suite_cells, trainings
    from dept.bench.suite import TRAINING
    from dept.bench.table import make_table
    from dept.cli.bench_progress import run_all

    whole, failed = suites.get(name), 0
    picked = {"methods": choice.methods, "shifts": choice.shifts}
    if not shown.table:
        suite = whole.chosen(**picked, seeds=choice.seeds, max_iters=choice.max_iters, limit=choice.limit)
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
        failed = run_all(shard(suite.cells(executor.weights_id), choice.shard), executor, given.results)
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
