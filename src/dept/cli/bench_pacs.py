"""`dept bench pacs-mini`."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from dept.bench.pacs_mini import STAGES, SUITE, TARGETS, Suite
from dept.bench.runner import Outcome, run_cells
from dept.bench.tables import accuracy_table, stored_cells
from dept.cli.parse import parse
from dept.cli.show import say
from dept.errors import UsageError


@dataclass(frozen=True)
class Files:
    """What is run, and where results go."""

    data: Path | None = None
    """folder that holds pacs/<domain>/<class>/… (default: $DEPT_DATA)"""
    weights: Path | None = None
    """timm weights of the backbone (safetensors)"""
    results: Path = Path("benchmarks/results")
    """folder of results; finished cells in it are not run again"""
    work: Path = Path("runs")
    """folder for models and run folders"""
    variants: tuple[str, ...] = tuple(STAGES)
    """which source models: plain, S, G, D"""
    targets: tuple[str, ...] = TARGETS
    """which target domains"""
    seeds: tuple[int, ...] = (0, 1)
    """seeds of the adaptations"""
    lean: bool = False
    """run DePT with --lean (one forward fewer per step, not exact) instead of the exact form"""
    table: bool = False
    """print the table of stored results instead of running"""
    workers: int = 0
    """processes that decode images and make views"""


def run(argv: list[str]) -> int:
    """Run the cells that are not done yet, then print the table."""
    files: Files = parse("bench pacs-mini", "PACS photo to the three other domains.", argv, files=Files).files
    if not files.table and _run(files):
        return 1
    print(accuracy_table(stored_cells(files.results / SUITE), TARGETS))
    return 0


def _run(files: Files) -> int:
    """Run what is missing; returns how many cells failed."""
    data = files.data or Path(os.environ.get("DEPT_DATA", ""))
    if not (data / "pacs").is_dir() or files.weights is None:
        raise UsageError("pacs-mini needs --data DIR (with pacs/<domain>/<class>/…) or $DEPT_DATA, and --weights FILE.")
    unknown = [name for name in files.variants if name not in STAGES]
    if unknown:
        raise UsageError(f"Unknown variant {unknown[0]!r}; choose from {', '.join(STAGES)}.")
    suite = Suite(data, files.weights, files.work, workers=files.workers)
    cells = suite.cells(files.variants, files.targets, files.seeds, lean=files.lean)
    failed = 0
    for number, outcome in enumerate(run_cells(cells, suite.run, files.results), 1):
        failed += outcome.result is None
        say(f"[{number}/{len(cells)}] {outcome.cell.title}: {_summary(outcome)}")
    return failed


def _summary(outcome: Outcome) -> str:
    result = outcome.result
    if result is None:
        return f"FAILED ({outcome.error})"
    stored = "" if outcome.fresh else " (stored)"
    if "accuracy" in result:
        return f"held-out {100 * result['accuracy']:.1f} %{stored}"
    change = f"{100 * result['before']['top1']:.1f} -> {100 * result['after']['top1']:.1f} %"
    return f"{change} in {result['seconds']:.0f} s{stored}"
