"""`dept adapt MODEL IMAGES --out RUN`."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from dept import methods
from dept.adapting import AdaptOptions, adapt
from dept.cli.parse import parse, peek
from dept.cli.show import ProgressBar, as_json, say
from dept.errors import UsageError
from dept.runs import Interrupted
from dept.tensorboard import recorded


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
    resume: bool = False
    """go on with an interrupted run, to the same bits"""
    overwrite: bool = False
    """replace a run that is already in the folder"""
    tensorboard: bool = False
    """also write the events to OUT/tensorboard (extra `tensorboard`)"""
    json: bool = False
    """print the result as JSON"""


def run(argv: list[str]) -> int:
    """Parse the method's name first, then everything else with that method's flags."""
    name, preset = peek(argv, "--method", "dept"), peek(argv, "--preset", None)
    try:
        kind = methods.get(str(name))
        config = kind.preset(preset) if preset else kind.Config()
    except ValueError as error:
        raise UsageError(str(error)) from error
    description = f"Adapt a model to unlabelled images.\n\n{name}: {kind.summary}"
    command = parse("adapt", description, argv, files=Files, options=AdaptOptions(), config=config)
    files: Files = command.files
    try:
        with recorded(ProgressBar(), files.out, wanted=files.tensorboard) as listener:
            done = adapt(
                files.model,
                files.images,
                out=files.out,
                method=files.method,
                config=command.config,
                options=command.options,
                score_on=files.score,
                resume=files.resume,
                overwrite=files.overwrite,
                listener=listener,
            )
    except Interrupted as stop:
        say(f"\nStopped after step {stop.step}; everything is saved. Go on with:\n  {resume_command('adapt', argv)}")
        return 130
    print(as_json(done.result) if files.json else str(done).replace(" MODEL ", f" {files.model} "))
    return 0


def resume_command(command: str, argv: list[str]) -> str:
    """The command line that goes on with an interrupted run."""
    words = [word for word in argv if word not in ("--resume", "--overwrite")]
    return " ".join(["dept", command, *map(_quoted, words), "--resume"])


def _quoted(word: str) -> str:
    import shlex

    return shlex.quote(word)


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
