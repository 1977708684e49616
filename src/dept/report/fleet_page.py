"""The page of a fleet: which sites improved, were rejected, need labels, or failed. And the page of one site."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from urllib.parse import quote

from dept.io import read_json
from dept.models.files import ModelFile
from dept.report.blocks import Fold, Page, Section, Table, TableCell, Tile, Tone
from dept.report.measure import ReportOptions
from dept.report.page import write_report
from dept.report.svg import signed
from dept.runs.record import shown
from dept.runs.summary import FLEET, LABELS, PAGE, STATUSES, Row, Status, Summary, read_fleet
from dept.runs.words import flag

TONES: dict[Status, Tone] = {"improved": "good", "uncertain": "unclear", "rejected": "bad", "failed": "bad"}
LEADS: dict[Status, str] = {
    "improved": "Use the adapter of each.",
    "uncertain": f"What was found without labels does not decide. Label {LABELS} images of each, then `dept judge`.",
    "unchanged": "Adapter and source model predict the same, so there is nothing to judge.",
    "rejected": "The adaptation promised harm, or nothing. The source model stays in use.",
    "failed": "Start the fleet again to try these again. All others are skipped.",
    "open": "Start the fleet again to go on.",
}
OTHERS: dict[Status, str] = {
    "uncertain": f"uncertain ({LABELS} labels each would tell)",
    "unchanged": "unchanged",
    "rejected": "rejected",
    "failed": "failed",
    "open": "not adapted yet",
}
SAMPLE = 300
"""images of a site that its page is measured on"""


def write_site_report(folder: Path, model: ModelFile) -> None:
    """The page of one site, made by the process that has adapted it, with the model at hand."""
    # t-SNE would often take longer than the adaptation.
    write_report(folder, options=ReportOptions(limit=SAMPLE, projection="pca"), source=model)


def fleet_page(folder: Path) -> Page:
    """The page about all sites of a fleet."""
    summary = read_fleet(folder)
    found = [status for status in STATUSES if summary.of(status)]
    plan = json.dumps(read_json(folder / FLEET), indent=2)
    return Page(
        title=f"Fleet of {len(summary.rows):,} sites",
        subtitle=f"Source model {shown(summary.model)}",
        verdict=_sentence(summary),
        tone="",  # many sites have no common verdict
        tiles=tuple(Tile(status, f"{summary.counts[status]:,}", tone=TONES.get(status, "")) for status in found),
        sections=tuple(_section(summary, status) for status in found),
        folds=(Fold("Model, settings and sites", plan),),
    )


def _sentence(summary: Summary) -> str:
    counts = summary.counts
    first = f"{counts.get('improved', 0):,} of {len(summary.rows):,} sites improved, as far as can be told."
    others = ", ".join(f"{counts[status]:,} {word}" for status, word in OTHERS.items() if status in counts)
    return f"{first} The others: {others}." if others else first


def _section(summary: Summary, status: Status) -> Section:
    rows = [_cells(row, summary.folder) for row in summary.of(status)]
    header = ["site", "method", "images", "change of accuracy, points", "seconds", "verdict"]
    if status in ("failed", "open"):
        header, rows = [header[0], "why"], [[row[0], row[-1]] for row in rows]
    return Section(
        status, STATUSES[status].split(":")[0].capitalize(), LEADS[status], table=Table(header, rows, prose=True)
    )


def _cells(row: Row, folder: Path) -> list[TableCell]:
    link = "" if row.report is None else f"{quote(row.folder.name)}/{PAGE}"
    low, high = ("", "") if row.gain is None else (signed(100 * end, 1) for end in row.gain)
    check = shlex.join(["dept", "check", shown(row.folder.absolute()), flag("labels"), str(LABELS)])
    return [
        TableCell(row.site, link=link),
        TableCell(row.method),
        TableCell(f"{row.images:,}"),
        TableCell(f"{low} to {high}", tone=TONES.get(row.status, "")),
        TableCell(f"{row.seconds:.1f}", note=f"{row.attempts} attempts" if row.attempts > 1 else ""),
        TableCell(row.words, extra=check if row.status == "uncertain" else ""),
    ]
