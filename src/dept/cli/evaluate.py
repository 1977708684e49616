"""`dept evaluate MODEL LABELLED [--adapter A]`."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from dept.cli.parse import parse
from dept.cli.show import as_json, report_skipped, table
from dept.data.images import decodable, find_labelled
from dept.inference import evaluate_ensemble
from dept.models.files import load
from dept.models.model import Model


@dataclass(frozen=True)
class Files:
    """What is scored on what."""

    model: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")]
    """model file"""
    labelled: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="LABELLED")]
    """folder with one sub-folder per class (the model's names), or a list file"""
    adapter: tyro.conf.UseAppendAction[tuple[Path, ...]] = ()
    """adapter file of the domain; given several times: the mean of the adapted models' probabilities"""
    member: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """a further model of the ensemble, as MODEL or MODEL,ADAPTER; may be given several times"""
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
    models = members(files)
    model = models[0]
    images = decodable(find_labelled(files.labelled, model.classes))
    report_skipped(images)
    # One member alone takes the same way: the mean of one is itself, to the bit.
    scores = evaluate_ensemble(models, images, device=files.device, workers=files.workers, batch=files.batch)
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


def members(files: Files) -> list[Model]:
    """The models that answer together: MODEL with each adapter (or as it is), and every further member."""
    pairs: list[tuple[str | Path, str | None]] = [(files.model, str(adapter)) for adapter in files.adapter]
    pairs = pairs or [(files.model, None)]
    for member in files.member:
        model, _, adapter = member.partition(",")
        pairs.append((model, adapter or None))
    return [load(model, adapter=adapter) for model, adapter in pairs]
