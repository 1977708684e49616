"""Cells as jobs: what is stored is not run again, one that fails fails alone, and all can be sent elsewhere."""

from __future__ import annotations

import pickle
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dept.bench import suites
from dept.bench.execute import Executor
from dept.bench.jobs import CellJob, run_cells_with
from dept.bench.runner import Cell
from dept.bench.shift import Shift
from dept.data.datasets.derived import Domains
from dept.runs.runners.options import RunnerOptions

HERE = RunnerOptions("here")


@dataclass
class FakeExecutor:
    work: Path
    ran: list[int] = field(default_factory=list)

    def folder(self, cell: Cell) -> Path:
        return self.work / cell.suite / cell.key

    def run(self, cell: Cell) -> Any:
        self.ran.append(cell.seed)
        if cell.seed == 1:
            raise ValueError("bad luck")
        return {"accuracy": 0.5}


def test_cells_run_once_and_fail_alone(tmp_path: Path) -> None:
    cells = [Cell("s", "d", Shift.parse("a->b"), "m", "x offline", seed) for seed in range(3)]
    executor: Any = FakeExecutor(tmp_path / "work")
    first = list(run_cells_with(HERE, cells, executor, tmp_path / "results"))
    assert [(one.fresh, one.error) for one in first] == [(True, ""), (False, "ValueError: bad luck"), (True, "")]
    second = {one.cell.seed: one for one in run_cells_with(HERE, cells, executor, tmp_path / "results")}
    assert executor.ran == [0, 1, 2, 1] and not second[0].fresh and second[2].result is not None
    CellJob(cells[0], executor, tmp_path / "results").run()  # as a task that is started twice does
    assert executor.ran == [0, 1, 2, 1]


def test_every_cell_can_be_sent(tmp_path: Path) -> None:
    for name in suites.available():
        suite = suites.get(name)
        executor = Executor(suite, Domains(tmp_path, tmp_path), None, tmp_path)
        job = CellJob(suite.cells(executor.weights_id)[0], executor, tmp_path)
        assert pickle.loads(pickle.dumps(job)).key == job.key
