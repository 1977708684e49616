"""Events of a run as TensorBoard curves, for those who use it: the same events as in events.jsonl."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dept.errors import missing_extra
from dept.runs.folder import Listener


class TensorBoard:
    """A listener that writes events into RUN/tensorboard.

    Numbers become curves over the step (`terms/…`, `lr`, `score/top1/…`, `held_out/accuracy`), words become text.
    """

    def __init__(self, run: str | Path) -> None:
        self.folder = Path(run) / "tensorboard"
        self._kind = _summary_writer()
        self._writer: Any = None

    def __call__(self, event: dict[str, Any]) -> None:
        step = event.get("step")
        if event["event"] == "start":  # a new run in an old folder must not share its curves with the old one
            self.close()
            for old in self.folder.glob("events.out.tfevents.*"):
                old.unlink()
        if self._writer is None:  # opened by the first event: a run folder that is refused must stay as it is
            # A resumed run repeats steps that were made after the last save; its curves continue from here.
            self._writer = self._kind(str(self.folder), purge_step=step)
        writer = self._writer
        for tag, value in _flat(event).items():
            if isinstance(value, str):
                writer.add_text(tag, value, step, walltime=event["time"])
            elif step is not None:
                writer.add_scalar(tag, value, step, walltime=event["time"])

    def close(self) -> None:
        """Write what is still in memory."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None


@contextmanager
def recorded(listener: Listener, run: str | Path, *, wanted: bool) -> Iterator[Listener]:
    """The listener, joined by TensorBoard if that is wanted; what it wrote is kept when the run is interrupted."""
    if not wanted:
        yield listener
        return
    board = TensorBoard(run)

    def both(event: dict[str, Any]) -> None:
        listener(event)
        board(event)

    try:
        yield both
    finally:
        board.close()


def _flat(event: dict[str, Any]) -> dict[str, float | str]:
    """Numbers and words of an event by tag; a step's own entries go without the prefix `step/`."""
    prefix = "" if event["event"] == "step" else f"{event['event']}/"
    flat: dict[str, float | str] = {}
    for key, value in event.items():
        if key in ("event", "time", "step", "total"):
            continue
        inner = {f"{prefix}{key}/{name}": v for name, v in value.items()} if isinstance(value, dict) else None
        for tag, item in (inner or {f"{prefix}{key}": value}).items():
            if isinstance(item, (int, float, str)):
                flat[tag] = item
            elif isinstance(item, list) and item:
                flat[tag] = "\n\n".join(map(str, item))
    return flat


def _summary_writer() -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise missing_extra("tensorboard", "tensorboard") from error
    return SummaryWriter
