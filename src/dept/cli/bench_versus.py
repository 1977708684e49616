"""`dept bench versus SUITE A B`: is one row of a suite better than another?"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Literal

from dept.cli.command import Command, Positional
from dept.cli.parse import parse
from dept.cli.show import as_json, table
from dept.errors import UsageError


@dataclass(frozen=True)
class TwoRows:
    """The rows to compare."""

    suite: Annotated[str, Positional("SUITE")]
    """name of the suite"""
    a: Annotated[str, Positional("A")]
    """label of a row, as printed in the table"""
    b: Annotated[tuple[str, ...], Positional("B…")]
    """labels of the rows to compare it with"""
    shifts: tuple[str, ...] = ()
    """only these shifts, or target domains"""
    results: Path = Path("benchmarks/results")
    """folder of results"""
    format: Literal["terminal", "markdown", "json"] = "terminal"
    """output format"""


COMMAND = Command(
    "bench versus", "Test whether one row of a suite is better than others, paired over images.", {"Arguments": TwoRows}
)


def run(argv: list[str]) -> None:
    """Print the paired differences."""
    (given,) = parse(COMMAND, argv)
    if not given.b:
        raise UsageError(f"Nothing to compare {given.a!r} with. Give the label of at least one other row.")
    from dept.bench import suites
    from dept.bench.render import pipe_table
    from dept.bench.stored import choose, suite_cells
    from dept.bench.versus import versus

    whole = suites.get(given.suite)
    results = choose(whole.chosen(shifts=given.shifts), suite_cells(whole, given.results))
    found = {other: versus(results, given.a, other) for other in given.b}
    if given.format == "json":
        print(as_json({other: [asdict(one) for one in compared] for other, compared in found.items()}))
        return
    header = [f"{given.a} against", *(one.column for one in found[given.b[0]]), "seeds"]
    rows = []
    for other, compared in found.items():
        gaps = [f"{one.ours - one.theirs:+.1f} [{one.interval[0]:+.1f}, {one.interval[1]:+.1f}]" for one in compared]
        rows.append([other, *gaps, ", ".join(map(str, compared[0].seeds))])
    print((pipe_table if given.format == "markdown" else table)(header, rows))
    print("\nDifference in top-1 (points) with its 95 % interval, paired over images.")
