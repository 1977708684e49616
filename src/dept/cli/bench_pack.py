"""`dept bench pack`: finished cells into one file per suite."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from dept.cli.command import Command
from dept.cli.parse import parse
from dept.errors import UsageError


@dataclass(frozen=True)
class Packed:
    """What is packed."""

    results: Path = Path("benchmarks/results")
    """folder of results"""


COMMAND = Command(
    "bench pack",
    "Move finished cells into one file per suite, SUITE/cells.jsonl, with one line per cell.",
    {"Input": Packed},
)


def run(argv: list[str]) -> None:
    """Pack every suite, and say how many cells were moved."""
    (given,) = parse(COMMAND, argv)
    from dept.bench import suites
    from dept.bench.runner import pack

    folders = [given.results / name for name in suites.available() if (given.results / name).is_dir()]
    if not folders:
        raise UsageError(f"{given.results} holds no results of a suite. Name their folder with --results.")
    for folder in folders:
        print(f"{folder.name}: {pack(folder)} cells packed")
