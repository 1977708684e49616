"""Source training of a model on labelled images of one or several domains: one call, one run folder."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, cast

import torch

from dept.core.adapter import Adapter
from dept.core.collective import only_first
from dept.data.images import ImageSet, label_shares, list_hash
from dept.data.loader import Key, Runtime, Views, resolve_device
from dept.data.places import as_place
from dept.data.sources import AnySource, Sources, domain_keys, find_sources
from dept.data.views import Augment
from dept.errors import DataError, UsageError
from dept.methods.base import part, prefixed
from dept.methods.multi_source import MultiSourceTraining, own_prompts
from dept.methods.source_training import SourceTraining
from dept.models.domains import read_as, settle
from dept.models.files import save_model
from dept.models.model import Model, fingerprint, with_history
from dept.runs import bad_images
from dept.runs.distributed import check_inputs, check_share
from dept.runs.folder import Listener, RunFolder, silent
from dept.runs.job import Job, JobOptions, make_config, with_settings
from dept.runs.loops import Event, class_probabilities, offline, planned_steps, steps_per_epoch
from dept.runs.profile import measure_profile
from dept.runs.record import Protocol, Result, protocol
from dept.runs.words import trained

LEAST_STEPS, BATCHES_PER_EPOCH, SMALLEST_BATCH = 300, 12, 16
"""of a training of default length"""
__all__ = ["MultiSourceTraining", "SourceTraining", "TrainOptions", "TrainRun", "train"]


@dataclass(frozen=True)
class TrainOptions(JobOptions):
    """How `train` runs, beside the Config."""

    fit_length: bool = True
    """with few images: smaller batches and more epochs than the default ones (never with a preset)"""
    amp: bool = False
    """run the backbone in bf16 (where the hardware has it); weights and losses stay in fp32"""


@dataclass(frozen=True)
class TrainRun:
    """What `train` returns; print it to read it."""

    folder: Path
    file: Path
    result: Result
    model: Model = field(repr=False)

    def __str__(self) -> str:
        return trained(self.result, self.file)


def train(
    model: Model,
    source: AnySource,
    *,
    out: str | Path,
    config: SourceTraining.Config | None = None,
    preset: str | None = None,
    options: TrainOptions | None = None,
    augmentation: Augment | None = None,
    resume: bool = False,
    overwrite: bool = False,
    listener: Listener = silent,
    **settings: Any,
) -> TrainRun:
    """Train a source model on labelled images and write `model.safetensors` of the best held-out epoch.

    Args:
        model: from `create_model`; its classes must be the source's. It is changed in place.
        source: a folder with one sub-folder per class, a list file, or an ImageSet. A list of these, or a dict that
            names them: several domains. A model with prompts then learns shared ones and some for each domain
            (`domain_prompts`; 0 for one union, as a plain model always has it).
        config, preset, settings: as in `adapt`.
    """
    options, settings = with_settings(options or TrainOptions(), settings)
    sources = find_sources(source, model.classes)
    kind = MultiSourceTraining if len(sources) > 1 else SourceTraining
    made = make_config(kind, config, preset, settings)
    assert isinstance(made, SourceTraining.Config)
    folder = RunFolder(out, "model.safetensors", resume=resume, overwrite=overwrite, listener=listener)
    check_inputs(source=sources.union)
    if bad_images.replaces(options.bad_images, len(sources.union)):
        sources = sources.unchecked()
    else:
        sources = sources.decodable(model.card.preprocess.channels, folder.index)
    notes = bad_images.note(*sources.parts)
    if options.fit_length and not preset:
        made, more = sized(made, len(sources.union))
        notes += more
    made = _fitted(made, model, sources)
    if len(model.classes) < 2:
        raise DataError(
            f"There is only one class, {model.classes[0]!r}, to train on. Labelled images are expected as "
            "SOURCE/<class>/<image>. Is the folder one level too high?"
        )
    runtime = Runtime(resolve_device(options.device), options.workers)
    check_share(made.batch, runtime.device)
    training, held_out = sources.split(made.held_out, seed=options.seed)
    views = Views(
        model.card.preprocess,
        replace(augmentation or model.card.augment, crop_scale=made.crop_scale),
        options.seed,
    )
    model.domains = None  # of an earlier training
    initial = fingerprint(model.to(runtime.device))
    model.configure(amp=options.amp)
    check_inputs(model=initial)
    if isinstance(made, MultiSourceTraining.Config):
        method: SourceTraining = MultiSourceTraining(
            model, made, names=training.names, owners=training.owners, seed=options.seed
        )
    else:
        method = SourceTraining(model, made, seed=options.seed)
    images = training.union
    record = _protocol(model, method, training, held_out, views, initial)
    sources_at = [str(as_place(place).absolute()) for place in training.places]
    job = TrainJob(
        method,
        images,
        record,
        folder,
        options,
        runtime,
        planned_steps(made, len(images)),
        {"sources": sources_at} if sources_at else {},
        [*notes, *training.missing_classes()],
        training,
        held_out,
        views,
    )
    result = job.run()
    return TrainRun(folder.path, folder.product, result, model)


def sized(config: SourceTraining.Config, images: int) -> tuple[SourceTraining.Config, list[str]]:
    """The config with a batch and a length that fit the number of images, if both are the default, and a note on that.

    The defaults are the paper's, for 70,000 images and more. With hundreds they are a few dozen steps.
    """
    default = SourceTraining.Config()
    if (config.batch, config.epochs, config.max_iters) != (default.batch, default.epochs, default.max_iters):
        return config, []
    # The largest power of two that leaves enough batches in an epoch.
    batch = max(SMALLEST_BATCH, min(default.batch, 2 ** int(math.log2(max(1, images / BATCHES_PER_EPOCH)))))
    epochs = max(default.epochs, -(-LEAST_STEPS // steps_per_epoch(images, batch)))
    if (batch, epochs) == (default.batch, default.epochs):
        return config, []
    usual = default.epochs * steps_per_epoch(images, default.batch)
    note = (
        f"{epochs} epochs with batches of {batch}, because the usual {default.epochs} epochs with batches of "
        f"{default.batch} are only {usual} steps on {images} images."
    )
    return replace(config, batch=batch, epochs=epochs), [note]


def _fitted(config: SourceTraining.Config, model: Model, sources: Sources) -> SourceTraining.Config:
    """The config that fits the sources: with domain prompts only where there are several domains and prompts."""
    several = len(sources) > 1
    asked = config.domain_prompts if isinstance(config, MultiSourceTraining.Config) else -1
    own = own_prompts(model, asked) if several else 0
    shared = {f.name: getattr(config, f.name) for f in fields(SourceTraining.Config)}
    if not own:
        return SourceTraining.Config(**shared)
    share = config.batch // len(sources)
    if not share:
        raise UsageError(
            f"`batch` {config.batch} is smaller than the number of source domains ({len(sources)}), and every step "
            f"draws from each. Raise it to {len(sources)} or more."
        )
    return MultiSourceTraining.Config(**shared | {"batch": share * len(sources)}, domain_prompts=own)


def _protocol(
    model: Model, method: SourceTraining, training: Sources, held_out: Sources, views: Views, initial: str
) -> Protocol:
    record = protocol(
        model,
        training.union,
        method=method,
        config=method.config,
        augment=views.augment,
        seed=views.seed,
        initial_backbone_sha256=initial,
        held_out=len(held_out.union),
        readout="student, direct, best epoch on held-out source images",
    )
    if len(training) > 1:
        record["list_sha256"] = training_hash(training)
        record["domains"] = _domain_hashes(training)
        record["selection"] = "mean held-out accuracy of the domains"
    return record


@dataclass
class TrainJob(Job):
    """One training: evaluated on held-out source images after every epoch, writes the model of the best one."""

    training: Sources
    held_out: Sources
    views: Views
    best_accuracy: float = field(default=-1.0, init=False)
    best_epoch: int = field(default=-1, init=False)

    def __post_init__(self) -> None:
        self.learner, self.model = cast(SourceTraining, self.method), cast(Model, self.method.model)
        self.best = Adapter.of(self.model, self.learner.moving_names())

    def steps(self, start: int) -> Iterable[Event]:
        self._training_mode()
        keys: Iterable[list[Key]] | None = None  # a union is shuffled like one folder
        if isinstance(self.learner, MultiSourceTraining):  # every step draws from every domain
            sizes = [len(images) for images in self.training.parts]
            share = self.learner.config.batch // len(sizes)
            keys = domain_keys(sizes, share, range(start, self.total), self.options.seed)
        return offline(self.learner, self.images, self.views, self.runtime, start=start, labelled=True, keys=keys)

    def _training_mode(self) -> None:
        """A model from a file is in evaluation mode; the batch norm of a frozen backbone must stay in it."""
        self.model.train()
        if self.learner.config.freeze_backbone:
            self.model.backbone.eval()

    def on_step(self, event: Event) -> None:
        """At the end of an epoch, score the held-out images and keep the best model."""
        if not (event.epoch_end or event.last):
            return
        accuracies = [self._accuracy(images, number) for number, images in enumerate(self.held_out.parts)]
        self._training_mode()
        accuracy = sum(accuracies) / len(accuracies)
        several = len(accuracies) > 1
        by_domain = {"domains": dict(zip(self.held_out.names, accuracies, strict=True))} if several else {}
        self.folder.log("held_out", step=event.progress.step + 1, accuracy=accuracy, **by_domain)
        if accuracy > self.best_accuracy:
            self.best_accuracy, self.best_epoch = accuracy, event.progress.epoch
            self.best = Adapter.of(self.model, self.learner.moving_names())

    def _accuracy(self, images: ImageSet, domain: int | None) -> float:
        """On held-out images, seen as one of the domains or (None) as their mean."""
        read_as(self.model, domain)
        probabilities = class_probabilities(self.model, images, self.runtime)
        return float((probabilities.argmax(dim=1) == torch.tensor(images.labels)).double().mean())

    def after(self, done: int) -> dict[str, Any]:
        self.best.copy_to(self.model)
        self.domains = self._domain_results()
        settle(self.model, self.training, self.runtime)
        return {
            "held_out": len(self.held_out.union),
            "accuracy": self.best_accuracy,
            "best_epoch": self.best_epoch,
            "epochs": -(-self.total // steps_per_epoch(len(self.images), self.learner.config.batch)),
            **self.domains,
        }

    def _domain_results(self) -> dict[str, Any]:
        """For several domains, how many images each had and its accuracy. Empty for one."""
        if len(self.training) == 1:
            return {}
        rows: list[dict[str, Any]] = []
        for number, (name, held_out) in enumerate(_named(self.held_out)):
            size, accuracy = len(self.training.parts[number]), self._accuracy(held_out, number)
            rows.append({"name": name, "images": size, "held_out": len(held_out), "accuracy": accuracy})
            if self.model.domains is not None:
                rows[-1]["accuracy_mean_prompts"] = self._accuracy(held_out, None)
        return {"domains": rows, "notes": self.notes}

    def write(self, result: Result) -> None:
        self.model.configure()  # what is done with the model afterwards is in fp32 unless asked otherwise
        summary = {"preset_config": asdict(self.learner.config), "seed": self.options.seed}
        with_history(self.model, training=summary | {"held_out_accuracy": self.best_accuracy, **self.domains})
        profile = measure_profile(self.model, self.held_out.union, self.runtime)
        self.model.card = replace(self.model.card, prior=label_shares(self.images), profile=profile)
        only_first(save_model)(self.model.eval(), self.folder.product)

    def restore(self) -> int:
        start, extra = self.folder.load_state(self.method)
        self.best_accuracy, self.best_epoch = float(extra["best"][0]), int(extra["best"][1])
        self.best = Adapter(part(extra, "best_tensors"))
        return start

    def save(self, next_step: int) -> None:
        best = torch.tensor([self.best_accuracy, self.best_epoch], dtype=torch.float64)
        self.folder.save_state(self.method, next_step, best=best, **prefixed("best_tensors", self.best.tensors))


def training_hash(training: Sources) -> str:
    """sha256 of the lists of files that a model is trained on; where the folders lie does not matter."""
    if len(training) == 1:
        return list_hash(training.union)
    return hashlib.sha256(repr(_domain_hashes(training)).encode()).hexdigest()


def _domain_hashes(sources: Sources) -> dict[str, str]:
    return {name: list_hash(images) for name, images in _named(sources)}


def _named(sources: Sources) -> list[tuple[str, ImageSet]]:
    return list(zip(sources.names, sources.parts, strict=True))
