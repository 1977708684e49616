"""Adaptation with source and target images together: one call, one run folder, an ordinary model as the result."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dept import methods
from dept.data.images import ImageSet, decodable, find_images, labelled_as, list_hash
from dept.data.loader import Key, Runtime, TestPasses, Views, batches, resolve_device, shuffled_keys
from dept.data.views import Augment
from dept.errors import DataError
from dept.methods.base import Progress
from dept.methods.uda.base import PairedBatch, PairedPasses, UDAConfig, UDAMethod
from dept.metrics import label_free, score
from dept.models.files import load_model, save_model
from dept.models.model import Model, fingerprint, with_history
from dept.runs.environment import environment
from dept.runs.folder import Listener, RunFolder, kept, silent
from dept.runs.job import make_config
from dept.runs.loops import Event, collect, training_noise
from dept.runs.record import Protocol, check_seed, places, protocol, skipped_files
from dept.runs.words import beware, outcome

WITH_SOURCE = "source and target together"  # what a protocol calls this setting


@dataclass(frozen=True)
class UDAOptions:
    """How `adapt_with_source` runs, beside the method's own Config."""

    seed: int = 0
    """seed of order, views and fresh parameters"""
    eval_every: int = 0
    """score every so many epochs (0: only before and after); needs --score"""
    device: str = "auto"
    """cpu, cuda, mps or auto"""
    workers: int = 0
    """processes that decode images and make views, for each domain"""

    def __post_init__(self) -> None:
        check_seed(self.seed)


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


@dataclass(frozen=True)
class UDARun:
    """What `adapt_with_source` gives back; print it to read it."""

    folder: Path
    file: Path
    result: dict[str, Any]
    model: Model = field(repr=False)
    before: Tensor = field(repr=False)
    after: Tensor = field(repr=False)
    scored: ImageSet | None = field(default=None, repr=False)
    """the images that were scored, without those that do not decode"""

    def __str__(self) -> str:
        return describe(self.result, self.file)


def adapt_with_source(
    model: str | Path | Model,
    source: str | Path | ImageSet,
    target: str | Path | ImageSet,
    *,
    out: str | Path,
    method: str = "cdan",
    config: UDAConfig | None = None,
    preset: str | None = None,
    options: UDAOptions | None = None,
    score_on: str | Path | ImageSet | None = None,
    augmentation: Augment | None = None,
    resume: bool = False,
    overwrite: bool = False,
    listener: Listener = silent,
    **settings: Any,
) -> UDARun:
    """Train a model on labelled source and unlabelled target images; writes `model.safetensors` of the last step.

    Args:
        model: a model file, or a Model, which is then changed in place. Its classes must be the source's.
        source: a folder with one sub-folder per class, a list file, or an ImageSet with labels.
        target: a folder (any nesting), a list file, or an ImageSet; labels in it are not used.
        score_on: labelled images to score on; their labels never reach the adaptation.
        config, preset, settings: as in `adapt`.
    """
    own = {name: settings.pop(name) for name in list(settings) if name in UDAOptions.__dataclass_fields__}
    options = replace(options or UDAOptions(), **own)
    kind = methods.get(method, "uda")
    assert issubclass(kind, UDAMethod)
    made = make_config(kind, config, preset, settings)
    assert isinstance(made, UDAConfig)
    loaded = model if isinstance(model, Model) else load_model(model)
    labelled = _labelled(source, loaded, "source")
    found = target if isinstance(target, ImageSet) else find_images(target)
    unlabelled = decodable(found).unlabelled()
    scored = None if score_on is None else _labelled(score_on, loaded, "scored", all_classes=False)
    for name, images in (("source", labelled), ("target", unlabelled)):
        _check_size(name, images, made.batch)
    runtime = Runtime(resolve_device(options.device), options.workers)
    folder = RunFolder(out, "model.safetensors", resume=resume, overwrite=overwrite, listener=listener)
    inputs = places(model=model, source=source, images=target, score=score_on)
    job = _Job(loaded.to(runtime.device), kind, made, options, runtime, folder, scored, inputs)
    return job.run(labelled, unlabelled, augmentation or loaded.card.augment)


def planned_steps(config: UDAConfig) -> int:
    """Steps of a run; the number of images does not matter."""
    return config.max_iters or config.epochs * config.iters_per_epoch


def paired(method: UDAMethod, source: Domain, target: Domain, runtime: Runtime, *, start: int = 0) -> Iterator[Event]:
    """The loop: in every step a batch of each domain, both shuffled with their own seed, until the method is settled.

    Args:
        start: the first step to do; above 0 the method's state must have been restored.
    """
    config = method.config
    per_epoch, total = config.iters_per_epoch, planned_steps(config)
    labels = torch.tensor(source.images.labels)
    passes = PairedPasses(_passes(source, runtime), _passes(target, runtime), labels)
    if start == 0:
        method.begin(passes)
    while start < total and not method.settled:
        # Epoch by epoch, because a method may choose its images by what `refresh` found out.
        end = min(total, (start // per_epoch + 1) * per_epoch)
        for step, batch in _batches(method, source, target, labels, runtime, range(start, end)):
            progress = Progress(step, total, step // per_epoch)
            method.at(progress)
            with training_noise(target.views.seed, step, runtime.device):
                terms = method.step(batch)
            epoch_end = (step + 1) % per_epoch == 0
            if epoch_end and step + 1 < total:
                method.refresh(passes, progress.epoch)
            yield Event(progress, terms, method.lr, epoch_end)
        start = end


def _batches(
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


def _passes(domain: Domain, runtime: Runtime) -> TestPasses:
    return TestPasses(domain.images, domain.views, runtime)


def _labelled(images: str | Path | ImageSet, model: Model, role: str, *, all_classes: bool = True) -> ImageSet:
    """Labelled images that decode, in the model's order of classes; a DataError if the class sets differ."""
    usable = decodable(labelled_as(images, model.classes, role))
    absent = [name for number, name in enumerate(model.classes) if number not in set(usable.labels or ())]
    if absent and all_classes:
        raise DataError(
            f"The {role} images in {usable.root} have no image of {absent[:5]}, which the model knows: source and "
            "model must have the same classes. Add images, or train a model on the source's classes."
        )
    return usable


def _check_size(name: str, images: ImageSet, batch: int) -> None:
    if len(images) < batch:
        raise DataError(
            f"The {name} domain has {len(images)} usable images in {images.root}, fewer than one batch of {batch}: "
            f"give more, or lower --batch to {len(images)} or less."
        )


@dataclass
class _Job:
    """One run: the loop, and what is written around it."""

    model: Model
    kind: type[UDAMethod]
    config: UDAConfig
    options: UDAOptions
    runtime: Runtime
    folder: RunFolder
    scored: ImageSet | None
    inputs: dict[str, str]

    def run(self, source: ImageSet, target: ImageSet, augment: Augment) -> UDARun:
        model, folder, seed = self.model, self.folder, self.options.seed
        # Two streams of numbers, so that order and views of the domains do not depend on each other.
        made = [Views(model.card.preprocess, augment, 2 * seed + side) for side in (0, 1)]
        self.source, self.target = Domain(source, made[0]), Domain(target, made[1])
        initial = fingerprint(model)
        self.method = self.kind(model, self.config, seed=seed)
        record = self._protocol(augment, initial)
        folder.configure({"protocol": record, "options": asdict(self.options)})
        before = self._probabilities()
        if not folder.resume:
            folder.log("start", total=planned_steps(self.config), notes=[], inputs=self.inputs)
            self._log_score(before, step=0)
        done = self._loop(folder.load_state(self.method)[0] if folder.resume else 0)
        after = self._probabilities()
        self._log_score(after, step=done)
        return self._finish(before, after, done, record)

    def _loop(self, start: int) -> int:
        """The visible loop; `kept` logs every step and saves. Returns the number of steps done."""
        self.model.train()
        steps = paired(self.method, self.source, self.target, self.runtime, start=start)
        for event in kept(steps, self.method, self.folder, partial(self.folder.save_state, self.method)):
            start = event.progress.step + 1
            if self.scored is not None and event.ends_epochs(self.options.eval_every):
                self._log_score(self._probabilities(), step=start)
        return start

    def _probabilities(self) -> Tensor:
        """(n, C) on the images that matter: scored ones, else the target's."""
        images = self.scored if self.scored is not None else self.target.images
        return collect(TestPasses(images, self.target.views, self.runtime)(), self.method)["student"]

    def _log_score(self, probabilities: Tensor, step: int) -> None:
        if self.scored is not None:
            correct = probabilities.argmax(dim=1) == torch.tensor(self.scored.labels)
            self.folder.log("score", step=step, top1={"student": float(correct.double().mean())})

    def _protocol(self, augment: Augment, initial: str) -> Protocol:
        source = self.source.images
        return protocol(
            self.model,
            self.target.images,
            method=self.method,
            config=self.config,
            augment=augment,
            seed=self.options.seed,
            initial_backbone_sha256=initial,
            source_images=len(source),
            source_list_sha256=list_hash(source),
            setting=WITH_SOURCE,
            readout="student, direct, last iterate",
            evaluated_on="scored images" if self.scored is not None else "target images (transductive)",
        )

    def _finish(self, before: Tensor, after: Tensor, steps: int, record: Protocol) -> UDARun:
        model, folder = self.model, self.folder
        result: dict[str, Any] = {
            "method": self.method.name,
            "images": len(self.target.images),
            "source_images": len(self.source.images),
            "steps": steps,
            "skipped": skipped_files(self.source.images, self.target.images),
            **self.method.counts(),
            "label_free": label_free(before, after, model.classes),
        }
        if self.scored is not None:
            labels = torch.tensor(self.scored.labels)
            result["skipped_scored"] = skipped_files(self.scored)
            result["before"] = score(before, labels, model.classes)
            result["after"] = score(after, labels, model.classes)
        summary = {"method": self.method.name, "config": asdict(self.config), "seed": self.options.seed}
        with_history(model, uda=summary | {"images": result["images"], "source_images": result["source_images"]})
        file = save_model(model.eval(), folder.product)
        result["protocol"] = record
        result["environment"] = environment(self.runtime)
        folder.finish(result)
        folder.log("end")
        return UDARun(folder.path, file, result, model, before, after, self.scored)


def describe(result: dict[str, Any], file: Path) -> str:
    """A finished run in a few lines, ending with the next useful command."""
    free = result["label_free"]
    lines = [
        f"{result['method']}: {result['steps']} steps on {result['source_images']} source and {result['images']} "
        f"target images, {result['tunable_model']:,} parameters tuned ({result['tunable_total']:,} with the method's "
        "own)."
    ]
    lines += outcome(result)
    lines.append(
        f"Without labels: {100 * free['changed']:.1f} % of predictions changed; effective classes "
        f"{free['before']['effective_classes']:.1f} -> {free['after']['effective_classes']:.1f}."
    )
    lines += filter(None, [beware(free)])
    return "\n".join([*lines, f"Model: {file}", f"Next:  dept predict {shlex.quote(str(file))} IMAGES"])
