"""`dept undo RUN`."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from dept.cli.command import Command, Positional
from dept.cli.parse import parse
from dept.cli.show import as_json, show, table
from dept.errors import UsageError

if TYPE_CHECKING:
    from dept.runs.versions import Version


@dataclass(frozen=True)
class UndoInput:
    """The run to go back in."""

    folder: Annotated[Path, Positional("RUN")]
    """folder of a run of `dept adapt` or `dept stream`"""
    to: int | None = None
    """version to restore (default: the latest)"""
    list: bool = False
    """only list the versions"""
    json: bool = False
    """print JSON"""


COMMAND = Command(
    "undo",
    """Restore the adapter that a run or a stream has replaced.

Five earlier versions are kept beside the adapter (adapter.1.safetensors is the latest), with the records of their runs:
the last five runs, and points of a stream that are ever further apart. Repeat it to go back further, or name a version
with --to. What is undone is kept as adapter.undone.safetensors. A stream that is resumed continues from the restored
version.""",
    {"Input": UndoInput},
)


def run(argv: list[str]) -> None:
    """Go back; print what was done."""
    (given,) = parse(COMMAND, argv)
    from dept.runs.folder import alone_in
    from dept.runs.versions import PRODUCT, history, undo

    if not given.folder.is_dir():
        raise UsageError(f"{given.folder} is not a folder. Give the folder of a run.")
    if given.list:
        found = history(given.folder)
        show(as_json([asdict(one) for one in found]) if given.json else _table(found))
        return
    with alone_in(given.folder):
        done = undo(given.folder, given.to)
    if given.json:
        print(as_json({"restored": given.folder / PRODUCT, "meta": done.meta, "earlier": done.earlier}))
    else:
        show(str(done))


def _table(found: list[Version]) -> str:
    """The versions, the latest first."""
    if not found:
        return "No earlier versions."
    rows = [
        [
            str(one.number),
            one.method,
            "-" if one.images is None else f"{one.images:,}",
            f"{one.saved:%Y-%m-%d %H:%M:%S}",
        ]
        for one in found
    ]
    return table(["version", "method", "images", "replaced"], rows)
