"""`dept bench datasets --root DIR`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dept.cli.command import Command
from dept.cli.parse import parse
from dept.cli.parts import Json
from dept.cli.show import as_json, table
from dept.errors import DataError, UsageError

if TYPE_CHECKING:
    from dept.data.datasets import Benchmark
    from dept.data.datasets.check import Finding

MOST = 6
"""lines of detail for each data set; --json has them all"""


@dataclass(frozen=True)
class DataFolder(Json):
    """Where to look."""

    root: Path | None = None
    """folder that holds the data sets, one folder each (default: $DEPT_DATA)"""


COMMAND = Command(
    "bench datasets",
    "Check which benchmark data sets are complete. Counts file names and opens no image.",
    {"Arguments": DataFolder},
)


def run(argv: list[str]) -> None:
    """Print what is complete, partial or missing, and where to get what is missing."""
    (given,) = parse(COMMAND, argv)
    root = given.root or os.environ.get("DEPT_DATA")
    if not root:
        raise UsageError("Give the folder that holds the data sets: --root DIR, or $DEPT_DATA.")
    if not Path(root).is_dir():
        raise DataError(f"{root} is not a folder.")
    from dept.data.datasets import TABLE
    from dept.data.datasets.check import overall

    checked = [(benchmark, benchmark.check(Path(root))) for benchmark in TABLE]
    results = [(benchmark, overall(findings), findings) for benchmark, findings in checked]
    if given.json:
        records = []
        for one, state, findings in results:
            known = {"name": one.name, "title": one.title, "state": state, "home": one.home, "licence": one.licence}
            records.append(known | {"domains": [finding.record() for finding in findings]})
        print(as_json(records))
    else:
        print(_text(results))


def _text(results: Sequence[tuple[Benchmark, str, Sequence[Finding]]]) -> str:
    rows = []
    for benchmark, state, findings in results:
        counted = [f for f in findings if f.found or not f.optional]  # optional domains count only if they are there
        domains = f"{sum(f.complete for f in counted)}/{len(counted)}"
        images, expected = sum(f.found for f in counted), sum(f.expected or 0 for f in counted)
        rows.append([benchmark.name, state, domains, f"{images:,}", f"{expected:,}"])
    blocks = [table(["data set", "state", "domains", "images", "of"], rows)]
    blocks += [_partial(benchmark, findings) for benchmark, state, findings in results if state == "partial"]
    missing = [benchmark for benchmark, state, _ in results if state == "missing"]
    if missing:
        width = max(len(benchmark.folders[0]) for benchmark in missing)
        lines = [f"  {b.folders[0]:<{width}}  {b.home} ({b.licence})" for b in missing]
        blocks.append("\n".join(["Missing: name of the folder, and where to get the data.", *lines]))
    return "\n\n".join(blocks)


def _partial(benchmark: Benchmark, findings: Sequence[Finding]) -> str:
    """What is wrong, domain by domain; missing domains are named in one line."""
    odd = [f for f in findings if not f.complete and (f.found or f.problems)]
    absent = [f.domain for f in findings if f.state == "missing" and not f.problems and not f.optional]
    lines = [f"  {finding.domain}: {finding}" for finding in odd[:MOST]]
    if len(odd) > MOST:
        lines.append(f"  … and {len(odd) - MOST} more incomplete domains (--json shows all).")
    if absent:
        more = f", … ({len(absent)} in all)" if len(absent) > MOST else ""
        lines.append(f"  missing: {', '.join(absent[:MOST])}{more}")
    return "\n".join([f"{benchmark.title} is partial. {benchmark.where()}", *lines])
