"""What the commands that write a run folder share: progress, Ctrl-C, and what is printed at the end."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from dept.cli.parts import RunOutput
from dept.cli.show import ProgressBar, as_json, say
from dept.errors import Interrupted

if TYPE_CHECKING:
    from dept.runs.record import Result


class Done(Protocol):
    """A finished run: `str` of it is for people, `result` for programs."""

    @property
    def result(self) -> Result: ...


def show_run(words: list[str], output: RunOutput, start: Callable[..., Done]) -> int:
    """Run with a progress bar and print the outcome; after Ctrl-C, print the command that resumes the run.

    Args:
        words: the command line after `dept`.
        start: does the run; takes `resume`, `overwrite` and `listener`.
    """
    from dept.runs.tensorboard import recorded

    try:
        with recorded(ProgressBar(), output.out, wanted=output.tensorboard) as listener:
            done = start(resume=output.resume, overwrite=output.overwrite, listener=listener)
    except Interrupted as stop:
        say(f"\nStopped after step {stop.step}. The state is saved. To continue:\n  {resume_command(words)}")
        return 130
    print(as_json(done.result) if output.json else done)
    return 0


def resume_command(words: list[str]) -> str:
    """The command line that resumes an interrupted run."""
    kept = [word for word in words if word not in ("--resume", "--overwrite")]
    return shlex.join(["dept", *kept, "--resume"])
