"""`dept stream MODEL IMAGES|-`."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

import tyro

from dept import methods
from dept.cli.parse import choose, parse
from dept.cli.show import ProgressBar, say
from dept.runs.stream_run import StreamOptions, stream_into


@dataclass(frozen=True)
class Files:
    """Where images come from and predictions go."""

    model: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")]
    """model file"""
    images: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="IMAGES|-")]
    """folder, list file, or - for paths on stdin, one per line"""
    out: Path
    """run folder: predictions.jsonl, config.json, events.jsonl, adapter.safetensors, result.json"""
    method: str = "dept"
    """how to adapt; `dept methods` lists them. Its own settings are below"""
    preset: str | None = None
    """named settings of the method (default: online)"""
    resume: bool = False
    """continue an earlier stream into the same folder (bit-exact)"""


def run(argv: list[str]) -> int:
    """Predict every image once, in order, flushed at once; adapt on the way."""
    kind, config = choose(partial(methods.get, setting="online"), argv, "dept", prefer="online")
    description = f"Predict a stream of images while adapting to it.\n\n{kind.name}: {kind.summary}"
    command = parse("stream", description, argv, files=Files, options=StreamOptions(), config=config)
    files: Files = command.files
    done = stream_into(
        files.model,
        sys.stdin if files.images == "-" else files.images,
        out=files.out,
        method=files.method,
        config=command.config,
        options=command.options,
        resume=files.resume,
        listener=ProgressBar(),
    )
    say(str(done))
    return 130 if done.stopped else 0
