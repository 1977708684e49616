"""`dept bench datasets --root DIR`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dept.cli.parse import parse
from dept.cli.show import as_json, table
from dept.data.datasets import TABLE, Benchmark
from dept.data.datasets.check import Finding, overall
from dept.errors import DataError, UsageError

MOST = 6
"""lines of detail for each data set; --json has them all"""


@dataclass(frozen=True)
class Files:
    """Where to look."""

    root: Path | None = None
    """folder that holds the data sets, one folder each (default: $DEPT_DATA)"""
    json: bool = False
    """print everything as JSON"""


def run(argv: list[str]) -> int:
    """Say what is complete, partial or missing, and where to get what is missing."""
    description = "What is there of every benchmark data set. Counts names; opens no image."
    files: Files = parse("bench datasets", description, argv, files=Files).files
    root = _root(files)
    results = [(benchmark, benchmark.check(root)) for benchmark in TABLE]
    print(as_json([_record(*result) for result in results]) if files.json else _text(results))
    return 0


def _root(files: Files) -> Path:
    given = files.root or os.environ.get("DEPT_DATA")
    if not given:
        raise UsageError("Give the folder that holds the data sets: --root DIR, or $DEPT_DATA.")
    if not Path(given).is_dir():
        raise DataError(f"{given} is not a folder.")
    return Path(given)


def _record(benchmark: Benchmark, findings: Sequence[Finding]) -> dict[str, object]:
    return {
        "name": benchmark.name,
        "title": benchmark.title,
        "state": overall(findings),
        "home": benchmark.home,
        "licence": benchmark.licence,
        "domains": [finding.record() for finding in findings],
    }


def _text(results: Sequence[tuple[Benchmark, list[Finding]]]) -> str:
    header = ["data set", "state", "domains", "images", "of"]
    blocks = [table(header, [_row(*result) for result in results])]
    blocks += [_partial(*result) for result in results if overall(result[1]) == "partial"]
    missing = [benchmark for benchmark, findings in results if overall(findings) == "missing"]
    if missing:
        blocks.append(_missing(missing))
    return "\n\n".join(blocks)


def _missing(benchmarks: Sequence[Benchmark]) -> str:
    width = max(len(benchmark.folders[0]) for benchmark in benchmarks)
    lines = [f"  {b.folders[0]:<{width}}  {b.home} ({b.licence})" for b in benchmarks]
    return "\n".join(["Missing: where to get it, and the name of its folder.", *lines])


def _row(benchmark: Benchmark, findings: Sequence[Finding]) -> list[str]:
    """Domains that the data set can do without are counted when they are there."""
    counted = [f for f in findings if f.found or not f.optional]
    domains = f"{sum(f.complete for f in counted)}/{len(counted)}"
    expected = sum(f.expected or 0 for f in counted)
    return [benchmark.name, overall(findings), domains, f"{sum(f.found for f in counted):,}", f"{expected:,}"]


def _partial(benchmark: Benchmark, findings: Sequence[Finding]) -> str:
    """What is wrong, domain by domain; domains that are not there at all are named in one line."""
    odd = [f for f in findings if not f.complete and (f.found or f.problems)]
    absent = [f.domain for f in findings if f.state == "missing" and not f.problems and not f.optional]
    lines = [f"  {finding.domain}: {finding}" for finding in odd[:MOST]]
    if len(odd) > MOST:
        lines.append(f"  … and {len(odd) - MOST} more incomplete domains (--json shows all).")
    if absent:
        more = f", … ({len(absent)} in all)" if len(absent) > MOST else ""
        lines.append(f"  not there: {', '.join(absent[:MOST])}{more}")
    return "\n".join([f"{benchmark.title} is partial. {benchmark.where()}", *lines])
