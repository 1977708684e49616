"""`dept uda MODEL SOURCE TARGET --out RUN`."""

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
class UDAInput(ModelFile):
    """The model, and the images of both domains."""

    source: Annotated[Path, Positional("SOURCE")]
    """labelled source images: a folder with one sub-folder per class, or a list file"""
    target: Annotated[Path, Positional("TARGET")]
    """folder of unlabelled target images (any nesting), or a list file"""
    score: Path | None = None
    """labelled target images to evaluate on; labels never reach the adaptation"""


@dataclass(frozen=True)
class UDAMethodChoice(MethodChoice):
    """Which method adapts with source data."""

    method: str = "cdan"
    """how to adapt: erm, dann, cdan, mcc, swd or can"""


COMMAND = Command(
    "uda",
    "Adapt a model with labelled source and unlabelled target images.",
    {"Input": UDAInput, "Output": RunOutput, "Method": UDAMethodChoice, "Run": "dept.runs.uda:UDAOptions"},
    common=("score", "resume", "overwrite", "json", "method", "preset", "seed", "device", "workers", "lr", "batch",
            "epochs", "max_iters"),
    setting="uda",
    method="cdan",
)  # fmt: skip


def run(argv: list[str]) -> int:
    """Adapt, and print what changed."""
    given, output, choice, options, config = parse(COMMAND, argv)
    from dept.runs.uda import adapt_with_source

    start = partial(adapt_with_source, given.model, given.source, given.target, score_on=given.score)
    return show_run(["uda", *argv], output, start, method=choice.method, config=config, options=options)
