"""`dept undo RUN`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from dept.cli.command import Command, Positional
from dept.cli.parse import parse
from dept.cli.show import as_json, show
from dept.errors import UsageError


@dataclass(frozen=True)
class UndoInput:
    """The run to go back in."""

    folder: Annotated[Path, Positional("RUN")]
    """folder of a run of `dept adapt` or `dept stream`"""
    json: bool = False
    """print JSON"""


COMMAND = Command(
    "undo",
    """Restore the adapter that a run or a stream has replaced.

The last five versions are kept beside the adapter (adapter.1.safetensors is the latest), with the records of their
runs. Repeat it to go back further. What is undone is kept as adapter.undone.safetensors.""",
    {"Input": UndoInput},
)


def run(argv: list[str]) -> None:
    """Go back one version; print what was done."""
    (given,) = parse(COMMAND, argv)
    from dept.runs.folder import alone_in
    from dept.runs.versions import PRODUCT, undo

    if not given.folder.is_dir():
        raise UsageError(f"{given.folder} is not a folder. Give the folder of a run.")
    with alone_in(given.folder):
        done = undo(given.folder)
    if given.json:
        print(as_json({"restored": given.folder / PRODUCT, "meta": done.meta, "earlier": done.earlier}))
    else:
        show(str(done))
