"""The loops. Each is a generator of events, so that whoever runs it decides what to log, save and show."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from dept.data.images import ImageSet
from dept.data.loader import Batch, Key, LabelledBatch, Runtime, TestPasses, Views, batches, shuffled_keys
from dept.methods.base import BaseConfig, Method, Progress
from dept.models.model import Model


@dataclass(frozen=True)
class Event:
    """One step done: the values of the loss terms, the learning rate, whether an epoch ended with it."""

    progress: Progress
    terms: dict[str, float]
    lr: float
    epoch_end: bool

    @property
    def last(self) -> bool:
        """Whether this was the last step of the run."""
        return self.progress.step + 1 == self.progress.total

    def ends_epochs(self, every: int) -> bool:
        """Whether `every` more epochs are over and the run goes on; never for 0."""
        return every > 0 and self.epoch_end and not self.last and (self.progress.epoch + 1) % every == 0


def steps_per_epoch(size: int, batch: int) -> int:
    """Batches in one pass; the last one may be short."""
    return -(-size // batch)


def planned_steps(config: BaseConfig, size: int) -> int:
    """Steps of a run over `size` images."""
    return config.max_iters or config.epochs * steps_per_epoch(size, config.batch)


def offline(
    method: Method,
    images: ImageSet,
    views: Views,
    runtime: Runtime,
    *,
    start: int = 0,
    labelled: bool = False,
    keys: Iterable[list[Key]] | None = None,
) -> Iterator[Event]:
    """Epochs over a set of images: adaptation, or source training if `labelled`.

    Args:
        start: the first step to do; above 0 the method's state must have been restored.
        keys: the images of each step from `start` on, where they are not simply those of a shuffled set.
    """
    config = method.config
    per_epoch, total = steps_per_epoch(len(images), config.batch), planned_steps(config, len(images))
    passes = TestPasses(images, views, runtime)
    if start == 0:
        method.begin(passes)
    shuffled = shuffled_keys(len(images), config.batch, range(start, total), views.seed)
    stream = batches(
        images,
        method.views,
        views,
        shuffled if keys is None else iter(keys),
        device=runtime.device,
        workers=runtime.workers,
        device_views=runtime.device_views,
    )
    for step, (index, made) in enumerate(stream, start):
        progress = Progress(step, total, step // per_epoch)
        batch = _labelled(made, index, images, runtime) if labelled else Batch(made, index)
        method.at(progress)
        with training_noise(views.seed, step, runtime.device):
            terms = method.step(batch)
        epoch_end = (step + 1) % per_epoch == 0
        if epoch_end and step + 1 < total:
            method.refresh(passes, progress.epoch)
        yield Event(progress, terms, method.lr, epoch_end)


@dataclass(frozen=True)
class Observed:
    """One batch of a stream: positions of its images (B,), their logits (B, C), and the step it caused."""

    index: Tensor
    logits: Tensor
    event: Event


def online(
    method: Method, images: ImageSet, order: Sequence[int], views: Views, runtime: Runtime, *, start: int = 0
) -> Iterator[Observed]:
    """A stream: every image once, in `order`, in batches; each is predicted exactly once and learned from.

    Args:
        start: the first batch to do; above 0 the method's state must have been restored.
    """
    size = method.config.batch
    groups = [list(order[at : at + size]) for at in range(0, len(order), size)]
    keys = [[(number, index) for index in group] for number, group in enumerate(groups)]
    letters = "t" if method.views == "t" else "t" + method.views
    stream = batches(images, letters, views, keys[start:], device=runtime.device, workers=runtime.workers)
    for step, (index, made) in enumerate(stream, start):
        method.at(Progress(step, len(keys), 0))
        logits, terms = method.observe(made[0], Batch(made[1:] or made, index))
        yield Observed(index, logits.detach(), Event(method.progress, terms, method.lr, step + 1 == len(keys)))


@contextmanager
def training_noise(seed: int, step: int, device: str) -> Iterator[None]:
    """Dropout and stochastic depth, which draw from the global generator, are a function of seed and step inside."""
    with torch.random.fork_rng(devices=[device] if device.startswith("cuda") else []):
        torch.manual_seed(seed * 1_000_003 + step)
        yield


def _labelled(made: tuple[Tensor, ...], index: Tensor, images: ImageSet, runtime: Runtime) -> LabelledBatch:
    assert images.labels is not None
    labels = torch.tensor([images.labels[i] for i in index.tolist()], device=runtime.device)
    return LabelledBatch(made, index, labels)


@torch.no_grad()
def collect(passes: Iterable[Batch], method: Method) -> dict[str, Tensor]:
    """Probabilities (n, C) of every read-out of the method over a pass, on the CPU."""
    parts: dict[str, list[Tensor]] = {}
    for batch in passes:
        for name, probabilities in method.readouts(batch.views[0]).items():
            parts.setdefault(name, []).append(probabilities.cpu())
    return {name: torch.cat(tensors) for name, tensors in parts.items()}


@torch.no_grad()
def class_probabilities(model: Model, images: ImageSet, runtime: Runtime) -> Tensor:
    """Probabilities (n, C) on test views, on the CPU."""
    passes = TestPasses(images, Views(model.card.preprocess), runtime)
    model.to(runtime.device).eval()
    return torch.cat([model(batch.views[0]).softmax(dim=-1).cpu() for batch in passes()])
