"""Running the cells of a suite with a line for each."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from dept.bench.execute import Executor
from dept.bench.runner import Cell, Outcome, run_cells, stored
from dept.cli.show import say


def run_all(cells: Sequence[Cell], executor: Executor, results: Path) -> int:
    """Run the cells without a result; returns how many failed."""
    failed = fresh = 0
    open_cells = sum(stored(results, cell) is None for cell in cells)
    if open_cells:
        executor.domains.ready(executor.suite.data)  # reported once, not by every cell
    start = time.monotonic()
    for number, outcome in enumerate(run_cells(cells, executor.run, results), 1):
        failed += outcome.result is None
        fresh += outcome.fresh or outcome.result is None
        say(f"[{number}/{len(cells)}] {outcome.cell.title}: {_summary(outcome)}{_left(start, fresh, open_cells)}")
    return failed


def _left(start: float, done: int, total: int) -> str:
    """Time left, if the remaining cells take as long as those done."""
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
