"""`dept uda MODEL SOURCE TARGET --out RUN`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

import tyro

from dept import methods
from dept.cli.parse import choose, parse
from dept.cli.running import Keeping, show_run
from dept.runs.uda import UDAOptions, adapt_with_source


@dataclass(frozen=True)
class Files:
    """What goes in and out."""

    model: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")]
    """model file (from `dept train` or `dept convert`)"""
    source: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="SOURCE")]
    """labelled source images: a folder with one sub-folder per class, or a list file"""
    target: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="TARGET")]
    """folder of unlabelled target images (any nesting), or a list file"""
    out: Path
    """run folder to write"""
    method: str = "cdan"
    """erm, dann, cdan, mcc, swd or can; its own settings are below"""
    preset: str | None = None
    """named settings of the method (mcc: visda, domainnet; cdan: visda, domainnet, entropy)"""
    score: Path | None = None
    """labelled target images to score on; labels never reach the adaptation"""


def run(argv: list[str]) -> int:
    """Parse the method's name first, then everything else with that method's flags."""
    kind, config = choose(partial(methods.get, setting="uda"), argv, "cdan")
    description = f"Adapt a model with labelled source and unlabelled target images.\n\n{kind.name}: {kind.summary}"
    command = parse("uda", description, argv, files=Files, keeping=Keeping(), options=UDAOptions(), config=config)
    files: Files = command.files
    start = partial(
        adapt_with_source,
        files.model,
        files.source,
        files.target,
        out=files.out,
        method=files.method,
        config=command.config,
        options=command.options,
        score_on=files.score,
    )
    return show_run(["uda", *argv], files.out, command.keeping, start)
