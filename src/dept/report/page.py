"""From a folder to an HTML file: which kind of folder it is, the page, and the page as HTML."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path

from dept._version import __version__
from dept.errors import DataError, missing_extra
from dept.io import check_output, write_atomic
from dept.models.files import ModelFile
from dept.report.blocks import Page, Section
from dept.report.measure import Measured, ReportOptions
from dept.runs.summary import FLEET

Opening = Callable[[Measured], Sequence[Section]]
"""makes sections to begin with from what was measured"""


def write_report(
    folder: str | Path,
    *,
    out: str | Path | None = None,
    options: ReportOptions | None = None,
    opening: Opening | None = None,
    source: ModelFile | None = None,
) -> tuple[Path, Page]:
    """Write the report of a run, of a benchmark suite or of a fleet. Returns the file and the page.

    Args:
        folder: output of `dept adapt`, `uda`, `train`, `stream` or `fleet`, or `benchmarks/results/SUITE`.
        out: the file to write. Default: report.html in the folder.
        opening: sections of a run's page that come before the others, if the images could be measured.
        source: the source model, if the caller has read it already.
    """
    if not find_spec("jinja2"):  # fail before the slow part
        raise missing_extra("jinja2", "report")
    file = Path(out) if out is not None else Path(folder) / "report.html"
    check_output(file, keep=lambda there: there.suffix.lower() not in (".html", ".htm"))
    page = make_page(Path(folder), options or ReportOptions(), opening, source)
    # Names of files need not be valid text.
    write_atomic(file, render(page).encode(errors="backslashreplace"))
    return file, page


def make_page(
    folder: Path, options: ReportOptions, opening: Opening | None = None, source: ModelFile | None = None
) -> Page:
    """The page of a run folder, of a fleet or of a folder of benchmark cells."""
    from dept.report.bench_page import bench_page, holds_cells
    from dept.report.fleet_page import fleet_page
    from dept.report.run_page import run_page

    try:
        if (folder / FLEET).is_file():
            return fleet_page(folder)
        return bench_page(folder) if holds_cells(folder) else run_page(folder, options, opening, source)
    except KeyError as error:
        raise DataError(
            f"The files in {folder} lack the entry {error}. Was one of them edited or truncated?"
        ) from error


def render(page: Page) -> str:
    """The page as one HTML file with styles and images inside: no scripts, nothing to fetch."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("dept.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    style = (files("dept.report") / "templates" / "style.css").read_text(encoding="utf-8")
    html: str = environment.get_template("page.html").render(page=page, style=style, version=__version__)
    return html
