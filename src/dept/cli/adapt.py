"""`dept adapt MODEL IMAGES --out RUN`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

import tyro

from dept import methods
from dept.cli.parse import choose, parse
from dept.cli.running import Keeping, show_run
from dept.runs.adapt import AdaptOptions, adapt


@dataclass(frozen=True)
class Files:
    """What goes in and out."""

    model: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")]
    """model file (from `dept train` or `dept convert`)"""
    images: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="IMAGES")]
    """folder of unlabelled images (any nesting), or a list file"""
    out: Path
    """run folder to write"""
    method: str = "dept"
    """how to adapt; `dept methods` lists them. Its own settings are below"""
    preset: str | None = None
    """named settings of the method (dept: official, paper; tent: online, offline)"""
    score: Path | None = None
    """labelled images to score on; labels never reach the adaptation"""


def run(argv: list[str]) -> int:
    """Parse the method's name first, then everything else with that method's flags."""
    kind, config = choose(partial(methods.get, setting="offline"), argv, "dept")
    description = f"Adapt a model to unlabelled images.\n\n{kind.name}: {kind.summary}"
    command = parse("adapt", description, argv, files=Files, keeping=Keeping(), options=AdaptOptions(), config=config)
    files: Files = command.files
    start = partial(
        adapt,
        files.model,
        files.images,
        out=files.out,
        method=files.method,
        config=command.config,
        options=command.options,
        score_on=files.score,
    )
    return show_run(["adapt", *argv], files.out, command.keeping, start)
