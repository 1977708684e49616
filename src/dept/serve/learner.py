"""Online adaptation of one domain, in a process of its own: images in, adapters out, each judged before it is offered.

The process begins with the adapter that is served, and learns under the guard of streams (docs/guard.md). From time to
time its adapter is a candidate: on the latest images, it is compared with the source model and with the adapter that
is served. One that seems to do harm is thrown away, and learning begins again with what is served.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from copy import deepcopy
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from dept.core.adapter import Adapter
from dept.data.loader import resolve_device
from dept.errors import DeptError
from dept.health.guard import Notice
from dept.health.prior import believed
from dept.models.files import adapter_meta, apply_adapter, load_adapter, read_model, rest_hash, save_adapter
from dept.models.stats import source_shares
from dept.runs.stream import Stream, open_stream
from dept.serve.engine import Engine, Pixels
from dept.serve.gains import Record, from_pairs
from dept.serve.pool import Entry

WINDOW = 128
"""latest images that a candidate is judged on"""
ENOUGH = 64
"""of them before anything is judged"""


@dataclass(frozen=True)
class Task:
    """What a learner is started with."""

    model: Path
    adapter: Path | None
    """of the version that is served; None for the source model"""
    method: str
    device: str
    folder: Path
    """where candidates are written"""
    every: int
    """updates between two candidates"""


class Told(NamedTuple):
    """What a learner reports: what happened, and the counts so far."""

    kind: Literal["learning", "candidate", "refused", "notice", "failed"]
    images: int = 0
    updates: int = 0
    file: Path | None = None
    verdict: Record | None = None
    detail: str = ""


class Learner:
    """The state of the process: a stream over the adapted model, and the models that it is compared with.

    Args:
        tell: hears what the guard does, and which candidates there are.
    """

    def __init__(self, task: Task, tell: Callable[[Told], None]) -> None:
        self.task, self.tell = task, tell
        source, self.sha = read_model(task.model)
        self.source = source.to(resolve_device(task.device)).eval()
        self.engine = Engine(self.source)
        self.prior = believed("unknown", source.classes, source_shares(source, {}))
        start = load_adapter(task.adapter, source, backbone_sha256=self.sha) if task.adapter else Adapter({})
        self.served = start.tensors
        """the tensors of the version that is served"""
        self.window: deque[Pixels] = deque(maxlen=WINDOW)
        self.images = self.candidates = self.earlier = 0
        self.stream = self._begin()

    def _begin(self) -> Stream:
        """A stream that starts with what is served."""
        self.judged = 0
        model = deepcopy(self.source)
        model = apply_adapter(model, Adapter(self.served)) if self.served else model
        return open_stream(model, method=self.task.method, device=self.task.device, guard=True, on_alarm=self._noticed)

    def _noticed(self, notice: Notice) -> None:
        self.tell(Told("notice", self.images, self.updates, detail=str(notice)))

    @property
    def updates(self) -> int:
        """Times that the adapter has changed."""
        return self.earlier + self.stream.changes

    def learn(self, picture: Pixels) -> None:
        """Take in an image; from time to time judge what was learned."""
        prepared = self.stream.prepare(picture)
        self.stream.feed([prepared])
        self.window.append(prepared.views[0])
        self.images += 1
        if self.stream.changes - self.judged >= self.task.every and len(self.window) >= ENOUGH:
            self.judged = self.stream.changes
            self.tell(self._judge())

    def _judge(self) -> Told:
        tensors = self.served | self.stream.method.adapter().tensors
        source, served, own = (self._classes(held) for held in ({}, self.served, tensors))
        against, overall = (from_pairs(Counter(zip(old, own, strict=True)), self.prior) for old in (served, source))
        counts = self.images, self.updates
        if "harmful" in (against["verdict"], overall["verdict"]):
            self.earlier += self.stream.changes
            self.stream = self._begin()
            than = "the adapter that is served" if against["verdict"] == "harmful" else "the source model"
            return Told("refused", *counts, verdict=overall, detail=f"It seemed to be worse than {than}.")
        self.candidates += 1
        file = self.task.folder / f"candidate-{self.candidates % 4}.safetensors"  # the server copies it at once
        save_adapter(Adapter(tensors, self._meta(tensors)), file)
        self._offered = tensors
        return Told("candidate", *counts, file, overall)

    def published(self) -> None:
        """The last candidate is served now."""
        self.served = self._offered

    def _meta(self, tensors: dict[str, Tensor]) -> dict[str, Any]:
        method = self.stream.method
        return adapter_meta(
            self.source,
            backbone_sha256=self.sha,
            rest_sha256=rest_hash(self.source, tensors),
            method=method.name,
            config=asdict(method.config),
            seed=self.stream.views.seed,
            images=self.images,
        )

    def _classes(self, tensors: dict[str, Tensor]) -> list[int]:
        """Predicted classes of the latest images with an adapter."""
        images = self.engine.normalised(list(self.window))
        logits = self.engine.logits(images, [Entry("", 0, (), tensors)] * len(images))
        return [int(label) for label in logits.argmax(dim=1)]


def run(task: Task, inbox: Connection, outbox: Connection) -> None:
    """The process: takes in images (arrays) and the word "published" until it is ended, or the server is gone."""
    torch.set_num_threads(1)  # predictions have the other cores
    try:
        learner = Learner(task, outbox.send)
        outbox.send(Told("learning"))
        while True:
            given = inbox.recv()
            if isinstance(given, str):
                learner.published()
                continue
            learner.learn(given)
            if learner.images % 16 == 0:
                outbox.send(Told("learning", learner.images, learner.updates))
    except (EOFError, BrokenPipeError):
        return
    except (DeptError, ValueError) as error:
        outbox.send(Told("failed", detail=str(error)))
