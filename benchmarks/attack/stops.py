"""Kills at random moments, and crash points one by one: the resumed run ends in the same bits, nothing is left over."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import random
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from attack.stage import SMALL, Row, Stage, forked, same, start, tensors_of, wait

END = 120.0


def kills(stage: Stage, count: int, seed: int) -> Iterator[Row]:
    """One row: processes of adapt and stream killed by SIGKILL or SIGTERM, then resumed to the end."""
    row, rng = Row("kills: resumed to the same bits"), random.Random(seed)
    whole = {kind: _whole(stage, kind) for kind in ("adapt", "stream")}
    while row.cases < count:
        kind = rng.choice(sorted(whole))
        reference, seconds = whole[kind]
        out = _fresh(stage, "killed")
        problem, number = None, row.cases
        for _ in range(rng.choice((1, 1, 2, 3))):
            child, pipe = start(partial(_continued, stage, kind, out))
            os.close(pipe)
            time.sleep(rng.uniform(0, seconds))
            stop = rng.choice((signal.SIGKILL, signal.SIGTERM))
            os.kill(child, stop)
            if not wait(child, END):
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
                problem = f"{kind}: {stop.name} was not heard"
        ended = forked(partial(_continued, stage, kind, out), END)
        problem = problem or _difference(kind, out, reference, ended)
        row.add(problem and f"case {number}: {problem}", kind)
    yield row


def crash_points(stage: Stage, most: int, seed: int) -> Iterator[Row]:
    """One row: die before, die after, or fail at the n-th durable operation, for every n; then resume."""
    row = Row("crash points: resumed to the same bits")
    for kind in ("adapt", "stream"):
        reference, _ = _whole(stage, kind)
        count = most
        for way in ("before", "after", "full disk"):
            for place in range(1, count + 1):
                out = _fresh(stage, "crashed")
                broken = forked(partial(_crashing, stage, kind, out, way, place), END)
                ended = forked(partial(_continued, stage, kind, out), END)
                problem = _difference(kind, out, reference, ended)
                if way == "full disk" and (broken.kind != "value" or broken.value[0] not in (0, 1, 3)):
                    problem = f"a full disk ended with {broken}"
                row.add(problem and f"{kind}, {way} {place}: {problem}", kind)
                if broken.kind == "value" and way == "before":
                    count = place  # the run has no more durable operations than that
                    break
    yield row


def _command(stage: Stage, kind: str, out: Path) -> list[str]:
    command = [kind, str(stage.model), str(stage.images), "--out", str(out), "--method", "tent", *SMALL]
    return [*command, "--epochs", "3"] if kind == "adapt" else [*command, "--save-every", "1"]


def _whole(stage: Stage, kind: str) -> tuple[Path, float]:
    """A run that nobody disturbs, and its seconds."""
    out = _fresh(stage, f"whole-{kind}")
    began = time.monotonic()
    ended = forked(lambda: _continued(stage, kind, out), END)
    if ended.kind != "value" or ended.value[0] != 0:
        raise SystemExit(f"{kind} does not run at all: {ended}.")
    return out, time.monotonic() - began


def _fresh(stage: Stage, name: str) -> Path:
    shutil.rmtree(stage.root / name, ignore_errors=True)
    return stage.root / name


def _continued(stage: Stage, kind: str, out: Path) -> tuple[int, str]:
    """Resume, or begin again if nothing was saved; the exit code and what was said."""
    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        return _resumed(stage, kind, out), said.getvalue()[-300:]


def _resumed(stage: Stage, kind: str, out: Path) -> int:
    from dept.cli.main import main
    from dept.runs.folder import Checkpoints

    Checkpoints.__init__.__defaults__ = (0.0,)  # save after every step, not once a minute
    command = _command(stage, kind, out)
    # A run that has ended is left alone.
    if kind == "adapt" and (out / "result.json").exists() and not (out / "resume.safetensors").exists():
        return 0
    if out.exists():
        code = main([*command, "--resume"])
        if code != 2:
            return code
    return main([*command, "--overwrite"] if kind == "adapt" else command)


def _crashing(stage: Stage, kind: str, out: Path, way: str, place: int) -> tuple[int, str]:
    """The run, with the n-th durable operation broken."""
    done = 0

    def broken(name: str) -> None:
        real: Callable[..., Any] = getattr(os, name)

        def operation(*words: Any, **named: Any) -> Any:
            nonlocal done
            done += 1
            if done == place and way == "before":
                os._exit(137)
            if done == place and way == "full disk":
                raise OSError(errno.ENOSPC, "No space left on device")
            try:
                return real(*words, **named)
            finally:  # also after one that fails, as mkdir does where a folder exists
                if done == place:
                    os._exit(137)

        setattr(os, name, operation)

    for name in ("replace", "rename", "fsync", "unlink", "mkdir"):
        broken(name)
    return _continued(stage, kind, out)


def _difference(kind: str, out: Path, reference: Path, ended: Any) -> str | None:
    """What differs from the undisturbed run."""
    if ended.kind != "value" or ended.value[0] != 0:
        return f"{kind}: the resumed run ended with {ended}"
    if not same(*(tensors_of(folder / "adapter.safetensors") for folder in (out, reference))):
        return f"{kind}: another adapter"
    if kind == "stream" and (out / "predictions.jsonl").read_bytes() != (reference / "predictions.jsonl").read_bytes():
        return "stream: other predictions"
    # The lock and the name of its holder may stay: the next process recognises that nobody holds it.
    left = [file.name for file in out.iterdir() if file.name.startswith(".") and file.name not in (".lock", ".holder")]
    return f"{kind}: left over {left}" if left else None
