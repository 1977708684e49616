"""`dept report RUN|FLEET|BENCH`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from dept.cli.command import Command, Positional
from dept.cli.parse import parse
from dept.cli.show import show


@dataclass(frozen=True)
class ReportFolder:
    """The folder to report on, and the page."""

    folder: Annotated[Path, Positional("RUN|FLEET|BENCH")]
    """folder of a run, of a fleet, or of a benchmark suite"""
    out: Path | None = None
    """file to write (default: report.html in the folder)"""


COMMAND = Command(
    "report",
    """Write a self-contained HTML page about a run, a fleet or a benchmark.

RUN is the output folder of `dept adapt`, `uda`, `train` or `stream`, FLEET that of `dept fleet`.
BENCH is a folder of finished cells, such as benchmarks/results/SUITE. The model and the images are read from where the
run found them.""",
    {"Input and output": ReportFolder, "Measurement": "dept.report.measure:ReportOptions"},
)


def run(argv: list[str]) -> None:
    """Write the page; print its verdict and where it is."""
    given, options = parse(COMMAND, argv)
    from dept.report.page import write_report

    file, page = write_report(given.folder, out=given.out, options=options)
    show("\n".join([page.verdict, *page.remarks]))
    show(f"Report: {file} ({file.stat().st_size / 1024:.0f} KiB)")
