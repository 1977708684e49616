"""`dept bench diff A B`: what differs between two results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from dept.cli.command import Command, Positional
from dept.cli.parse import parse
from dept.cli.show import as_json, table

if TYPE_CHECKING:
    from dept.bench.compare import Comparison
    from dept.bench.protocol import Difference


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


COMMAND = Command(
    "bench diff", "Show what differs between two results.", {"Arguments": "dept.cli.bench_diff:TwoResults"}
)


def run(argv: list[str]) -> int:
    """Print what differs; 0 whether or not anything does."""
    (given,) = parse(COMMAND, argv)
    from dept.bench.compare import compare, find_result

    (one, a), (two, b) = (find_result(name, given.results) for name in (given.a, given.b))
    found = compare(a, b)
    if given.json:
        print(as_json({"a": one, "b": two, "equal": found.equal, **asdict(found)}))
    else:
        print(described(found, one, two))
    return 0


def described(found: Comparison, one: Path, two: Path) -> str:
    """The comparison as text."""
    from dept.bench.protocol import short

    def shown(value: object) -> str:
        return f"{value:.6g}" if isinstance(value, float) else short(value)

    parts = [f"A  {one}\nB  {two}"]
    for name in ("protocol", "environment", "outcome"):
        differing: Sequence[Difference] = getattr(found, name)
        rows = [[path, shown(ours), shown(theirs)] for path, ours, theirs in differing]
        parts.append(table([name, "A", "B"], rows) if rows else f"{name}: no difference")
    if found.predictions:
        parts.append(found.predictions[0].upper() + found.predictions[1:] + ".")
    return "\n\n".join(parts)
