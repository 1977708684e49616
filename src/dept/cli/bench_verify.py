"""`dept bench verify [SUITE …]`: run a small committed cell of each suite again, and say whether it reproduces."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

import tyro

from dept.bench import suites
from dept.bench.execute import Executor
from dept.bench.runner import Cell, Stored
from dept.bench.stored import stored_cells
from dept.bench.verify import TOLERANCE, Check, cheapest, verify, with_key
from dept.cli.bench_suite import domains
from dept.cli.parse import parse
from dept.cli.show import as_json, say, table
from dept.errors import DataError, DeptError, UsageError
from dept.runs.record import Result

_DESCRIPTION = f"""Run a committed cell of each suite again and compare.

Of every suite the quickest cell is taken, by its stored time and that of its source training. In the environment of the
stored result every prediction must be equal; where versions, device, processor or threads differ, the accuracy may be
off by {TOLERANCE:g} point. Suites without committed results, or without data or weights here, are not checked."""


@dataclass(frozen=True)
class Files:
    """What is run again, and with which files."""

    suites: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="[SUITE …]")] = ()
    """which suites; all by default"""
    data: Path | None = None
    """folder of the data sets (default: $DEPT_DATA)"""
    weights: Path | None = None
    """timm weights of the backbone (safetensors)"""
    results: Path = Path("benchmarks/results")
    """folder of the committed results"""
    work: Path = Path("runs/verify")
    """folder for models and run folders"""
    cell: str = ""
    """the (beginning of the) key of a cell to run instead of the quickest one; with one suite"""
    device: str = "auto"
    """cpu, cuda, mps or auto"""
    workers: int = 0
    """processes that decode images and make views"""
    json: bool = False
    """print JSON"""


def run(argv: list[str]) -> int:
    """1 if a result does not reproduce, or nothing could be checked."""
    files: Files = parse("bench verify", _DESCRIPTION, argv, files=Files).files
    if files.cell and len(files.suites) != 1:
        raise UsageError("--cell belongs to one suite: name it, as in `dept bench verify pacs-mini --cell KEY`.")
    for path in (files.data, files.weights):
        if path is not None and not path.exists():
            raise DataError(f"{path} does not exist.")
    checks = [_check(name, files) for name in files.suites or suites.available()]
    if files.json:
        print(as_json([asdict(check) for check in checks]))
    else:
        rows = [[check.suite, check.key or "–", check.verdict, check.reason] for check in checks]
        print(table(["suite", "cell", "verdict", "why"], rows))
    checked = [check for check in checks if check.verdict != "not checked"]
    return 0 if checked and not any(check.failed for check in checked) else 1


def _check(name: str, files: Files) -> Check:
    """One suite; what cannot be run is not checked, with the reason."""
    suite = suites.get(name)
    cells = stored_cells(files.results / name)
    if not cells:
        return Check(name, "not checked", f"no results in {files.results / name}")
    try:
        executor = Executor(
            suite, domains(files.data, files.work), files.weights, files.work, files.device, files.workers
        )
        picked = _picked(cells, {cell.key for cell in suite.cells(executor.weights_id)}, files.cell)
        if picked is None:
            return Check(name, "not checked", "no stored cell is of today's definition with these --weights")
        say(f"{name}: running {picked.cell.shift} {picked.cell.method} again ({picked.cell.key}) …")
        return verify(picked, partial(_again, executor))
    except DeptError as error:
        return Check(name, "not checked", str(error))


def _again(executor: Executor, cell: Cell) -> Result:
    shutil.rmtree(executor.folder(cell), ignore_errors=True)  # what an earlier check left is no evidence
    return executor.run(cell)


def _picked(cells: Sequence[Stored], defined: set[str], key: str) -> Stored | None:
    """The cell that was asked for, or the quickest of those that the suite defines."""
    if key:
        return with_key(cells, key)
    trainings = [one for one in cells if "after" not in one.result]
    return cheapest([*trainings, *(one for one in cells if one.cell.key in defined)])
