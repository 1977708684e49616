"""Cells of a benchmark as jobs of the runners: in several processes, on Ray, or as a SLURM array."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock

from dept.bench.execute import Executor
from dept.bench.runner import Cell, Outcome, run_cell, stored
from dept.runs.runners.options import RunnerOptions
from dept.runs.runners.run import run_jobs


@dataclass(frozen=True)
class CellJob:
    """A `Job` of the runners."""

    cell: Cell
    executor: Executor
    results: Path

    @property
    def key(self) -> str:
        """Of the cell: the hash of its protocol."""
        return self.cell.key

    @property
    def title(self) -> str:
        """What the cell is."""
        return self.cell.title

    def done(self) -> bool:
        """Whether the cell has a stored result."""
        return stored(self.results, self.cell) is not None

    def run(self) -> None:
        """Run the cell and store its result, unless another process has done so meanwhile."""
        lock = self.executor.folder(self.cell).with_suffix(".job")
        lock.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(lock):
            if not self.done():
                run_cell(self.cell, self.executor.run, self.results)


def run_cells_with(
    options: RunnerOptions, cells: Sequence[Cell], executor: Executor, results: Path
) -> Iterator[Outcome]:
    """Run the cells that have no result yet with a runner; finished ones come first."""
    open_jobs = []
    for cell in cells:
        done = stored(results, cell)
        if done is None:
            open_jobs.append(CellJob(cell, executor, results))
        else:
            yield Outcome(cell, done)
    for outcome in run_jobs(open_jobs, options, folder=results):
        assert isinstance(outcome.job, CellJob)
        result = stored(results, outcome.job.cell)
        yield Outcome(outcome.job.cell, result, outcome.error, fresh=result is not None)
