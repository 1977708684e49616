"""`judge`: what the labels of a check say of a run, written into its folder."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dept.errors import DataError, UsageError
from dept.health.gain import Labelled, Verdict, interval, sign_test, verdict
from dept.health.labels import merged, read_labels
from dept.io import write_json
from dept.runs.check import check_place, read_check, verdict_place
from dept.runs.read import REJECTED, read_run
from dept.runs.record import shown
from dept.runs.seal import sealed
from dept.runs.versions import versions
from dept.runs.words import flag, judged_lines


@dataclass(frozen=True)
class Judged:
    """A verdict, and what it rests on; print it to read it."""

    runs: tuple[Path, ...]
    file: Path
    verdict: Verdict
    result: dict[str, Any]
    sides: tuple[str, str]
    asked: int
    """images that the check drew"""

    def __str__(self) -> str:
        return "\n".join([*judged_lines(self.result, self.sides), *self._next()])

    def _next(self) -> list[str]:
        """The verdict's file, and what to do about it."""
        folders = [shown(run) for run in self.runs]
        labelled = self.result["right_after"] + self.result["right_before"] + self.result["neither"]
        file = f"Verdict: {self.file}"
        if self.verdict == "uncertain":
            if labelled == self.result["disagreeing"]:
                return [file, "All images on which predictions differ are labelled. Only more images can tell more."]
            if labelled < self.asked:
                return [file, f"{self.asked - labelled} of the {self.asked} drawn images have no label yet: add them."]
            more = [flag("labels"), str(min(2 * labelled, self.result["disagreeing"]))]
            # The same draw, only more of it: labels that are there must stay among the drawn.
            more += [flag("seed"), str(self.result["seed"])] if self.result["seed"] else []
            more += [flag("stratified")] if self.result["stratified"] else []
            return [file, f"Next:  {shlex.join(['dept', 'check', *folders, *more])}"]
        if len(folders) == 2:
            return [file, f"Use {folders[0] if self.verdict == 'harmful' else folders[1]}."]
        if self.verdict == "harmful":
            back = f", or go back to the adapter before: {shlex.join(['dept', 'undo', *folders])}"
            return [file, f"Use the source model without this adapter{back if versions(self.runs[0]) else '.'}"]
        aside = self.runs[0] / REJECTED
        use = [f"Its adapter was set aside as harmful before. Use it: {shown(aside)}"] if aside.is_file() else []
        return [file, *use, f"Next:  {shlex.join(['dept', 'report', *folders])}"]


def judge(runs: Sequence[str | Path], labels: Sequence[str | Path]) -> Judged:
    """Judge a run, or the second of two, by labels of the images that `check` drew. Replaces an earlier verdict.

    Args:
        labels: tables as `check` writes them, with answers; several are merged.
    """
    if not 1 <= len(runs) <= 2 or not labels:
        raise UsageError("Give the folder of one run, or of two, and at least one file of labels.")
    read = [read_run(folder) for folder in runs]
    places = tuple(run.folder for run in read)
    record, questions = read_check(check_place(places))
    if record["products"] != [run.product_sha256 for run in read]:
        raise DataError(
            f"{' or '.join(str(place) for place in places)} has another adapter than when the images were drawn. "
            "Run `dept check` again: labels of images whose predictions are the same are kept."
        )
    found = merged({Path(file): read_labels(Path(file), questions) for file in labels})
    if not found:
        raise DataError(f"{shown(labels[0])} has no labels yet: its column right is empty.")
    counts = Counter(found.values())
    first, second = questions.sides
    seen = Labelled(record["images"], record["disagreeing"], counts[second], counts[first], counts["neither"])
    said = verdict(seen)
    result = {
        "verdict": said,
        "gain": seen.gain,
        "ci95": list(interval(seen)),
        "p_value": sign_test(seen),
        "images": seen.images,
        "disagreeing": seen.disagreeing,
        "right_after": seen.after,
        "right_before": seen.before,
        "neither": seen.neither,
        "labels": dict(sorted(found.items())),
        "products": record["products"],
        "seed": record.get("seed"),
        "stratified": record.get("stratified"),
    }
    file = verdict_place(places) / "verdict.json"
    write_json(file, sealed(result))
    return Judged(places, file, said, result, questions.sides, len(questions.asked))
