"""A run folder: config, append-only events, resume state, result. And the guard around the loop that fills it."""

from __future__ import annotations

import json
import math
import os
import platform
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from torch import Tensor

from dept.core.collective import by_first, from_first, only_first, rank
from dept.errors import DataError, DeptError, Interrupted, UsageError
from dept.io import check_folder, read_json, read_tensors, write_atomic, write_json, write_tensors
from dept.methods.base import Method, part, prefixed
from dept.runs.file_index import read_index, write_index
from dept.runs.loops import Event
from dept.runs.record import Result
from dept.runs.seal import sealed, unsealed
from dept.runs.versions import keep

Listener = Callable[[dict[str, Any]], None]


def silent(event: dict[str, Any]) -> None:
    """Default listener: ignores events."""


PLAN = "plan.json"
"""what a run of several candidates has decided so far; it is there until the run has ended"""
START = "start.safetensors"
"""predictions before the first step, until the run has ended: a resumed one does not make them again"""
TRACES = ("config.json", "events.jsonl", "result.json", "verdict.json", "resume.safetensors", START, PLAN)
PAGE = "report.html"
PREDICTIONS = "predictions.jsonl"
"""predictions of a stream, one line per image"""
MOST_START = 2**28
"""bytes of such predictions that are kept, a million for 67 classes"""
MOST_SKIPPED = 10
"""steps in a row without finite gradients, after which a run gives up"""
MAY_CHANGE = ("workers", "order", "watch", "poll", "group", "save_every", "bad_images")
"""options that a resumed run need not repeat; what bad images change is in the protocol, the list of files"""


class RunFolder:
    """Files of one run. Refuses a folder that already holds a run unless told to resume or overwrite it.

    Args:
        product: the file that the run is made for.
        stream: whether the run is a stream, which is resumed from its predictions and never overwritten.
    """

    def __init__(
        self,
        path: str | Path,
        product: str,
        *,
        resume: bool,
        overwrite: bool = False,
        stream: bool = False,
        listener: Listener = silent,
    ) -> None:
        self.path, self.product = Path(path), Path(path) / product
        self.listener = listener
        self.index = read_index(self.path)
        self.resume, self._overwrite, self._stream = resume, overwrite, stream
        self._check_usable()

    @by_first
    def _check_usable(self) -> None:
        self._check_free()
        check_folder(self.path)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes out of the folder, but for those of the same run."""
        with ExitStack() as until_the_end:
            from_first(lambda: self._lock(until_the_end))
            yield

    def _lock(self, until_the_end: ExitStack) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        until_the_end.enter_context(alone_in(self.path))
        self._check_free()  # again: somebody may have been here since

    def _check_free(self) -> None:
        """Refuse a folder that holds another run, or nothing to resume."""
        held = [name for name in (self.product.name, *TRACES, PAGE) if (self.path / name).exists()]
        if self._stream:
            self._check_stream(held, self.resume)
        else:
            self._check_run(held, self.resume, self._overwrite)

    def _check_run(self, held: list[str], resume: bool, overwrite: bool) -> None:
        interrupted = self.resume_file.exists()
        if self.predictions.exists():
            raise UsageError(f"{self.path} already holds a stream ({PREDICTIONS}). Choose another `out`.")
        if resume and not interrupted:
            raise UsageError(f"There is nothing to resume in {self.path}: it has no {self.resume_file.name}.")
        if held and not (resume or overwrite):
            way = "Use `resume` to continue or `overwrite` to replace it" if interrupted else "Use `overwrite`"
            raise UsageError(f"{self.path} already holds a run ({', '.join(held)}). {way}, or choose another `out`.")

    def _check_stream(self, held: list[str], resume: bool) -> None:
        predicted = self.predictions.exists() and self.predictions.stat().st_size > 0
        if held and not self.predictions.exists():
            raise UsageError(
                f"{self.path} already holds a run that is not a stream ({', '.join(held)}). Choose another `out`."
            )
        if predicted and not resume:
            raise UsageError(f"{self.path} already holds a stream. Use `resume` to continue, or choose another `out`.")
        if resume and not predicted:
            raise UsageError(f"There is nothing to resume in {self.path}: it has no predictions.")

    @property
    def resume_file(self) -> Path:
        """State from which an interrupted run continues bit-exactly."""
        return self.path / "resume.safetensors"

    @property
    def predictions(self) -> Path:
        """Predictions of a stream."""
        return self.path / PREDICTIONS

    @by_first
    def configure(self, config: dict[str, Any]) -> dict[str, Any]:
        """Write config.json; returns the config that the run began with.

        When resuming, one that differs from the stored one in what decides the result is refused.

        By now the run is known to be possible, so what `overwrite` replaces is removed here and not before. The old
        product stays until the new one takes its place; without result.json it does not count. An adapter is kept,
        with the records of its run (see `versions`).
        """
        file = self.path / "config.json"
        plain = json.loads(json.dumps(config, default=str))
        if self.resume and file.exists():
            stored = self._stored(file)
            self._refuse_changes(_deciding(stored), _deciding(plain))
            write_index(self.path, self.index)
            return stored
        if not self.resume:
            keep(self.path, records=True)
            for name in (*TRACES, PAGE):
                (self.path / name).unlink(missing_ok=True)
        write_json(file, sealed(plain))
        write_index(self.path, self.index)
        return config

    @staticmethod
    def _stored(file: Path) -> dict[str, Any]:
        try:
            return unsealed(read_json(file))
        except ValueError as error:
            raise DataError(f"{file} is damaged: {error}. Restore the file, or begin a new run.") from error

    def _refuse_changes(self, before: dict[str, Any], now: dict[str, Any]) -> None:
        """A run continues with the settings it was started with."""
        changed = sorted(name for name in now.keys() | before.keys() if now.get(name) != before.get(name))
        if changed:
            raise UsageError(
                f"{self.path} was started with other settings ({', '.join(changed)} differ). Resume with the same "
                "command, or choose another `out`."
            )

    @only_first
    def log(self, kind: str, **values: Any) -> None:
        """Append one event to events.jsonl and tell the listener."""
        event = {"event": kind, "time": round(time.time(), 3), **values}
        with (self.path / "events.jsonl").open("a") as file:
            file.write(json.dumps(sealed(event)) + "\n")
        self.listener(event)

    def log_step(self, event: Event) -> None:
        """A step, with the values of its loss terms, as far as they are finite."""
        progress = event.progress
        terms = {name: round(value, 6) for name, value in event.terms.items() if math.isfinite(value)}
        self.log("step", step=progress.step, total=progress.total, epoch=progress.epoch, lr=event.lr, terms=terms)

    @only_first
    def save_state(self, method: Method, next_step: int, **extra: Tensor) -> None:
        """Write the resume file: the whole state of the method, and the step to continue with."""
        meta = {"kind": "resume", "method": method.name, "next_step": next_step}
        write_tensors(self.resume_file, prefixed("method", method.state_dict()) | extra, meta)

    def load_state(self, method: Method) -> tuple[int, dict[str, Tensor]]:
        """Restore the method; returns the step to continue with and the extra tensors."""
        tensors, meta = from_first(lambda: read_tensors(self.resume_file, "resume"))
        try:
            method.load_state_dict(part(tensors, "method"))
        except (KeyError, RuntimeError, ValueError) as error:
            raise DataError(f"{self.resume_file} does not fit this model and method: {error}") from error
        self.forget_from(meta["next_step"])
        return meta["next_step"], {n: t for n, t in tensors.items() if not n.startswith("method.")}

    @only_first
    def save_start(self, probabilities: Tensor, images: str) -> None:
        """Keep the predictions (n, C) from before the first step, on a list of images that has a hash."""
        if probabilities.nbytes <= MOST_START:
            write_tensors(self.path / START, {"student": probabilities}, {"kind": "start", "list_sha256": images})

    @by_first
    def load_start(self, images: str) -> Tensor | None:
        """Inverse of `save_start`; None if there are none for this list."""
        try:
            tensors, meta = read_tensors(self.path / START, "start")
        except DataError:
            return None
        return tensors.get("student") if meta.get("list_sha256") == images else None

    @only_first
    def forget_from(self, step: int) -> None:
        """Drop the events of steps after the last save: they are made again."""
        file = self.path / "events.jsonl"
        lines = file.read_text().splitlines(keepends=True) if file.exists() else []
        kept = [line for line in lines if _happened(line, step)]
        if len(kept) < len(lines):
            write_atomic(file, "".join(kept).encode())

    @by_first
    def finish(self, result: Result) -> None:
        """Write result.json. The resume state of a run that has ended is dropped; a stream may continue."""
        write_json(self.path / "result.json", sealed(result))
        if not self.predictions.exists():
            self.resume_file.unlink(missing_ok=True)
            (self.path / START).unlink(missing_ok=True)
        self.log("end")


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Keep other processes out of a run folder. The system ends the lock of a process that was killed."""
    lock, holder = FileLock(folder / ".lock"), folder / ".holder"
    try:
        lock.acquire(timeout=0)
    except Timeout as error:
        who = holder.read_text(errors="replace")[:200] if holder.exists() else "another process"
        raise UsageError(f"{folder} is in use by {who}. Wait until it has ended, or choose another folder.") from error
    try:
        holder.write_text(f"process {os.getpid()} on {platform.node()}")
        yield
    finally:
        holder.unlink(missing_ok=True)
        lock.release()


class PlanFolder(RunFolder):
    """The folder of a run that tries candidates, each in its own run folder below, and keeps one."""

    @property
    def resume_file(self) -> Path:
        """The plan, from which an interrupted run continues; its candidates have their own state."""
        return self.path / PLAN

    @by_first
    def begin(self, config: dict[str, Any]) -> None:
        """Write the plan, or check that an interrupted run is resumed with the settings it was started with."""
        plain = json.loads(json.dumps(config, default=str))
        if self.resume:
            self._refuse_changes(_deciding(self._stored(self.resume_file)), _deciding(plain))
            return
        keep(self.path, records=True)
        for name in (*TRACES, PAGE):
            (self.path / name).unlink(missing_ok=True)
        for name in (*TRACES, self.product.name):
            for old in self.path.glob(f"candidates/*/{name}"):
                old.unlink()
        write_json(self.resume_file, sealed(plain))

    @only_first
    def forget_unused(self) -> None:
        """Remove the plan of a run that could not begin, so that the folder can be used."""
        if not any(self.path.glob("candidates/*/config.json")):
            self.resume_file.unlink(missing_ok=True)

    @by_first
    def settled(self, steps: int) -> int:
        """The number of steps: as found now, unless an earlier part of the run has settled it."""
        plan = self._stored(self.resume_file)
        if "steps" not in plan:
            write_json(self.resume_file, sealed({**plan, "steps": steps}))
        return int(plan.get("steps", steps))

    @by_first
    def end(self, result: Result) -> None:
        """Write result.json; the plan has served."""
        write_json(self.path / "result.json", sealed(result))
        self.resume_file.unlink(missing_ok=True)


def _deciding(config: dict[str, Any]) -> dict[str, Any]:
    """What a result depends on, one entry per setting."""
    protocol = dict(config.get("protocol", {}))
    flat = protocol | protocol.pop("config", {}) | config.get("options", {})
    return {name: value for name, value in flat.items() if name not in MAY_CHANGE and name != "config"}


def _happened(line: str, next_step: int) -> bool:
    """Whether an event came before the step that a run continues with; a line cut short by a crash did not."""
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
    """The events of a run, logged, saved about once a minute, and stopped by Ctrl-C or SIGTERM between two steps.

    The run is also saved when an image can no longer be read.

    Args:
        save: writes the state of the run; is given the step to continue with.
    """
    checkpoints = Checkpoints()
    with stop_signal() as stopped:
        for event in _rescued(events, method, folder, save, stopped):
            check_steps(method)
            folder.log_step(event)
            yield event
            # Asked once: a Ctrl-C between two looks must not skip the save. Of several processes the first one decides.
            stopping = rank() == 0 and stopped()
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
            raise DataError(f"{error} The {done} steps so far are saved. Use `resume` to continue.") from error
        raise


def check_steps(method: Method) -> None:
    """Give up on a run whose steps are all skipped because their gradients are not finite."""
    if method.skipped_in_a_row >= MOST_SKIPPED:
        raise DeptError(
            f"The gradients were not finite in {MOST_SKIPPED} steps in a row, up to step {method.progress.step}. "
            "Lower `lr`, and check the images and the model."
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
