"""`dept adapt MODEL IMAGES --out RUN`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

from dept.cli.command import Command, Positional
from dept.cli.parse import parse
from dept.cli.parts import MethodChoice, ModelFile, RunOutput
from dept.cli.show import show_run


@dataclass(frozen=True)
class AdaptInput(ModelFile):
    """The model, and the images it is adapted to."""

    images: Annotated[Path, Positional("IMAGES")]
    """folder of unlabelled images (any nesting), .tar archives, a list file, or an address such as s3://bucket/folder"""
    score: Path | None = None
    """labelled images to evaluate on; labels never reach the adaptation"""


@dataclass(frozen=True)
class AdaptChoice(MethodChoice):
    """Which method adapts."""

    method: str = "auto"
    """how to adapt: auto runs candidates and keeps one; `dept methods` lists all"""


COMMAND = Command(
    "adapt",
    "Adapt a model to unlabelled images.",
    {"Input": AdaptInput, "Output": RunOutput, "Method": AdaptChoice, "Run": "dept.runs.adapt:AdaptOptions"},
    common=("score", "resume", "overwrite", "json", "method", "preset", "seed", "ratio", "device", "workers",
            "prior", "budget", "accept", "lr", "batch", "epochs", "max_iters"),
    setting="offline",
    method="auto",
)  # fmt: skip


def run(argv: list[str]) -> int:
    """Adapt, and print what changed."""
    given, output, choice, options, config = parse(COMMAND, argv)
    from dept.runs.adapt import adapt

    start = partial(adapt, given.model, given.images, score_on=given.score)
    settings = {"method": choice.method, "preset": choice.preset, "config": config, "options": options}
    return show_run(["adapt", *argv], output, start, **settings)
