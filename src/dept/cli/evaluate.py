"""`dept evaluate MODEL LABELLED [--adapter A]`."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from dept.cli.parse import parse
from dept.cli.show import as_json, report_skipped, table
from dept.data.folder import decodable, find_labelled
from dept.files import load
from dept.inference import evaluate


@dataclass(frozen=True)
class Files:
    """What is scored on what."""

    model: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")]
    """model file"""
    labelled: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="LABELLED")]
    """folder with one sub-folder per class (the model's names), or a list file"""
    adapter: Path | None = None
    """adapter file of the domain"""
    json: bool = False
    """print JSON"""
    batch: int = 64
    """images per forward"""
    device: str = "auto"
    """cpu, cuda, mps or auto"""
    workers: int = 0
    """processes that decode images"""


def run(argv: list[str]) -> int:
    """Score the model."""
    files: Files = parse("evaluate", "Score a model on labelled images.", argv, files=Files).files
    model = load(files.model, adapter=files.adapter)
    images = decodable(find_labelled(files.labelled, model.classes))
    report_skipped(images)
    scores = evaluate(model, images, device=files.device, workers=files.workers, batch=files.batch)
    if files.json:
        print(as_json(scores))
        return 0
    low, high = scores["ci95"]
    print(f"images          {scores['n']}")
    print(f"top-1           {100 * scores['top1']:.2f} %  (95 % interval {100 * low:.2f} to {100 * high:.2f})")
    print(f"mean per class  {100 * scores['mean_per_class']:.2f} %")
    print(f"NLL             {scores['nll']:.4f}\nECE             {scores['ece']:.4f}\n")
    counts = Counter(model.classes[label] for label in images.labels or ())
    rows = [[name, str(counts[name]), f"{100 * value:.1f} %"] for name, value in scores["per_class"].items()]
    print(table(["class", "images", "accuracy"], rows))
    return 0
