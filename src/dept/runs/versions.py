"""Earlier versions of a run's adapter, and the way back to them.

adapter.1.safetensors is the version before adapter.safetensors, adapter.2.safetensors the one before that. Where a
whole run was replaced, its records are kept under the same number (result.1.json): going back brings back the run.
A stream has a snapshot beside each version, from which it continues after going back. Its predictions are never taken
back.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from dept.errors import UsageError
from dept.io import file_sha256, read_tensors, write_atomic, write_tensors
from dept.methods.base import prefixed

PRODUCT = "adapter.safetensors"
SNAPSHOT = "snapshot.safetensors"
"""of a stream: what its method needs to continue from the adapter beside it"""
RESUME = "resume.safetensors"
RECORDS = ("config.json", "events.jsonl", "result.json", "verdict.json", RESUME, SNAPSHOT)
KEPT = 5
"""earlier versions that are kept: an adapter has a few hundred KB, or the size of the model if all of it is tuned"""
UNDONE = "undone"


def numbered(file: Path, number: int | str) -> Path:
    """The file of an earlier version: adapter.safetensors -> adapter.1.safetensors."""
    return file.with_name(f"{file.stem}.{number}{file.suffix}")


def versions(folder: Path) -> list[int]:
    """Numbers of the earlier versions that a folder has, the latest first."""
    return [number for number in range(1, KEPT + 1) if numbered(folder / PRODUCT, number).is_file()]


def keep(folder: Path, *, records: bool = False, snapshot: bool = False) -> None:
    """Keep the adapter that is about to be replaced as version 1. Older versions move up, the oldest one goes.

    The adapter itself stays where it is until a new one takes its place: somebody may be using it.

    Args:
        records: whether a whole run is replaced. Its records, if it has finished, move to version 1.
        snapshot: whether to keep the snapshot of a stream with its adapter.
    """
    adapter, latest = folder / PRODUCT, numbered(folder / PRODUCT, 1)
    if not adapter.is_file():
        return
    # A run that was to replace this one, and was interrupted, has kept it already.
    if not (records and latest.is_file() and file_sha256(adapter) == file_sha256(latest)):
        for number in range(KEPT, 0, -1):
            for name in (PRODUCT, *RECORDS):
                _move(numbered(folder / name, number), numbered(folder / name, number + 1) if number < KEPT else None)
        # A copy, not a link: whoever writes into the adapter's file must not change what is kept.
        write_atomic(latest, adapter.read_bytes())
        if snapshot and (folder / SNAPSHOT).is_file():
            write_atomic(numbered(folder / SNAPSHOT, 1), (folder / SNAPSHOT).read_bytes())
    if records and (folder / "result.json").is_file():
        for name in RECORDS:
            _move(folder / name, numbered(folder / name, 1))


@dataclass(frozen=True)
class Undone:
    """What `undo` has done; print it to read it."""

    folder: Path
    meta: dict[str, Any]
    """metadata of the restored adapter"""
    earlier: int
    """versions that are left"""
    run: bool
    """whether the whole run was restored, or, of a stream, its adapter"""
    rewound: bool
    """whether a stream, if it is resumed, continues from the restored adapter"""

    def __str__(self) -> str:
        method, images = self.meta.get("method", "unknown"), self.meta.get("images")
        seen = f", {images:,} images" if isinstance(images, int) else ""
        lines = [f"Restored {self.folder / PRODUCT} as it was before (method {method}{seen})."]
        lines.append(f"What was undone is kept as {numbered(self.folder / PRODUCT, UNDONE).name}, until the next undo.")
        if self.rewound:
            lines.append("The stream, if resumed, continues from there. Its predictions so far stay as they are.")
        elif not self.run:
            lines.append("Only the adapter went back. The stream itself, if resumed, continues from its last state.")
        lines.append(f"{self.earlier or 'No'} earlier version{'s' * (self.earlier != 1)} left.")
        return "\n".join(lines)


def undo(folder: Path) -> Undone:
    """Restore the version before. The caller keeps other processes out of the folder.

    Raises:
        UsageError: there is no earlier version.
        DataError: the earlier version is damaged. Nothing is changed then.
    """
    found = versions(folder)
    if not found:
        raise UsageError(
            f"There is nothing to undo in {folder}: it has no {numbered(Path(PRODUCT), 1)}. An adapter is kept when "
            "`dept adapt` or `dept stream` replaces it. To do without any adapter, use the source model alone."
        )
    latest = found[0]
    _, meta = read_tensors(numbered(folder / PRODUCT, latest), "adapter")
    whole, rewound = numbered(folder / "result.json", latest).is_file(), _rewound(folder, latest)
    if (folder / PRODUCT).is_file():
        write_atomic(numbered(folder / PRODUCT, UNDONE), (folder / PRODUCT).read_bytes())
    for name in RECORDS if whole else ():
        _move(folder / name, numbered(folder / name, UNDONE))
    for name in (*RECORDS, PRODUCT):  # the adapter last: until then a second attempt finds everything it needs
        _move(numbered(folder / name, latest), folder / name)
    if rewound is not None:
        _move(folder / RESUME, numbered(folder / RESUME, UNDONE))
        write_tensors(folder / RESUME, *rewound)
    (folder / "report.html").unlink(missing_ok=True)  # it is about what was undone
    for number in found[1:]:
        for name in (PRODUCT, *RECORDS):
            _move(numbered(folder / name, number), numbered(folder / name, number - latest))
    return Undone(folder, meta, len(found) - 1, whole, rewound is not None)


def _rewound(folder: Path, number: int) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
    """The state from which a stream continues with an earlier version; None if there is none.

    Nothing of what was predicted since is learned from again.
    """
    snapshot, resume = numbered(folder / SNAPSHOT, number), folder / RESUME
    if not (snapshot.is_file() and resume.is_file()):
        return None
    method, _ = read_tensors(snapshot, "snapshot")
    counters = read_tensors(resume, "stream")[0]["counters"]
    lines = (folder / "predictions.jsonl").read_bytes().count(b"\n")
    meta = {"kind": "stream", "lines": lines, "rewound": True}
    return {**prefixed("method", method), "counters": counters}, meta


def _move(file: Path, to: Path | None) -> None:
    """Rename a file, or remove it, if it is there."""
    if file.exists():
        if to is None:
            file.unlink()
        else:
            file.replace(to)
