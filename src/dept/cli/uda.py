"""`dept uda MODEL SOURCE TARGET --out RUN`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from dept import uda
from dept.cli.adapt import resume_command
from dept.cli.parse import parse, peek
from dept.cli.show import ProgressBar, as_json, say
from dept.errors import UsageError
from dept.runs import Interrupted
from dept.uda_run import UDAOptions, adapt_with_source


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
    resume: bool = False
    """go on with an interrupted run, to the same bits"""
    overwrite: bool = False
    """replace a run that is already in the folder"""
    json: bool = False
    """print the result as JSON"""


def run(argv: list[str]) -> int:
    """Parse the method's name first, then everything else with that method's flags."""
    name, preset = peek(argv, "--method", "cdan"), peek(argv, "--preset", None)
    try:
        kind = uda.get(str(name))
        config = kind.preset(preset) if preset else kind.Config()
    except ValueError as error:
        raise UsageError(str(error)) from error
    description = f"Adapt a model with labelled source and unlabelled target images.\n\n{name}: {kind.summary}"
    command = parse("uda", description, argv, files=Files, options=UDAOptions(), config=config)
    files: Files = command.files
    try:
        done = adapt_with_source(
            files.model,
            files.source,
            files.target,
            out=files.out,
            method=files.method,
            config=command.config,
            options=command.options,
            score_on=files.score,
            resume=files.resume,
            overwrite=files.overwrite,
            listener=ProgressBar(),
        )
    except Interrupted as stop:
        say(f"\nStopped after step {stop.step}; everything is saved. Go on with:\n  {resume_command('uda', argv)}")
        return 130
    print(as_json(done.result) if files.json else done)
    return 0
