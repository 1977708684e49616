"""`dept predict MODEL IMAGES [--adapter A]`."""

from __future__ import annotations

import csv
import io
import json as jsonlib
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from dept.cli.parse import parse
from dept.cli.show import report_skipped, say
from dept.data.images import decodable, find_images
from dept.errors import UsageError
from dept.inference import Prediction, as_row, predict
from dept.io import check_output, write_atomic
from dept.models.files import load


@dataclass(frozen=True)
class Files:
    """What is labelled, and how the answer is written."""

    model: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")]
    """model file"""
    images: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="IMAGES")]
    """folder (any nesting), one image, or a list file"""
    adapter: Path | None = None
    """adapter file of the domain"""
    out: Path | None = None
    """file to write (.csv, .jsonl or .json); without it, stdout"""
    format: Literal["csv", "jsonl"] = "csv"
    """format on stdout"""
    topk: int = 5
    """classes per image"""
    features: bool = False
    """add the feature vector of every image (JSONL only)"""
    batch: int = 64
    """images per forward"""
    device: str = "auto"
    """cpu, cuda, mps or auto"""
    workers: int = 0
    """processes that decode images"""


def run(argv: list[str]) -> int:
    """Label every image that decodes; list the others on stderr."""
    files: Files = parse("predict", "Label images.", argv, files=Files).files
    kind = files.format if files.out is None else _kind(files, files.out)
    model = load(files.model, adapter=files.adapter)
    images = decodable(find_images(files.images))
    report_skipped(images)
    rows = predict(
        model,
        images,
        topk=files.topk,
        features=files.features,
        device=files.device,
        workers=files.workers,
        batch=files.batch,
    )
    if files.features and kind == "csv":
        say("Features are written to JSONL only: add --format jsonl, or --out FILE.jsonl.")
    text = as_jsonl(rows) if kind == "jsonl" else as_csv(rows)
    if files.out is None:
        print(text, end="")
    else:
        write_atomic(files.out, text.encode(errors="surrogateescape"))  # names as the file system has them
        say(f"{len(rows)} predictions in {files.out}")
    return 0


def _kind(files: Files, out: Path) -> Literal["csv", "jsonl"]:
    """The format that the name of the file asks for; a file that cannot be written is refused before the work."""
    kinds: dict[str, Literal["csv", "jsonl"]] = {".csv": "csv", ".jsonl": "jsonl", ".json": "jsonl"}
    check_output(out, files.model, files.images, *([files.adapter] if files.adapter else []))
    if out.suffix not in kinds:
        raise UsageError(f"--out {out} must end in .csv, .jsonl or .json: the ending says how predictions are written.")
    return kinds[out.suffix]


def as_jsonl(rows: list[Prediction]) -> str:
    """One JSON object per line."""
    return "".join(jsonlib.dumps(as_row(row)) + "\n" for row in rows)


def as_csv(rows: list[Prediction]) -> str:
    """path, label, confidence, and the top-k as `class:probability` separated by spaces."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(["path", "label", "confidence", "topk"])
    for row in rows:
        ranked = " ".join(f"{label}:{value:.4f}" for label, value in row.topk)
        writer.writerow([row.path, row.label, f"{row.confidence:.4f}", ranked])
    return buffer.getvalue()
