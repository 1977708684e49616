"""`dept bench tsne MODEL LABELLED --adapters A …`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from dept.cli.command import Command, Positional
from dept.cli.parse import parse
from dept.cli.parts import Device, ModelFile
from dept.cli.show import as_json, report_skipped, say


@dataclass(frozen=True)
class TsneInput(ModelFile):
    """The models, the images and the figure."""

    images: Annotated[Path, Positional("LABELLED")]
    """labelled images; labels only colour the points"""
    adapters: tuple[Path, ...] = ()
    """adapter files; each adds a panel"""
    out: Path = Path("tsne.png")
    """figure to write"""
    limit: int = 2000
    """use at most N images, drawn uniformly"""


COMMAND = Command(
    "bench tsne", "Plot t-SNE of features before and after adaptation.", {"Arguments": TsneInput, "Run": Device}
)


def run(argv: list[str]) -> None:
    """Draw the figure; print how well classes separate in each panel."""
    given, how = parse(COMMAND, argv)
    from dept.data.images import decodable, find_labelled
    from dept.data.loader import Runtime, resolve_device
    from dept.data.subsets import sample
    from dept.models.files import load
    from dept.report.embedding import draw, features

    runtime = Runtime(resolve_device(how.device), how.workers)
    source = load(given.model)
    chosen = sample(find_labelled(given.images, source.classes), given.limit)
    images = decodable(chosen, channels=source.card.preprocess.channels)
    report_skipped(images)
    sets = {"source model": features(source, images, runtime)}
    for adapter in given.adapters:
        name = adapter.parent.name or adapter.stem
        sets[f"adapted: {name}"] = features(load(given.model, adapter=adapter), images, runtime)
    found = draw(sets, images.labels or (), images.classes, given.out)
    say(f"Figure: {given.out}")
    print(as_json({"images": len(images), "nearest_neighbour_agrees": found}))
