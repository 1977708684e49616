"""`dept bench verify [SUITE …]`: re-run a small committed cell of each suite and check that it reproduces."""

from __future__ import annotations

import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from dept.cli.command import Command, Positional
from dept.cli.parse import parse
from dept.cli.parts import BenchInputs, Device
from dept.cli.show import as_json, say, table
from dept.errors import DataError, DeptError, UsageError

if TYPE_CHECKING:
    from dept.bench.runner import Stored
    from dept.bench.verify import Check


@dataclass(frozen=True)
class VerifyInput(BenchInputs):
    """What is re-run, and with which files."""

    suites: Annotated[tuple[str, ...], Positional("[SUITE …]")] = ()
    """suites to check (default: all)"""
    work: Path = Path("runs/verify")
    """folder for models and run folders"""
    cell: str = ""
    """key (or its beginning) of a cell to run instead of the quickest one; needs exactly one suite"""
    json: bool = False
    """print JSON"""


COMMAND = Command(
    "bench verify",
    """Re-run a committed cell of each suite and compare.

The quickest cell of every suite is taken, by its stored time and that of its source training. In the environment of the
stored result every prediction must be equal. Where versions, device, processor or threads differ, accuracy may differ
by 1 point. Suites without committed results, or without data or weights here, are not checked.""",
    {"Arguments": VerifyInput, "Run": Device},
)


def run(argv: list[str]) -> int:
    """1 if a result does not reproduce, or nothing could be checked."""
    given, how = parse(COMMAND, argv)
    if given.cell and len(given.suites) != 1:
        raise UsageError("--cell needs exactly one suite, as in `dept bench verify pacs-mini --cell KEY`.")
    for path in (given.data, given.weights):
        if path is not None and not path.exists():
            raise DataError(f"{path} does not exist.")
    from dept.bench import suites

    checks = [_check(name, given, how) for name in given.suites or suites.available()]
    if given.json:
        print(as_json([asdict(check) for check in checks]))
    else:
        rows = [[check.suite, check.key or "–", check.verdict, check.reason] for check in checks]
        print(table(["suite", "cell", "verdict", "why"], rows))
    checked = [check for check in checks if check.verdict != "not checked"]
    return 0 if checked and not any(check.failed for check in checked) else 1


def _check(name: str, given: VerifyInput, how: Device) -> Check:
    """One suite; what cannot be run is not checked, with the reason."""
    from dept.bench import suites
    from dept.bench.execute import Executor
    from dept.bench.stored import stored_cells
    from dept.bench.verify import Check, cheapest, verify, with_key

    suite = suites.get(name)
    cells = stored_cells(given.results / name)
    if not cells:
        return Check(name, "not checked", f"no results in {given.results / name}")
    try:
        executor = Executor(suite, given.domains(), given.weights, given.work, how.device, how.workers)
        if given.cell:
            picked: Stored | None = with_key(cells, given.cell)
        else:
            defined = {cell.key for cell in suite.cells(executor.weights_id)}
            trainings = [one for one in cells if "after" not in one.result]
            picked = cheapest([*trainings, *(one for one in cells if one.cell.key in defined)])
        if picked is None:
            return Check(name, "not checked", "no stored cell matches today's definition with these --weights")
        say(f"{name}: re-running {picked.cell.shift} {picked.cell.method} ({picked.cell.key}) …")
        shutil.rmtree(executor.folder(picked.cell), ignore_errors=True)  # what an earlier check left is no evidence
        return verify(picked, executor.run(picked.cell))
    except DeptError as error:
        return Check(name, "not checked", str(error))
