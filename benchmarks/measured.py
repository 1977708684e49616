"""The command line of scripts that print a table of stored results, and measure what is not stored with --measure."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from dept.bench.suites.pacs_mini import ARCH
from dept.errors import DeptError


def measured(doc: str | None, stored: Path, work: Path, measure: Callable[[argparse.Namespace], None]) -> None:
    """Parse the flags and measure if they say so; ends with a sentence if nothing is stored afterwards."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measure", action="store_true", help="run what has no result yet")
    parser.add_argument("--data", type=Path, help="folder of the data sets")
    parser.add_argument("--weights", help=f"{ARCH} as a file")
    parser.add_argument("--work", type=Path, default=work, help="run folders and made images")
    asked = parser.parse_args()
    try:
        if asked.measure:
            measure(asked)
    except DeptError as error:
        parser.error(str(error))
    if not stored.exists():
        parser.error(f"{stored} does not exist yet: run it with --measure.")
