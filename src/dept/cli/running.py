"""What the commands that write a run folder share: its flags, progress, Ctrl-C, and what is printed at the end."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from dept.cli.show import ProgressBar, as_json, say
from dept.errors import Interrupted
from dept.runs.record import Result
from dept.runs.tensorboard import recorded


@dataclass(frozen=True)
class Keeping:
    """How the run is kept."""

    resume: bool = False
    """go on with an interrupted run, to the same bits"""
    overwrite: bool = False
    """replace a run that is already in the folder"""
    tensorboard: bool = False
    """also write the events to OUT/tensorboard (extra `tensorboard`)"""
    json: bool = False
    """print the result as JSON"""


class Done(Protocol):
    """A finished run: `str` of it is for people, `result` for programs."""

    @property
    def result(self) -> Result: ...


def show_run(words: list[str], out: Path, keeping: Keeping, start: Callable[..., Done]) -> int:
    """Run with a progress bar and print the outcome; after Ctrl-C, print the command that goes on.

    Args:
        words: the command line after `dept`.
        start: does the run; takes `resume`, `overwrite` and `listener`.
    """
    try:
        with recorded(ProgressBar(), out, wanted=keeping.tensorboard) as listener:
            done = start(resume=keeping.resume, overwrite=keeping.overwrite, listener=listener)
    except Interrupted as stop:
        say(f"\nStopped after step {stop.step}; everything is saved. Go on with:\n  {resume_command(words)}")
        return 130
    print(as_json(done.result) if keeping.json else done)
    return 0


def resume_command(words: list[str]) -> str:
    """The command line that goes on with an interrupted run."""
    kept = [word for word in words if word not in ("--resume", "--overwrite")]
    return shlex.join(["dept", *kept, "--resume"])
