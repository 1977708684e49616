"""What became of a fleet, read from the folders of its sites."""

from __future__ import annotations

import shlex
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from dept.errors import DataError, DeptError
from dept.io import read_json
from dept.runs.read import REJECTED, RunFiles, read_result, read_verdict
from dept.runs.record import shown
from dept.runs.site_job import read_record
from dept.runs.sites import check_name
from dept.runs.words import expected_line, flag, judged_lines

FLEET = "fleet.json"
"""the model, the settings and the sites of a fleet"""
PAGE = "report.html"
LABELS = 20
"""images to label where only labels tell: enough to find a clear gain or a clear loss, few enough for many sites"""
Status = Literal["improved", "uncertain", "unchanged", "rejected", "failed", "open"]
STATUSES: dict[Status, str] = {
    "improved": "improved",
    "uncertain": f"uncertain: {LABELS} labels each would tell",
    "unchanged": "unchanged: no prediction differs",
    "rejected": "rejected: the source model stays in use",
    "failed": "failed",
    "open": "not adapted yet",
}
VERDICTS: dict[str, Status] = {"improved": "improved", "harmful": "rejected"}
SHOWN = 10
"""sites that are named in a terminal, of each kind"""


@dataclass(frozen=True)
class Row:
    """One site."""

    site: str
    status: Status
    words: str
    """the verdict, or why there is none"""
    folder: Path
    method: str = ""
    images: int = 0
    gain: tuple[float, float] | None = None
    """least and largest change of accuracy, as far as can be told without labels"""
    seconds: float = 0.0
    attempts: int = 0

    @property
    def report(self) -> Path | None:
        """The page about this site, if it has one."""
        file = self.folder / PAGE
        return file if file.is_file() else None


@dataclass(frozen=True)
class Summary:
    """All sites of a fleet; print it to read it."""

    folder: Path
    model: str
    rows: tuple[Row, ...]

    def of(self, status: Status) -> list[Row]:
        """The sites with this status, in the order of the fleet."""
        return [row for row in self.rows if row.status == status]

    @property
    def counts(self) -> dict[str, int]:
        """Sites of each status."""
        found = Counter(row.status for row in self.rows)
        return {status: found[status] for status in get_args(Status) if found[status]}

    def record(self) -> dict[str, Any]:
        """For programs."""
        rows = [{**asdict(row), "folder": str(row.folder)} for row in self.rows]
        return {"folder": str(self.folder), "model": self.model, "counts": self.counts, "sites": rows}

    def __str__(self) -> str:
        lines = [f"{len(self.rows)} sites"]
        for status, count in self.counts.items():
            lines.append(f"  {count:>5}  {STATUSES[status]}")  # type: ignore[index]
        for row in self.of("failed")[:SHOWN]:
            lines.append(f"{row.site} failed: {row.words}")
        if len(self.of("failed")) > SHOWN:
            lines.append(f"… and {len(self.of('failed')) - SHOWN} more that failed.")
        for row in self.of("uncertain")[:1]:
            command = ["dept", "check", shown(row.folder.absolute()), flag("labels"), str(LABELS)]
            lines.append(f"Next:  {shlex.join(command)}   (then `dept judge`)")
        return "\n".join(lines)


def read_fleet(folder: str | Path) -> Summary:
    """What became of every site of a fleet."""
    path = Path(folder)
    plan = read_json(path / FLEET)
    sites, model = plan.get("sites"), plan.get("model")
    if not (isinstance(sites, list) and all(isinstance(name, str) for name in sites) and isinstance(model, str)):
        raise DataError(f"{path / FLEET} is damaged: it must name a model and sites.")
    # Whatever the file says, nothing outside of the folder is read.
    return Summary(path, model, tuple(_row(path / check_name(name, str(path / FLEET)), name) for name in sites))


def _row(folder: Path, name: str) -> Row:
    record = read_record(folder)
    if record.get("error"):
        return Row(name, "failed", record["error"], folder, attempts=record.get("attempts", 0))
    if not record.get("finished"):
        return Row(name, "open", STATUSES["open"].capitalize() + ".", folder, attempts=record.get("attempts", 0))
    try:
        result = read_result(folder / "result.json")
        status, words = _verdict(RunFiles(folder, "adapt", result=result, verdict=read_verdict(folder)))
        expected = result["expected"]
        return Row(
            name,
            status,
            words,
            folder,
            result["method"],
            result["images"],
            (expected["low"], expected["high"]),
            record.get("seconds", 0.0),
            record.get("attempts", 0),
        )
    except (DeptError, KeyError) as error:
        return Row(name, "failed", f"Its files cannot be read: {error}", folder)


def _verdict(run: RunFiles) -> tuple[Status, str]:
    """What labels say if there are any, else what can be told without."""
    if run.judged:
        return VERDICTS.get(run.judged["verdict"], "uncertain"), judged_lines(run.judged)[0]
    expected, choice = run.result["expected"], run.result.get("auto")
    if run.result["method"] == "source" and choice:
        return "rejected", f"auto kept the source model: {choice['why']}"
    if (run.folder / REJECTED).is_file():
        return "rejected", expected_line(expected)
    usual: Status = "unchanged" if expected["low"] == expected["high"] else "uncertain"
    return VERDICTS.get(expected["verdict"], usual), expected_line(expected)
