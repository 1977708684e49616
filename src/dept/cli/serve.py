"""`dept serve MODEL --adapters DIR`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from dept.cli.command import Command
from dept.cli.parse import parse
from dept.cli.parts import ModelFile


@dataclass(frozen=True)
class ServeInput(ModelFile):
    """The model, and the adapters of its domains."""

    adapters: Path
    """folder of adapters; made if it does not exist. Files DOMAIN.safetensors and run folders in it are adopted"""


COMMAND = Command(
    "serve",
    """Serve one backbone with many adapters over HTTP: predictions, adaptation, dashboard.

Several servers may share the folder of adapters: a change made through one is served by all within two seconds.
SIGTERM or Ctrl-C answers what has been accepted, then ends. Needs the extra `serve`. The API is in docs/serve.md.""",
    {"Input": ServeInput, "Server": "dept.serve.options:ServeOptions"},
    common=("adapters", "host", "port", "token_file", "no_auth", "workers", "device", "amp", "batch", "wait_ms",
            "queue", "rate", "allow_folder"),
)  # fmt: skip


def run(argv: list[str]) -> None:
    """Serve until somebody stops it."""
    given, options = parse(COMMAND, argv)
    from dept.serve.server import serve

    serve(given.model, given.adapters, options)
