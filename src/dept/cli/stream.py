"""`dept stream MODEL IMAGES|-`."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from dept.cli.command import Command, Positional
from dept.cli.parse import parse
from dept.cli.parts import MethodChoice, ModelFile
from dept.cli.show import ProgressBar, say


@dataclass(frozen=True)
class StreamInput(ModelFile):
    """The model, and where images come from."""

    images: Annotated[str, Positional("IMAGES|-")]
    """folder, .tar archives, list file, address such as s3://bucket/folder, or - for paths on stdin, one per line"""


@dataclass(frozen=True)
class StreamOutput:
    """Where predictions go."""

    out: Path
    """run folder: predictions.jsonl, config.json, events.jsonl, adapter.safetensors, result.json"""
    resume: bool = False
    """continue an earlier stream into the same folder (bit-exact)"""
    tensorboard: bool = False
    """also write the events to OUT/tensorboard (extra `tensorboard`)"""


COMMAND = Command(
    "stream",
    "Predict a stream of images while adapting to it.",
    {"Input": StreamInput, "Output": StreamOutput, "Method": MethodChoice, "Run": "dept.runs.stream_run:StreamOptions"},
    common=("method", "preset", "order", "watch", "group", "resume", "stats", "guard", "seed", "device", "lr", "batch"),
    setting="online",
    method="dept",
    preset="online",
)


def run(argv: list[str]) -> int:
    """Predict every image once, in order, flushed at once; adapt on the way."""
    given, output, choice, options, config = parse(COMMAND, argv)
    from dept.runs.stream_run import stream_into
    from dept.runs.tensorboard import recorded

    with recorded(ProgressBar(), output.out, wanted=output.tensorboard) as listener:
        done = stream_into(
            given.model,
            sys.stdin if given.images == "-" else given.images,
            out=output.out,
            method=choice.method,
            config=config,
            options=options,
            resume=output.resume,
            listener=listener,
        )
    say(str(done))
    return 130 if done.stopped else 0
