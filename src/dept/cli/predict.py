"""`dept predict MODEL IMAGES [--adapter A]`."""

from __future__ import annotations

import csv
import io
import json as jsonlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from dept.cli.command import Command, Positional
from dept.cli.parse import parse
from dept.cli.parts import Inference, ModelFile, SkippedFiles
from dept.cli.show import report_skipped, say
from dept.errors import UsageError

if TYPE_CHECKING:
    from dept.inference import Prediction

KINDS: dict[str, Literal["csv", "jsonl"]] = {".csv": "csv", ".jsonl": "jsonl", ".json": "jsonl"}


@dataclass(frozen=True)
class PredictInput(ModelFile):
    """The model, and the images to label."""

    images: Annotated[Path, Positional("IMAGES")]
    """folder (any nesting), one image, or a list file"""
    adapter: Path | None = None
    """adapter file of the domain"""


@dataclass(frozen=True)
class Predictions(SkippedFiles):
    """How predictions are written."""

    out: Path | None = None
    """file to write (.csv, .jsonl or .json); without it, stdout"""
    format: Literal["csv", "jsonl"] = "csv"
    """format on stdout"""
    topk: int = 5
    """classes per image"""
    features: bool = False
    """add the feature vector of every image (JSONL only)"""


COMMAND = Command("predict", "Label images.", {"Input": PredictInput, "Output": Predictions, "Run": Inference})


def run(argv: list[str]) -> None:
    """Label every image that decodes; list the others on stderr."""
    given, output, how = parse(COMMAND, argv)
    from dept.data.images import decodable, find_images
    from dept.inference import as_row, predict
    from dept.io import check_output, write_atomic
    from dept.models.files import load

    kind, inputs = output.format, [given.model, given.images, *([given.adapter] if given.adapter else [])]
    output.check_skipped(output.out, *inputs)  # refused before the work, not after it
    if output.out is not None:
        check_output(output.out, *inputs)
        if output.out.suffix not in KINDS:
            raise UsageError(f"--out must end in .csv, .jsonl or .json, which decides the format; found {output.out}.")
        kind = KINDS[output.out.suffix]
    model = load(given.model, adapter=given.adapter)
    images = decodable(find_images(given.images), channels=model.card.preprocess.channels)
    report_skipped(images, output.skipped)
    settings = {"topk": output.topk, "features": output.features}
    rows = predict(model, images, **settings, device=how.device, workers=how.workers, batch=how.batch)
    if output.features and kind == "csv":
        say("Features are written to JSONL only: add --format jsonl, or --out FILE.jsonl.")
    text = "".join(jsonlib.dumps(as_row(row)) + "\n" for row in rows) if kind == "jsonl" else as_csv(rows)
    if output.out is None:
        print(text, end="")
    else:
        write_atomic(output.out, text.encode(errors="surrogateescape"))  # names as the file system has them
        say(f"{len(rows)} predictions in {output.out}")


def as_csv(rows: list[Prediction]) -> str:
    """path, label, confidence, and the top-k as `class:probability` separated by spaces.

    Names are written exactly, even if a spreadsheet would take one for a formula (`=1+1.png`).
    """
    buffer = io.StringIO()
    # A carriage return ends a line for readers, but only newer versions of Python quote it by themselves.
    plain, quoted = (csv.writer(buffer, lineterminator="\n", quoting=how) for how in (csv.QUOTE_MINIMAL, csv.QUOTE_ALL))
    plain.writerow(["path", "label", "confidence", "topk"])
    for row in rows:
        ranked = " ".join(f"{label}:{value:.4f}" for label, value in row.topk)
        writer = quoted if "\r" in row.path + ranked else plain
        writer.writerow([row.path, row.label, f"{row.confidence:.4f}", ranked])
    return buffer.getvalue()
