"""Earlier versions of a run's adapter, and the way back to them.

adapter.1.safetensors is the version before adapter.safetensors, adapter.2.safetensors the one before that. Where a
whole run was replaced, its records are kept under the same number (result.1.json): going back brings back the run.
A stream has a snapshot beside each version, from which it continues after going back. Its predictions are never taken
back. The versions of a stream are ever further apart, so that a few of them reach back to its beginning.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from torch import Tensor

from dept.errors import DataError, UsageError, some
from dept.io import file_sha256, read_meta, read_tensors, write_atomic, write_tensors
from dept.methods.base import prefixed
from dept.runs.read import REJECTED

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


def keep(folder: Path, *, records: bool = False, seen: int = 0) -> None:
    """Keep the adapter that is about to be replaced as version 1. Older versions move up, one of them goes.

    The adapter itself stays where it is until a new one takes its place: somebody may be using it.

    Args:
        records: whether a whole run is replaced. Its records, if it has finished, move to version 1.
        seen: images that a stream has predicted so far. Its snapshot is kept with its adapter.
    """
    adapter, latest = folder / PRODUCT, numbered(folder / PRODUCT, 1)
    if not adapter.is_file():
        return
    # A run that was to replace this one, and was interrupted, has kept it already.
    if not (records and latest.is_file() and file_sha256(adapter) == file_sha256(latest)):
        gone = _least_missed(folder, seen) if seen and numbered(adapter, KEPT).is_file() else KEPT
        for number in range(gone, 0, -1):
            for name in (PRODUCT, *RECORDS):
                _move(numbered(folder / name, number), numbered(folder / name, number + 1) if number < gone else None)
        # A copy, not a link: whoever writes into the adapter's file must not change what is kept.
        write_atomic(latest, adapter.read_bytes())
        if seen and (folder / SNAPSHOT).is_file():
            write_atomic(numbered(folder / SNAPSHOT, 1), (folder / SNAPSHOT).read_bytes())
    if records and (folder / "result.json").is_file():
        for name in RECORDS:
            _move(folder / name, numbered(folder / name, 1))


def _least_missed(folder: Path, seen: int) -> int:
    """The version of a stream whose neighbours are nearest to each other, by the ratio of their ages in images.

    Neither the adapter that becomes version 1 nor the oldest version goes.
    """
    files = [folder / PRODUCT, *(numbered(folder / PRODUCT, number) for number in versions(folder))]
    ages = [seen - _images(file) + 1 for file in files]
    return min(range(1, len(files) - 1), key=lambda number: ages[number + 1] / ages[number - 1])


def _images(file: Path) -> int:
    """Images that a stream had predicted when it saved a version. A damaged version must not end the stream."""
    try:
        return int(read_meta(file).get("images", 0))
    except DataError:
        return 0


@dataclass(frozen=True)
class Version:
    """An earlier version that `undo` can restore."""

    number: int
    method: str
    images: int | None
    """that it was adapted to"""
    saved: datetime


def history(folder: Path) -> list[Version]:
    """The earlier versions of a run's adapter, the latest first; a DataError if one is damaged."""
    found = []
    for number in versions(folder):
        file = numbered(folder / PRODUCT, number)
        meta = read_meta(file)
        saved = datetime.fromtimestamp(file.stat().st_mtime).astimezone()
        found.append(Version(number, str(meta.get("method", "unknown")), meta.get("images"), saved))
    return found


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


def undo(folder: Path, number: int | None = None) -> Undone:
    """Restore the version before, or an earlier one. The caller keeps other processes out of the folder.

    Args:
        number: of the version to restore (see `history`), if not the latest. Those after it are dropped, but for the
            present one.

    Raises:
        UsageError: there is no such version.
        DataError: the earlier version is damaged. Nothing is changed then.
    """
    found = versions(folder)
    if not found:
        raise UsageError(
            f"There is nothing to undo in {folder}: it has no {numbered(Path(PRODUCT), 1)}. An adapter is kept when "
            "`dept adapt` or `dept stream` replaces it. To do without any adapter, use the source model alone."
        )
    number = found[0] if number is None else number
    if number not in found:
        raise UsageError(f"{folder} has no version {number}. It has {some(found)}.")
    _, meta = read_tensors(numbered(folder / PRODUCT, number), "adapter")
    whole, rewound = numbered(folder / "result.json", number).is_file(), _rewound(folder, number)
    if (folder / PRODUCT).is_file():
        write_atomic(numbered(folder / PRODUCT, UNDONE), (folder / PRODUCT).read_bytes())
    _move(folder / REJECTED, numbered(folder / PRODUCT, UNDONE))  # of a run that was harmful
    for name in RECORDS if whole else ():
        _move(folder / name, numbered(folder / name, UNDONE))
    for name in (*RECORDS, PRODUCT):  # the adapter last: until then a second attempt finds everything it needs
        _move(numbered(folder / name, number), folder / name)
    if rewound is not None:
        _move(folder / RESUME, numbered(folder / RESUME, UNDONE))
        write_tensors(folder / RESUME, *rewound)
    (folder / "report.html").unlink(missing_ok=True)  # it is about what was undone
    older = [other for other in found if other > number]
    for other in found:
        for name in (PRODUCT, *RECORDS):
            file = numbered(folder / name, other)
            _move(file, numbered(folder / name, other - number) if other in older else None)
    return Undone(folder, meta, len(older), whole, rewound is not None)


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
