"""What the attacks need: a tiny model with its files, images, and processes that may hang or die without harm."""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import resource
import select
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from dept.errors import DeptError

CLASSES = ("blue", "green", "red")
TINY = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 2}
SMALL = ["--batch", "4", "--device", "cpu"]
MEMORY = 1_500_000_000
"""bytes that a case may use beyond what the process has already"""


@dataclass
class Row:
    """One line of the table."""

    name: str
    cases: int = 0
    failures: list[str] = field(default_factory=list)
    notes: dict[str, int] = field(default_factory=dict)

    def add(self, problem: str | None, note: str = "") -> None:
        """Count a case; a problem is what went wrong, a note is how it went well."""
        self.cases += 1
        if problem:
            self.failures.append(problem)
        if note:
            self.notes[note] = self.notes.get(note, 0) + 1


@dataclass(frozen=True)
class Stage:
    """The files that are attacked."""

    root: Path
    images: Path
    labelled: Path
    model: Path
    adapter: Path
    stats: Path
    run: Path


def build(root: Path) -> Stage:
    """Images, a model, an adapter with its run folder, and source statistics, made by the ordinary commands."""
    from dept.cli.main import main
    from dept.models.files import save_model
    from dept.models.model import create_model

    rng = np.random.default_rng(0)
    for number, name in enumerate(CLASSES):
        for index in range(4):
            pixels = rng.integers(0, 160, (40, 40, 3), dtype=np.uint8)
            pixels[10:30, 10:30, 2 - number] = 240
            for folder in (root / "labelled" / name, root / "images"):
                folder.mkdir(parents=True, exist_ok=True)
                Image.fromarray(pixels).save(folder / f"{name}{index}.png")
    model = create_model("vit_tiny_patch16_224", CLASSES, stages=2, prompts=3, seed=0, **TINY).eval()
    made = Stage(
        root,
        root / "images",
        root / "labelled",
        save_model(model, root / "model.safetensors"),
        root / "run" / "adapter.safetensors",
        root / "stats.safetensors",
        root / "run",
    )
    # In this process, so that every forked one has the slow imports already.
    few = ["--max-iters", "1"]
    for words in (
        ["adapt", made.model, made.images, "--out", made.run, "--method", "tent", "--epochs", "1", *SMALL],
        ["stats", made.model, made.labelled, "--out", made.stats, *SMALL],
        ["uda", made.model, made.labelled, made.images, "--out", root / "uda", "--method", "erm", *few, *SMALL],
        ["stream", made.model, made.images, "--out", root / "stream", "--method", "tent", *SMALL],
        ["report", made.run, "--out", root / "report.html", "--device", "cpu", "--projection", "pca"],
        ["corrupt", made.images, root / "corrupted", "--type", "fog", "--size", "32"],
    ):
        said = io.StringIO()
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            code = main([str(word) for word in words])
        if code:
            raise SystemExit(f"The stage could not be built: {words[0]} said {said.getvalue()}")
    return made


@dataclass(frozen=True)
class Outcome:
    """How a function ended in a process of its own: with a value, a DeptError, another error, or not at all."""

    kind: str
    value: Any = None

    @property
    def clean(self) -> bool:
        """Whether it ended as it may."""
        return self.kind in ("value", "refused")


def forked(function: Callable[[], Any], seconds: float = 30.0, memory: int | None = None) -> Outcome:
    """Run a function in a forked process, which is killed after some seconds. Its output is thrown away."""
    child, pipe = start(function, memory)
    ready = select.select([pipe], [], [], seconds)[0]
    data = b""
    while ready and (part := os.read(pipe, 1 << 20)):
        data += part
    if not ready:
        os.kill(child, signal.SIGKILL)
    os.close(pipe)
    _, status = os.waitpid(child, 0)
    if not ready:
        return Outcome("timeout", f"more than {seconds:g} s")
    return pickle.loads(data) if data else Outcome("died", os.waitstatus_to_exitcode(status))


def start(function: Callable[[], Any], memory: int | None = None) -> tuple[int, int]:
    """Start a function in a forked process; returns its id and the pipe that its pickled outcome comes from."""
    receive, send = os.pipe()
    child = os.fork()
    if child:
        os.close(send)
        return child, receive
    os.close(receive)
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(null, stream)
    # Also where Python's own streams have been replaced, as test runners do.
    sys.stdin, sys.stdout, sys.stderr = os.fdopen(0), os.fdopen(1, "w"), os.fdopen(2, "w")
    if memory is not None:
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + memory, used + memory))
    try:
        os.write(send, pickle.dumps(ended(function)))
    finally:
        os._exit(0)  # whatever happens: the parent's clean-up is not this process's to do


def ended(function: Callable[[], Any]) -> Outcome:
    """How a function ends in this process."""
    try:
        return Outcome("value", function())
    except DeptError as error:
        return Outcome("refused", f"{type(error).__name__}: {error}"[:300])
    except BaseException as error:
        return Outcome("error", f"{type(error).__name__}: {error}"[:300])


def tensors_of(file: Path) -> dict[str, torch.Tensor]:
    """All tensors of a safetensors file."""
    from safetensors.torch import load_file

    return load_file(file)


def same(one: dict[str, torch.Tensor], two: dict[str, torch.Tensor]) -> bool:
    """Whether names and bits are equal."""
    return one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)


def wait(child: int, seconds: float) -> bool:
    """Whether a process ends within some seconds."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if os.waitpid(child, os.WNOHANG)[0]:
            return True
        time.sleep(0.005)
    return False
