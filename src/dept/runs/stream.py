"""Online adaptation: images arrive once, are predicted at once, and teach the model on the way.

`Stream` is the only online driver: `dept.stream`, `dept stream` and the benchmarks feed the same object. A random view
is keyed by (seed, update, image, view), where the image is its position in a listed folder, or else its place in the
order of arrival. So a stream over a folder gives the benchmark's predictions bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from dept import methods
from dept.data.decoding import decode, upright
from dept.data.loader import Batch, Key, Runtime, Views, batches, normalised, resolve_device, stacked, views_of
from dept.data.places import Place, Url, as_place
from dept.data.streams import Scenario
from dept.health.guard import Notice
from dept.methods.base import BaseConfig, Method, OnlineConfig, Progress, part, prefixed
from dept.models.files import load_model
from dept.models.model import Model
from dept.models.stats import load_stats
from dept.runs.guarded import Guarded
from dept.runs.job import RunOptions, make_config, promptable
from dept.runs.loops import Event

Picture = Image.Image | np.ndarray[Any, Any] | str | Place
OnNotice = Callable[[Notice], None]


def unheard(notice: Notice) -> None:
    """Default listener of a guard."""


@dataclass(frozen=True)
class Reply:
    """Predictions of one group of images: logits (B, C), probabilities on demand, and the update it caused, if any."""

    logits: Tensor
    event: Event | None

    @property
    def probabilities(self) -> Tensor:
        """Softmax of the logits (B, C)."""
        return self.logits.softmax(dim=-1)


class Prepared(NamedTuple):
    """An image that has arrived: its place in the set or stream, and its views as uint8 arrays."""

    place: int
    views: list[NDArray[np.uint8]]


class Stream:
    """A method fed with images as they come, in groups of any size.

    A group as large as the method's batch, or larger, is learned from at once. Smaller ones are predicted immediately
    and wait; when a batch is full, one update is made from it. So a prediction never waits for other images.

    Args:
        guard: whether to watch what is learned, and to go back where it does harm (docs/guard.md). It needs updates of
            several images, so small batches wait for each other.
        on_alarm: told when the guard acts.
    """

    def __init__(
        self,
        method: Method,
        views: Views,
        runtime: Runtime,
        notes: Sequence[str] = (),
        *,
        guard: bool = False,
        on_alarm: OnNotice = unheard,
    ) -> None:
        self.method, self.views, self.runtime, self.notes = method, views, runtime, list(notes)
        # A method that tunes nothing can do no harm.
        self.guard = Guarded(method) if guard and method.groups else None
        self.on_alarm = on_alarm
        self.learner = self.guard or method
        self.batch = self.guard.window if self.guard else method.config.batch
        self.position = self.steps = 0
        self._waiting: list[tuple[Tensor, ...]] = []
        self._places: list[int] = []

    @property
    def letters(self) -> str:
        """Views made of every image: the test view it is predicted on, and those it is learned from."""
        return "t" + ("" if self.method.views == "t" else self.method.views)

    def prepare(self, picture: Picture, index: int | None = None) -> Prepared:
        """Decode an image and make its views, so that only these are kept until its group is complete.

        Args:
            index: the image's position in its set; its place in the stream by default.
        """
        pre = self.views.preprocess
        if isinstance(picture, (str, Path, Url)):
            image = decode(as_place(picture), pre.channels)
        else:
            image = upright(picture if isinstance(picture, Image.Image) else Image.fromarray(picture), pre.channels)
        place = self.position if index is None else index
        made = views_of(image, self.letters, self.views, (self.steps, place))
        self.position += 1
        return Prepared(place, made)

    def feed(self, images: Sequence[Picture | Prepared], *, last: bool = False) -> Reply:
        """Predict a group of images, and learn from it now or when enough have come. `last`: see `take`."""
        rows = [image if isinstance(image, Prepared) else self.prepare(image) for image in images]
        pixels = stacked([row.views for row in rows])
        made = tuple(normalised(view.to(self.runtime.device), self.views.preprocess) for view in pixels)
        return self.take(made, [row.place for row in rows], last=last)

    def take(self, views: tuple[Tensor, ...], places: list[int], *, last: bool = False) -> Reply:
        """As `feed`, for views that are made already, one tensor per letter. `last`: nothing comes after this group."""
        if not self._waiting and (last or len(places) >= self.batch):
            self._tick()
            logits, terms = self.learner.observe(views[0], Batch(views[1:] or views, torch.tensor(places)))
            return Reply(logits.detach(), self._event(terms))
        logits = self.learner.predict(views[0])
        self._waiting += list(zip(*(views[1:] or views), strict=True))
        self._places += places
        return Reply(logits, self._learn() if last or len(self._waiting) >= self.batch else None)

    def finish(self) -> Event | None:
        """Learn from what is still waiting: a stream may end in the middle of a batch."""
        return self._learn() if self._waiting else None

    def _learn(self) -> Event | None:
        self._tick()
        views = tuple(torch.stack(view) for view in zip(*self._waiting, strict=True))
        terms = self.learner.learn(Batch(views, torch.tensor(self._places)))
        self._waiting, self._places = [], []
        return self._event(terms)

    def _tick(self) -> None:
        self.learner.at(Progress(self.steps, 0, 0))
        self.steps += 1

    def _event(self, terms: dict[str, float] | None) -> Event | None:
        """The update that was made, if any; what the guard did on the way is told first."""
        for notice in self.guard.drain() if self.guard else ():
            self.on_alarm(notice)
        return None if terms is None else Event(self.method.progress, terms, self.method.lr, epoch_end=False)

    @property
    def changes(self) -> int:
        """Times that the adapter has changed."""
        return self.guard.changes if self.guard else self.steps

    def state_dict(self) -> dict[str, Tensor]:
        """Everything needed to continue bit-exactly, the images that wait for an update included."""
        state = prefixed("method", self.method.state_dict())
        if self.guard:
            state |= prefixed("guard", self.guard.state_dict())
        state["counters"] = torch.tensor([self.position, self.steps])
        state["places"] = torch.tensor(self._places, dtype=torch.long)
        for number, view in enumerate(zip(*self._waiting, strict=True)):
            state[f"waiting.{number}"] = torch.stack(view)
        return state

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Inverse of `state_dict`."""
        self.method.load_state_dict(part(state, "method"))
        guarded = part(state, "guard")
        if self.guard and guarded:  # a stream of an earlier version has none
            self.guard.load_state_dict(guarded)
        self.position, self.steps = (int(value) for value in state["counters"])
        self._places = state["places"].tolist()
        waiting = [view.to(self.runtime.device) for _, view in sorted(part(state, "waiting").items())]
        self._waiting = list(zip(*waiting, strict=True)) if waiting else []

    def rewind(self, state: dict[str, Tensor]) -> None:
        """Continue with an earlier snapshot of the method. Counters go on: what was predicted stays predicted."""
        self.method.restore(part(state, "method"))
        self.position, self.steps = (int(value) for value in state["counters"])


def constant(config: BaseConfig) -> OnlineConfig:
    """The settings with constant learning rates: a stream has no end that they could decay to."""
    decays: dict[str, Any] = {"schedule": "constant", "power_decay": False}
    assert isinstance(config, OnlineConfig)
    return replace(config, **{name: value for name, value in decays.items() if name in config.__dataclass_fields__})


def open_stream(
    model: str | Path | Model,
    *,
    method: str = "dept",
    config: BaseConfig | None = None,
    preset: str | None = None,
    seed: int = 0,
    device: str = "auto",
    stages: int = 4,
    prompts: int = 50,
    stats: str | Path | None = None,
    guard: bool = False,
    on_alarm: OnNotice = unheard,
    **settings: Any,
) -> Stream:
    """A stream over a model (file); the method's preset `online` is used where it has one.

    Learning rates are constant. `guard` and `on_alarm`: see `Stream`.
    """
    RunOptions(seed)  # checks it
    kind = methods.get(method, "online")
    if config is None and preset is None and "online" in kind.presets:
        preset = "online"
    made = constant(make_config(kind, config, preset, settings))
    runtime = Runtime(resolve_device(device))
    source = (load_model(model) if not isinstance(model, Model) else model).to(runtime.device).eval()
    source, notes = promptable(source, kind, stages=stages, prompts=prompts, seed=seed)
    views = Views(source.card.preprocess, source.card.augment, seed)
    tensors = load_stats(stats, source) if stats else None
    learner = kind(source, made, seed=seed, stats=tensors)
    return Stream(learner, views, runtime, notes, guard=guard, on_alarm=on_alarm)


def stream(
    model: str | Path | Model,
    batches: Iterable[Sequence[Picture]],
    *,
    method: str = "dept",
    guard: bool = True,
    on_alarm: OnNotice = unheard,
    **settings: Any,
) -> Iterator[tuple[Tensor, Event | None]]:
    """Yield (logits (B, C), event) for every group of images, adapting on the way.

    Args:
        batches: groups of paths, PIL images or uint8 arrays, of any size down to one.
        guard: pause where images do not teach, go back where learning did harm (docs/guard.md).
        on_alarm: told when the guard acts, with the reason.
        settings: as in `open_stream` (seed, device, preset, or fields of the method's Config).
    """
    opened = open_stream(model, method=method, guard=guard, on_alarm=on_alarm, **settings)
    for group in batches:
        reply = opened.feed(group)
        yield reply.logits, reply.event
    opened.finish()


def run_scenario(
    method: Method, scenario: Scenario, views: Views, runtime: Runtime
) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Play a scenario: yield (segment, positions (B,), logits (B, C)) for every batch, resetting as it says.

    The images of a scenario are known, so workers may make their views ahead.
    """
    size = method.config.batch
    for number, segment in enumerate(scenario.segments):
        if number and scenario.reset == "domain":
            method.reset()
        driver = Stream(method, views, runtime)
        groups = [segment.order[at : at + size] for at in range(0, len(segment.order), size)]
        keys: list[list[Key]] = [[(update, index) for index in group] for update, group in enumerate(groups)]
        loaded = batches(
            segment.images.unlabelled(), driver.letters, views, keys, device=runtime.device, workers=runtime.workers
        )
        for update, (index, made) in enumerate(loaded, 1):
            yield segment.name, index, driver.take(made, index.tolist(), last=update == len(groups)).logits
            if scenario.reset == "batch":
                method.reset()
