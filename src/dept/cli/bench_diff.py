"""`dept bench diff A B`: what differs between two results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import tyro

from dept.bench.protocol import Difference, short
from dept.bench.verify import Comparison, compare, find_result
from dept.cli.parse import parse
from dept.cli.show import as_json, table


@dataclass(frozen=True)
class Files:
    """The two results."""

    a: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="A")]
    """result.json, run folder, or the beginning of a cell's key"""
    b: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="B")]
    """the same"""
    results: Path = Path("benchmarks/results")
    """folder that keys are looked up in"""
    json: bool = False
    """print JSON"""


def run(argv: list[str]) -> int:
    """Say what differs; 0 whether or not anything does."""
    files: Files = parse("bench diff", "What differs between two results.", argv, files=Files).files
    a, b = (find_result(name, files.results) for name in (files.a, files.b))
    found = compare(a.result, b.result, (a.cell, b.cell))
    if files.json:
        print(as_json({"a": a.file, "b": b.file, "equal": found.equal, **asdict(found)}))
    else:
        print(described(found, a.file, b.file))
    return 0


def described(found: Comparison, one: Path, two: Path) -> str:
    """The comparison as text."""
    parts = [f"A  {one}\nB  {two}"]
    for name in ("protocol", "environment", "outcome"):
        differing: Sequence[Difference] = getattr(found, name)
        rows = [[path, _value(ours), _value(theirs)] for path, ours, theirs in differing]
        parts.append(table([name, "A", "B"], rows) if rows else f"{name}: no difference")
    if found.predictions:
        parts.append(found.predictions[0].upper() + found.predictions[1:] + ".")
    return "\n\n".join(parts)


def _value(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else short(value)
