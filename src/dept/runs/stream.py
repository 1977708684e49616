"""Online adaptation: images arrive once, are predicted at once, and teach the model on the way."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from dept import methods
from dept.data.images import decode, upright
from dept.data.loader import Batch, Runtime, Views, normalised, resolve_device, stacked
from dept.data.streams import Scenario
from dept.data.views import make_view, view_rng
from dept.methods.base import BaseConfig, Method, OnlineConfig, Progress
from dept.models.files import load_model
from dept.models.model import Model
from dept.models.stats import load_stats
from dept.runs.job import make_config, promptable
from dept.runs.loops import Event, online
from dept.runs.record import check_seed

CONSTANT: dict[str, Any] = {"schedule": "constant", "power_decay": False}
"""What a stream does to the settings of a method: it has no end that a learning rate could decay to."""
Picture = Image.Image | np.ndarray[Any, Any] | str | Path


@dataclass(frozen=True)
class Reply:
    """Answer to one group of images: logits (B, C), probabilities on demand, and the step it caused, if any."""

    logits: Tensor
    event: Event | None

    @property
    def probabilities(self) -> Tensor:
        """Softmax of the logits (B, C)."""
        return self.logits.softmax(dim=-1)


class Stream:
    """A method fed with images as they come, in groups of any size.

    A group as large as the method's batch, or larger, is learned from at once. Smaller ones are predicted immediately
    and collected; when a batch is full, one update is made from it, so a prediction never waits for other images.
    """

    def __init__(self, method: Method, views: Views, runtime: Runtime) -> None:
        self.method, self.views, self.runtime = method, views, runtime
        self.position = self.steps = 0
        self._waiting: list[tuple[Tensor, ...]] = []
        self._places: list[int] = []

    @property
    def letters(self) -> str:
        """Views made of every image: the test view it is predicted on, and those it is learned from."""
        return "t" + ("" if self.method.views == "t" else self.method.views)

    def feed(self, images: Sequence[Picture]) -> Reply:
        """Predict a group of images, and learn from it now or when enough have come."""
        made = self._views(images)
        places = list(range(self.position, self.position + len(images)))
        self.position += len(images)
        if not self._waiting and len(images) >= self.method.config.batch:
            return self._observe(made, places)
        logits = self.method.predict(made[0])
        self._waiting += list(zip(*(made[1:] or made), strict=True))
        self._places += places
        return Reply(logits, self._learn() if len(self._waiting) >= self.method.config.batch else None)

    def finish(self) -> Event | None:
        """Learn from what is still waiting: a stream may end in the middle of a batch."""
        return self._learn() if self._waiting else None

    def _observe(self, made: tuple[Tensor, ...], places: list[int]) -> Reply:
        self._tick()
        logits, terms = self.method.observe(made[0], Batch(made[1:] or made, torch.tensor(places)))
        return Reply(logits.detach(), self._event(terms))

    def _learn(self) -> Event:
        self._tick()
        views = tuple(torch.stack(view) for view in zip(*self._waiting, strict=True))
        batch = Batch(views, torch.tensor(self._places))
        config, terms = self.method.config, {}
        assert isinstance(config, OnlineConfig)
        for _ in range(config.steps_per_batch):
            terms = self.method.step(batch)
        self._waiting, self._places = [], []
        return self._event(terms)

    def _tick(self) -> None:
        self.method.at(Progress(self.steps, 0, 0))
        self.steps += 1

    def _event(self, terms: dict[str, float]) -> Event:
        return Event(self.method.progress, terms, self.method.lr, epoch_end=False)

    def _views(self, images: Sequence[Picture]) -> tuple[Tensor, ...]:
        pre, augment, seed = self.views.preprocess, self.views.augment, self.views.seed
        rows = []
        for offset, picture in enumerate(images):
            image = _opened(picture, pre.channels)
            place = self.position + offset
            rows.append(
                [
                    make_view(image, letter, pre, augment, view_rng(seed, 0, place, number))
                    for number, letter in enumerate(self.letters)
                ]
            )
        return tuple(normalised(pixels.to(self.runtime.device), pre) for pixels in stacked(rows))

    def state_dict(self) -> dict[str, Tensor]:
        """Everything needed to go on with the same bits, the images that wait for an update included."""
        state = {f"method.{name}": tensor for name, tensor in self.method.state_dict().items()}
        state["counters"] = torch.tensor([self.position, self.steps])
        state["places"] = torch.tensor(self._places, dtype=torch.long)
        for number, view in enumerate(zip(*self._waiting, strict=True)):
            state[f"waiting.{number}"] = torch.stack(view)
        return state

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Inverse of `state_dict`."""
        self.method.load_state_dict({k.removeprefix("method."): t for k, t in state.items() if k.startswith("method.")})
        self.position, self.steps = (int(value) for value in state["counters"])
        self._places = state["places"].tolist()
        waiting = [
            state[f"waiting.{n}"].to(self.runtime.device) for n in range(len(self.letters)) if f"waiting.{n}" in state
        ]
        self._waiting = list(zip(*waiting, strict=True)) if waiting else []


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
    **settings: Any,
) -> Stream:
    """A stream over a model (file); the method's preset `online` is used where it has one.

    Learning rates are constant (see `CONSTANT`).
    """
    check_seed(seed)
    kind = methods.get(method, "online")
    if config is None and preset is None and "online" in kind.presets:
        preset = "online"
    made = make_config(kind, config, preset, settings)
    made = replace(made, **{name: value for name, value in CONSTANT.items() if name in made.__dataclass_fields__})
    runtime = Runtime(resolve_device(device))
    source = (load_model(model) if not isinstance(model, Model) else model).to(runtime.device).eval()
    source, _ = promptable(source, kind, stages=stages, prompts=prompts, seed=seed)
    views = Views(source.card.preprocess, source.card.augment, seed)
    tensors = load_stats(stats, source) if stats else None
    return Stream(kind(source, made, seed=seed, stats=tensors), views, runtime)


def stream(
    model: str | Path | Model, batches: Iterable[Sequence[Picture]], *, method: str = "dept", **settings: Any
) -> Iterator[tuple[Tensor, Event | None]]:
    """Yield (logits (B, C), event) for every group of images, adapting on the way.

    Args:
        batches: groups of paths, PIL images or uint8 arrays, of any size down to one.
        settings: as in `open_stream` (seed, device, preset, or fields of the method's Config).
    """
    opened = open_stream(model, method=method, **settings)
    for group in batches:
        reply = opened.feed(group)
        yield reply.logits, reply.event
    opened.finish()


def run_scenario(
    method: Method, scenario: Scenario, views: Views, runtime: Runtime
) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Play a scenario: yield (segment, positions (B,), logits (B, C)) for every batch, resetting as it says."""
    for number, segment in enumerate(scenario.segments):
        if number and scenario.reset == "domain":
            method.reset()
        for observed in online(method, segment.images.unlabelled(), segment.order, views, runtime):
            yield segment.name, observed.index, observed.logits
            if scenario.reset == "batch":
                method.reset()


def _opened(picture: Picture, channels: int) -> Image.Image:
    if isinstance(picture, (str, Path)):
        return decode(Path(picture), channels)
    return upright(picture if isinstance(picture, Image.Image) else Image.fromarray(picture), channels)
