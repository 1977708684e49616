"""`dept bench tsne MODEL LABELLED --adapters A …`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from dept.cli.parse import parse
from dept.cli.show import report_skipped, say
from dept.data.images import decodable, find_labelled
from dept.data.loader import Runtime, resolve_device
from dept.data.subsets import sample
from dept.models.files import load
from dept.report.tsne import draw, features


@dataclass(frozen=True)
class Files:
    """Which models see which images."""

    model: Annotated[Path, tyro.conf.Positional]
    """source model"""
    images: Annotated[Path, tyro.conf.Positional]
    """labelled images; labels only colour the points"""
    adapters: tuple[Path, ...] = ()
    """adapter files; one more panel each"""
    out: Path = Path("tsne.png")
    """figure to write"""
    limit: int = 2000
    """at most so many images, drawn uniformly"""
    device: str = "auto"
    """cpu, cuda, mps or auto"""
    workers: int = 0
    """processes that decode images"""


def run(argv: list[str]) -> int:
    """Draw the figure; print how well classes separate in each panel."""
    files: Files = parse("bench tsne", "t-SNE of features before and after adaptation.", argv, files=Files).files
    runtime = Runtime(resolve_device(files.device), files.workers)
    source = load(files.model)
    images = decodable(sample(find_labelled(files.images, source.classes), files.limit))
    report_skipped(images)
    sets = {"source model": features(source, images, runtime)}
    for adapter in files.adapters:
        name = adapter.parent.name or adapter.stem
        sets[f"adapted: {name}"] = features(load(files.model, adapter=adapter), images, runtime)
    found = draw(sets, images.labels or (), images.classes, files.out)
    say(f"Figure: {files.out}")
    print(json.dumps({"images": len(images), "nearest_neighbour_agrees": found}, indent=2))
    return 0
