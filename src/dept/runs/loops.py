"""The loops. Each is a generator of events, so that whoever runs it decides what to log, save and show."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from dept.data.images import ImageSet
from dept.data.loader import Batch, Key, LabelledBatch, Runtime, TestPasses, Views, batches, shuffled_keys
from dept.methods.base import BaseConfig, Method, Progress
from dept.methods.uda.base import PairedBatch, PairedPasses, UDAConfig, UDAMethod
from dept.metrics import finite
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
    labels = torch.tensor(images.labels) if labelled else None
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
    )
    for step, (index, made) in enumerate(stream, start):
        progress = Progress(step, total, step // per_epoch)
        batch = Batch(made, index)
        if labels is not None:
            batch = LabelledBatch(made, index, labels[index].to(runtime.device))
        method.at(progress)
        method.before_step(passes)
        with training_noise(views.seed, step, runtime.device):
            terms = method.step(batch)
        epoch_end = (step + 1) % per_epoch == 0
        if epoch_end and step + 1 < total:
            method.refresh(passes, progress.epoch)
        yield Event(progress, terms, method.lr, epoch_end)


@dataclass(frozen=True)
class Domain:
    """Images of one domain and the seeded views that are made of them."""

    images: ImageSet
    views: Views

    def positions(self, batch: int, steps: range) -> Iterator[list[int]]:
        """Positions of the images of some steps: whole batches only; each epoch of the domain is shuffled anew."""
        full, with_short = len(self.images) // batch, -(-len(self.images) // batch)
        numbers = (step // full * with_short + step % full for step in steps)
        for keys in shuffled_keys(len(self.images), batch, numbers, self.views.seed):
            yield [index for _, index in keys]

    def passes(self, runtime: Runtime) -> TestPasses:
        """Passes over the images in fixed order, as test views."""
        return TestPasses(self.images, self.views, runtime)


def planned_pairs(config: UDAConfig) -> int:
    """Steps of a run; the number of images does not matter."""
    return config.max_iters or config.epochs * config.iters_per_epoch


def paired(method: UDAMethod, source: Domain, target: Domain, runtime: Runtime, *, start: int = 0) -> Iterator[Event]:
    """The loop: in every step a batch of each domain, both shuffled with their own seed, until the method is settled.

    Args:
        start: the first step to do; above 0 the method's state must have been restored.
    """
    config = method.config
    per_epoch, total = config.iters_per_epoch, planned_pairs(config)
    labels = torch.tensor(source.images.labels)
    passes = PairedPasses(source.passes(runtime), target.passes(runtime), labels)
    if start == 0:
        method.begin(passes)
    while start < total and not method.settled:
        # Epoch by epoch, because a method may choose its images by what `refresh` found out.
        end = min(total, (start // per_epoch + 1) * per_epoch)
        for step, batch in _pairs(method, source, target, labels, runtime, range(start, end)):
            progress = Progress(step, total, step // per_epoch)
            method.at(progress)
            with training_noise(target.views.seed, step, runtime.device):
                terms = method.step(batch)
            epoch_end = (step + 1) % per_epoch == 0
            if epoch_end and step + 1 < total:
                method.refresh(passes, progress.epoch)
            yield Event(progress, terms, method.lr, epoch_end)
        start = end


def _pairs(
    method: UDAMethod, source: Domain, target: Domain, labels: Tensor, runtime: Runtime, steps: range
) -> Iterator[tuple[int, PairedBatch]]:
    """The batches of some steps within one epoch."""
    random = zip(*(domain.positions(method.config.batch, steps) for domain in (source, target)), strict=True)
    chosen = [
        method.choose(ours, theirs, torch.Generator().manual_seed(source.views.seed * 1_000_003 + step))
        for step, (ours, theirs) in zip(steps, random, strict=True)
    ]
    # The step takes the place of the epoch in the keys of views: an image drawn again looks different.
    keys: list[list[list[Key]]] = [
        [[(step, index) for index in pair[side]] for step, pair in zip(steps, chosen, strict=True)] for side in (0, 1)
    ]
    streams = [
        batches(domain.images, method.views, domain.views, own, device=runtime.device, workers=runtime.workers)
        for domain, own in zip((source, target), keys, strict=True)
    ]
    for step, (index, views), (other, others) in zip(steps, *streams, strict=True):
        yield step, PairedBatch(others, other, views, labels[index].to(runtime.device))


@contextmanager
def training_noise(seed: int, step: int, device: str) -> Iterator[None]:
    """Dropout and stochastic depth, which draw from the global generator, are a function of seed and step inside."""
    with torch.random.fork_rng(devices=[device] if device.startswith("cuda") else []):
        torch.manual_seed(seed * 1_000_003 + step)
        yield


@torch.no_grad()
def collect(passes: Iterable[Batch], method: Method) -> dict[str, Tensor]:
    """Probabilities (n, C) of every read-out of the method over a pass, on the CPU."""
    parts: dict[str, list[Tensor]] = {}
    for batch in passes:
        for name, probabilities in method.readouts(batch.views[0]).items():
            parts.setdefault(name, []).append(finite(probabilities).cpu())
    return {name: torch.cat(tensors) for name, tensors in parts.items()}


@torch.no_grad()
def class_probabilities(model: Model, images: ImageSet, runtime: Runtime) -> Tensor:
    """Probabilities (n, C) on test views, on the CPU."""
    passes = TestPasses(images, Views(model.card.preprocess), runtime)
    model.to(runtime.device).eval()
    return torch.cat([finite(model(batch.views[0]).softmax(dim=-1)).cpu() for batch in passes()])
