"""`dept stream MODEL IMAGES|-`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from dept.cli.command import Command, Positional
from dept.cli.parse import parse


@dataclass(frozen=True)
class StreamFlags:
    """Where images come from and predictions go."""

    model: Annotated[Path, Positional("MODEL")]
    """model file (from `dept train` or `dept convert`)"""
    images: Annotated[str, Positional("IMAGES|-")]
    """folder, list file, or - for paths on stdin, one per line"""
    out: Path
    """run folder: predictions.jsonl, config.json, adapter.safetensors, resume.safetensors"""
    method: str = "dept"
    """how to adapt; `dept methods` lists the methods"""
    preset: str | None = None
    """named settings of the method (default: online)"""
    order: Literal["shuffled", "as-is"] = "shuffled"
    """order of a folder or list; a folder sorted by class is not a realistic stream"""
    watch: bool = False
    """keep watching the folder for new files until Ctrl-C or SIGTERM"""
    poll: float = 1.0
    """polling interval in seconds, with --watch"""
    group: int = 0
    """images predicted together; 0 for the method's batch (from stdin: 1). Updates still use whole batches"""
    save_every: int = 50
    """save adapter and state every N batches"""
    resume: bool = False
    """resume an interrupted stream in the same folder (bit-exact)"""
    stats: Path | None = None
    """source statistics file from `dept stats` (required by CFA, optional for EATA)"""
    seed: int = 0
    """seed of order and views"""
    device: str = "auto"
    """cpu, cuda, mps or auto"""


COMMAND = Command(
    "stream",
    "Predict a stream of images while adapting to it.",
    {"Stream": StreamFlags},
    common=("method", "preset", "order", "watch", "group", "resume", "stats", "seed", "device", "lr", "batch"),
    registry="dept.methods",
    method="dept",
    preset="online",
)


def run(argv: list[str]) -> int:
    """Predict every image once, in order, flushed at once; adapt on the way."""
    flags, config = parse(COMMAND, argv)
    from dept.cli.stream_session import Session

    return Session(flags, config).run()
