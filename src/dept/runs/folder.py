"""A run folder: config, append-only events, resume state, result; and the protocol that every number carries."""

from __future__ import annotations

import json
import math
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor

from dept.errors import DataError, DeptError, Interrupted, UsageError
from dept.io import FORMAT, make_folder, read_tensors, write_atomic, write_json, write_tensors
from dept.methods.base import Method
from dept.runs.loops import Event

Listener = Callable[[dict[str, Any]], None]


def silent(event: dict[str, Any]) -> None:
    """The listener of those who do not listen."""


TRACES = ("config.json", "events.jsonl", "result.json", "resume.safetensors")
PAGE = "report.html"


class RunFolder:
    """Files of one run. Refuses a folder that already holds a run unless told to resume or overwrite it.

    Args:
        product: the file that the run is made for.
    """

    def __init__(
        self, path: str | Path, product: str, *, resume: bool, overwrite: bool, listener: Listener = silent
    ) -> None:
        self.path, self.product = Path(path), Path(path) / product
        self.listener = listener
        self.resume = resume and self.resume_file.exists()
        held = [name for name in (product, *TRACES, PAGE) if (self.path / name).exists()]
        if (self.path / "predictions.jsonl").exists():
            raise UsageError(f"{self.path} already holds a stream (predictions.jsonl); choose another --out.")
        if resume and not self.resume_file.exists():
            raise UsageError(f"There is nothing to resume in {self.path}: it has no resume.safetensors.")
        if held and not (resume or overwrite):
            way = "Go on with it by --resume, replace" if self.resume_file.exists() else "Replace"
            raise UsageError(
                f"{self.path} already holds a run ({', '.join(held)}). {way} it by --overwrite, or choose another "
                "--out."
            )
        make_folder(self.path)

    @property
    def resume_file(self) -> Path:
        """State from which an interrupted run goes on with the same bits."""
        return self.path / "resume.safetensors"

    def configure(self, config: dict[str, Any]) -> None:
        """Write config.json; when resuming, refuse one that differs from the stored one (in more than the workers).

        The run is known to be possible by now: what --overwrite replaces is removed here, and not before. The old
        product stays until the new one takes its place; without result.json it counts for nothing here.
        """
        file = self.path / "config.json"
        plain = json.loads(json.dumps(config, default=str))
        if self.resume and file.exists():
            before, now = _deciding(json.loads(file.read_text())), _deciding(plain)
            refuse_changes(self.path, before, now, "start anew with --overwrite")
        if not self.resume:
            for name in (*TRACES, PAGE):
                (self.path / name).unlink(missing_ok=True)
        write_json(file, plain)

    def log(self, kind: str, **values: Any) -> None:
        """Append one event to events.jsonl and tell the listener."""
        event = {"event": kind, "time": round(time.time(), 3), **values}
        with (self.path / "events.jsonl").open("a") as file:
            file.write(json.dumps(event) + "\n")
        self.listener(event)

    def log_step(self, event: Event) -> None:
        """A step, with the values of its loss terms."""
        progress = event.progress
        terms = {name: round(value, 6) for name, value in event.terms.items()}
        self.log("step", step=progress.step, total=progress.total, epoch=progress.epoch, lr=event.lr, terms=terms)

    def save_state(self, method: Method, next_step: int, **extra: Tensor) -> None:
        """Write the resume file: the whole state of the method and the step to go on with."""
        tensors = {f"method.{n}": t for n, t in method.state_dict().items()} | extra
        meta = {"format": FORMAT, "kind": "resume", "method": method.name, "next_step": next_step}
        write_tensors(self.resume_file, tensors, meta)

    def load_state(self, method: Method) -> tuple[int, dict[str, Tensor]]:
        """Restore the method; returns the step to go on with and the extra tensors."""
        tensors, meta = read_tensors(self.resume_file, "resume")
        own = {n.removeprefix("method."): t for n, t in tensors.items() if n.startswith("method.")}
        try:
            method.load_state_dict(own)
        except (KeyError, RuntimeError, ValueError) as error:
            raise DataError(f"{self.resume_file} does not fit this model and method: {error}") from error
        self._forget_from(meta["next_step"])
        return meta["next_step"], {n: t for n, t in tensors.items() if not n.startswith("method.")}

    def _forget_from(self, step: int) -> None:
        """Drop events of steps that a crash came before the next save of: they are made again."""
        file = self.path / "events.jsonl"
        lines = file.read_text().splitlines(keepends=True) if file.exists() else []
        kept = [line for line in lines if _happened(line, step)]
        if len(kept) < len(lines):
            write_atomic(file, "".join(kept).encode())

    def finish(self, result: dict[str, Any]) -> None:
        """Write result.json and drop the resume state, which nobody needs any more."""
        write_json(self.path / "result.json", result)
        self.resume_file.unlink(missing_ok=True)


def refuse_changes(folder: Path, before: Mapping[str, Any], now: Mapping[str, Any], otherwise: str) -> None:
    """A run goes on with the settings it was started with; `otherwise` is what else the user can do."""
    changed = sorted(name for name in now.keys() | before.keys() if now.get(name) != before.get(name))
    if changed:
        raise UsageError(
            f"{folder} was started with other settings ({', '.join(changed)} differ); resume with the same command, or "
            f"{otherwise}."
        )


def _deciding(config: dict[str, Any]) -> dict[str, Any]:
    """What a result depends on: not the number of processes that make the views."""
    options = {name: value for name, value in config.get("options", {}).items() if name != "workers"}
    return {**config, "options": options}


def _happened(line: str, next_step: int) -> bool:
    """Whether an event came before the step that a run goes on with; a line that a crash cut short did not."""
    try:
        event = json.loads(line)
    except json.JSONDecodeError:
        return False
    # A step's number is its own, counted from 0; scores carry the number of steps made.
    return bool(event.get("step", -1) < next_step + (event["event"] != "step"))


class Checkpoints:
    """Decides when the state is saved: about once a minute, between two steps."""

    def __init__(self, seconds: float = 60.0) -> None:
        self.seconds, self.last = seconds, time.monotonic()

    def due(self, event: Event) -> bool:
        """Whether to save after this step."""
        now = time.monotonic()
        if event.last or now - self.last < self.seconds:
            return False
        self.last = now
        return True


def kept(events: Iterable[Event], method: Method, folder: RunFolder, save: Callable[[int], None]) -> Iterator[Event]:
    """The events of a run that is logged, saved about once a minute, and stopped by Ctrl-C or SIGTERM
    between two steps. It is saved, too, when an image cannot be read any more.

    Args:
        save: writes the state of the run; is given the step to go on with.
    """
    checkpoints = Checkpoints()
    with stop_signal() as stopped:
        for event in _rescued(events, method, folder, save, stopped):
            _check_finite(event)
            folder.log_step(event)
            yield event
            stopping = stopped()  # asked once: a Ctrl-C between two looks must not skip the save
            if checkpoints.due(event) or stopping:
                save(event.progress.step + 1)
            if stopping and not event.last:
                raise Interrupted(event.progress.step + 1, folder.path)


def _rescued(
    events: Iterable[Event],
    method: Method,
    folder: RunFolder,
    save: Callable[[int], None],
    stopped: Callable[[], bool],
) -> Iterator[Event]:
    """The events; when the images of the next step cannot be had, the steps before it are saved first."""
    done = 0
    try:
        for event in events:
            yield event
            done = event.progress.step + 1
    except Exception as error:
        # In the middle of a step, or of the pass after it, tensors have moved already: the last saved state is right.
        if not done or method.progress.step >= done:
            raise
        save(done)
        if stopped():  # the signal reached the workers too, and ended them
            raise Interrupted(done, folder.path) from error
        if isinstance(error, DataError):
            raise DataError(f"{error} The {done} steps so far are saved; go on with --resume.") from error
        raise


def _check_finite(event: Event) -> None:
    """A loss that is no number has ruined the tensors; the last saved state is older and stays."""
    bad = [name for name, value in event.terms.items() if not math.isfinite(value)]
    if bad:
        raise DeptError(
            f"The loss became {event.terms[bad[0]]} at step {event.progress.step} ({', '.join(bad)}). "
            "Lower --lr and start anew with --overwrite."
        )


@contextmanager
def stop_signal() -> Iterator[Callable[[], bool]]:
    """Turn the first Ctrl-C or SIGTERM (of `kill`, or a scheduler) into a flag, so that a run stops between two steps.

    The second one kills as usual.
    """
    asked = False

    def handle(number: int, frame: Any) -> None:
        nonlocal asked
        asked = True
        restore()

    def restore() -> None:
        for stop, handler in previous.items():
            signal.signal(stop, handler)

    if threading.current_thread() is not threading.main_thread():
        yield lambda: False  # signals reach the main thread only
        return
    previous = {stop: signal.signal(stop, handle) for stop in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: asked
    finally:
        restore()
