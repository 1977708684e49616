"""`dept bench diff A B`: what differs between two results."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

from dept.cli.command import Command, Positional
from dept.cli.parse import parse
from dept.cli.show import as_json, table


@dataclass(frozen=True)
class TwoResults:
    """The two results."""

    a: Annotated[str, Positional("A")]
    """result.json, run folder, or the beginning of a cell's key"""
    b: Annotated[str, Positional("B")]
    """the same"""
    results: Path = Path("benchmarks/results")
    """folder that keys are looked up in"""
    json: bool = False
    """print JSON"""


COMMAND = Command("bench diff", "Show what differs between two results.", {"Arguments": TwoResults})


def run(argv: list[str]) -> None:
    """Print what differs; 0 whether or not anything does."""
    (given,) = parse(COMMAND, argv)
    from dept.bench.protocol import short
    from dept.bench.verify import compare, find_result

    a, b = (find_result(name, given.results) for name in (given.a, given.b))
    found = compare(a.result, b.result, (a.cell, b.cell))
    if given.json:
        print(as_json({"a": a.file, "b": b.file, "equal": found.equal, **asdict(found)}))
        return
    parts = [f"A  {a.file}\nB  {b.file}"]
    for name in ("protocol", "environment", "outcome"):
        rows = [
            [path, *(f"{value:.6g}" if isinstance(value, float) else short(value) for value in values)]
            for path, *values in getattr(found, name)
        ]
        parts.append(table([name, "A", "B"], rows) if rows else f"{name}: no difference")
    if found.predictions:
        parts.append(found.predictions[0].upper() + found.predictions[1:] + ".")
    print("\n\n".join(parts))
