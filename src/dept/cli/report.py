"""`dept report RUN|BENCH`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from dept.cli.parse import parse
from dept.report.measure import ReportOptions
from dept.report.page import write_report

_DESCRIPTION = """Write a self-contained HTML page about a run or a benchmark.

RUN is the --out folder of `dept adapt`, `uda`, `train` or `stream`; BENCH is a folder of finished cells, such as
benchmarks/results/SUITE. The model and the images are looked up where the run found them."""


@dataclass(frozen=True)
class Files:
    """What to report on, and where to."""

    folder: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN|BENCH")]
    """folder of a run, or of a benchmark suite"""
    out: Path | None = None
    """file to write; default: report.html in the folder"""


def run(argv: list[str]) -> int:
    """Write the page; print its verdict and where it is."""
    command = parse("report", _DESCRIPTION, argv, files=Files, options=ReportOptions())
    file, page = write_report(command.files.folder, out=command.files.out, options=command.options)
    print(page.verdict)
    for remark in page.remarks:
        print(remark)
    print(f"Report: {file} ({file.stat().st_size / 1024:.0f} KiB)")
    return 0
