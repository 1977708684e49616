"""`dept bench versus SUITE A B`: is one row of a suite better than another?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from dept.bench import suites
from dept.bench.render import pipe_table
from dept.bench.stored import choose, suite_cells
from dept.bench.versus import Versus, versus
from dept.cli.parse import parse
from dept.cli.show import as_json, table
from dept.errors import UsageError


@dataclass(frozen=True)
class Files:
    """The two rows, and where their results are."""

    suite: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="SUITE")]
    """name of the suite"""
    a: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="A")]
    """label of a row, as the table prints it"""
    b: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="B")]
    """labels of the rows that it is compared with"""
    shifts: tuple[str, ...] = ()
    """only these shifts, or target domains"""
    results: Path = Path("benchmarks/results")
    """folder of results"""
    format: Literal["terminal", "markdown", "json"] = "terminal"
    """of the answer"""


def run(argv: list[str]) -> int:
    """Print the paired differences."""
    files: Files = parse("bench versus", "Is one row of a suite better than others?", argv, files=Files).files
    if not files.b:
        raise UsageError(f"What is {files.a!r} to be compared with? Give the label of at least one other row.")
    whole = suites.get(files.suite)
    results = choose(whole.chosen(shifts=files.shifts), suite_cells(whole, files.results))
    found = {other: versus(results, files.a, other) for other in files.b}
    if files.format == "json":
        print(as_json({other: [asdict(one) for one in compared] for other, compared in found.items()}))
        return 0
    header = [f"{files.a} against", *(one.column for one in found[files.b[0]]), "seeds"]
    rows = [[other, *map(_text, compared), _seeds(compared)] for other, compared in found.items()]
    print((pipe_table if files.format == "markdown" else table)(header, rows))
    print("\nDifference in top-1 (points) with its 95 % interval, paired over images.")
    return 0


def _text(one: Versus) -> str:
    low, high = one.interval
    return f"{one.ours - one.theirs:+.1f} [{low:+.1f}, {high:+.1f}]"


def _seeds(compared: Sequence[Versus]) -> str:
    return ", ".join(map(str, compared[0].seeds))
