"""Source training of a model on labelled images of one or several domains: one call, one run folder."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import torch

from dept.core.adapter import Adapter
from dept.data.images import ImageSet, list_hash
from dept.data.loader import Key, Runtime, Views, resolve_device
from dept.data.sources import AnySource, Sources, domain_keys, find_sources
from dept.data.views import Augment
from dept.errors import DataError, UsageError
from dept.methods.base import part, prefixed
from dept.methods.multi_source import MultiSourceTraining, own_prompts
from dept.methods.source_training import SourceTraining
from dept.models.domains import read_as, settle
from dept.models.files import save_model
from dept.models.model import Model, fingerprint, with_history
from dept.runs.environment import environment
from dept.runs.folder import Listener, RunFolder, kept, silent
from dept.runs.job import make_config
from dept.runs.loops import Event, class_probabilities, offline, planned_steps, steps_per_epoch
from dept.runs.record import Protocol, check_seed, protocol, skipped_files
from dept.runs.words import adapt_command, skips

__all__ = ["MultiSourceTraining", "SourceTraining", "TrainOptions", "TrainRun", "train"]


@dataclass(frozen=True)
class TrainOptions:
    """How `train` runs, beside the Config."""

    seed: int = 0
    """seed of split, order, views and fresh parameters"""
    device: str = "auto"
    """cpu, cuda, mps or auto"""
    workers: int = 0
    """processes that decode images and make views"""

    def __post_init__(self) -> None:
        check_seed(self.seed)


@dataclass(frozen=True)
class TrainRun:
    """What `train` gives back; print it to read it."""

    folder: Path
    file: Path
    result: dict[str, Any]
    model: Model = field(repr=False)

    def __str__(self) -> str:
        result = self.result
        return "\n".join(
            [
                f"Trained on {result['images']} images ({result['held_out']} held out); best epoch "
                f"{result['best_epoch'] + 1} of {result['epochs']}, held-out accuracy "
                f"{100 * result['accuracy']:.1f} %.",
                *skips(result),
                *_describe_domains(result.get("domains", [])),
                f"Model: {self.file}",
                f"Next:  {adapt_command(self.model, self.file)}",
            ]
        )


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
    own = {name: settings.pop(name) for name in list(settings) if name in TrainOptions.__dataclass_fields__}
    options = replace(options or TrainOptions(), **own)
    sources = find_sources(source, model.classes)
    kind = MultiSourceTraining if len(sources) > 1 else SourceTraining
    made = make_config(kind, config, preset, settings)
    assert isinstance(made, SourceTraining.Config)
    made, sources = _fitted(made, model, sources), sources.decodable()
    if len(model.classes) < 2:
        raise DataError(
            f"There is only one class, {model.classes[0]!r}, to train on. Labelled images are expected as "
            "SOURCE/<class>/<image>; is the folder one level too high?"
        )
    runtime = Runtime(resolve_device(options.device), options.workers)
    training, held_out = sources.split(made.held_out, seed=options.seed)
    folder = RunFolder(out, "model.safetensors", resume=resume, overwrite=overwrite, listener=listener)
    strong = replace(augmentation or model.card.augment, crop_scale=made.crop_scale)
    model.domains = None  # of an earlier training
    job = _Job(model.to(runtime.device), training, held_out, made, options, runtime, folder, strong)
    return job.run()


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
            f"--batch {config.batch} is smaller than the number of source domains ({len(sources)}), and every step "
            f"draws from each: raise it to {len(sources)} or more."
        )
    return MultiSourceTraining.Config(**shared | {"batch": share * len(sources)}, domain_prompts=own)


@dataclass
class _Job:
    """One training: the loop, and what is written around it."""

    model: Model
    training: Sources
    held_out: Sources
    config: SourceTraining.Config
    options: TrainOptions
    runtime: Runtime
    folder: RunFolder
    augment: Augment
    best_accuracy: float = -1.0
    best_epoch: int = -1

    def run(self) -> TrainRun:
        model, config, folder, seed = self.model, self.config, self.folder, self.options.seed
        self.views = Views(model.card.preprocess, self.augment, seed)
        self.images, self.notes = self.training.union, self.training.missing_classes()
        initial = fingerprint(model)
        self.method = self._method()
        self.best = Adapter.of(model, self.method.moving_names())
        self.total = planned_steps(config, len(self.images))
        record = self._protocol(initial)
        folder.configure({"protocol": record, "options": asdict(self.options)})
        if not folder.resume:
            folder.log("start", total=self.total, notes=self.notes, inputs=self._inputs())
        self._loop()
        self.best.copy_to(model)
        domains = self._domain_results()
        settle(model, self.training, self.runtime)
        result = {
            "images": len(self.images),
            "held_out": len(self.held_out.union),
            "skipped": skipped_files(self.images),
            "accuracy": self.best_accuracy,
            "best_epoch": self.best_epoch,
            "epochs": -(-self.total // steps_per_epoch(len(self.images), config.batch)),
            **self.method.counts(),
            **domains,
            "protocol": record,
            "environment": environment(self.runtime),
        }
        summary = {"preset_config": asdict(config), "seed": seed, "held_out_accuracy": self.best_accuracy}
        with_history(model, training=summary | domains)
        file = save_model(model.eval(), folder.product)
        folder.finish(result)
        folder.log("end")
        return TrainRun(folder.path, file, result, model)

    def _inputs(self) -> dict[str, list[str]]:
        """Where the sources lie, as `places` says it of single inputs; nothing if they were not all given by path."""
        return _given(sources=[str(place.absolute()) for place in self.training.places])

    def _method(self) -> SourceTraining:
        seed, training = self.options.seed, self.training
        if not isinstance(self.config, MultiSourceTraining.Config):
            return SourceTraining(self.model, self.config, seed=seed)
        return MultiSourceTraining(self.model, self.config, names=training.names, owners=training.owners, seed=seed)

    def _protocol(self, initial: str) -> Protocol:
        record = protocol(
            self.model,
            self.images,
            method=self.method,
            config=self.config,
            augment=self.augment,
            seed=self.options.seed,
            initial_backbone_sha256=initial,
            held_out=len(self.held_out.union),
            readout="student, direct, best epoch on held-out source images",
        )
        if len(self.training) == 1:
            return record
        return record | {
            "list_sha256": training_hash(self.training),
            "domains": _domain_hashes(self.training),
            "selection": "mean held-out accuracy of the domains",
        }

    def _loop(self) -> None:
        """Step, evaluate on held-out source images at the end of each epoch, keep the best; `kept` logs and saves."""
        start = self._restore()
        self._training_mode()
        keys = self._keys(start)
        steps = offline(self.method, self.images, self.views, self.runtime, start=start, labelled=True, keys=keys)
        for event in kept(steps, self.method, self.folder, self._save):
            if event.epoch_end or event.last:
                self._evaluate(event)

    def _keys(self, start: int) -> Iterable[list[Key]] | None:
        """With domain prompts, every step draws from every domain; a union is shuffled like one folder."""
        if not isinstance(self.method, MultiSourceTraining):
            return None
        sizes = [len(part) for part in self.training.parts]
        return domain_keys(sizes, self.config.batch // len(sizes), range(start, self.total), self.options.seed)

    def _training_mode(self) -> None:
        """A model from a file is in evaluation mode; the batch norm of a frozen backbone must stay in it."""
        self.model.train()
        if self.config.freeze_backbone:
            self.model.backbone.eval()

    def _evaluate(self, event: Event) -> None:
        accuracies = [self._accuracy(images, number) for number, images in enumerate(self.held_out.parts)]
        self._training_mode()
        accuracy = sum(accuracies) / len(accuracies)
        by_domain = dict(zip(self.held_out.names, accuracies, strict=True)) if len(accuracies) > 1 else {}
        self.folder.log("held_out", step=event.progress.step + 1, accuracy=accuracy, **_given(domains=by_domain))
        if accuracy > self.best_accuracy:
            self.best_accuracy, self.best_epoch = accuracy, event.progress.epoch
            self.best = Adapter.of(self.model, self.method.moving_names())

    def _accuracy(self, images: ImageSet, domain: int | None) -> float:
        """On held-out images, seen as one of the domains or (None) as their mean."""
        read_as(self.model, domain)
        probabilities = class_probabilities(self.model, images, self.runtime)
        return float((probabilities.argmax(dim=1) == torch.tensor(images.labels)).double().mean())

    def _domain_results(self) -> dict[str, Any]:
        """Of several domains, what each had and how well it is known; nothing of one."""
        if len(self.training) == 1:
            return {}
        rows: list[dict[str, Any]] = []
        for number, (name, held_out) in enumerate(_named(self.held_out)):
            size = len(self.training.parts[number])
            row = {
                "name": name,
                "images": size,
                "held_out": len(held_out),
                "accuracy": self._accuracy(held_out, number),
            }
            if self.model.domains is not None:
                row["accuracy_mean_prompts"] = self._accuracy(held_out, None)
            rows.append(row)
        return {"domains": rows, "notes": self.notes}

    def _restore(self) -> int:
        if not self.folder.resume:
            return 0
        start, extra = self.folder.load_state(self.method)
        self.best_accuracy, self.best_epoch = float(extra["best"][0]), int(extra["best"][1])
        self.best = Adapter(part(extra, "best_tensors"))
        return start

    def _save(self, next_step: int) -> None:
        best = torch.tensor([self.best_accuracy, self.best_epoch], dtype=torch.float64)
        self.folder.save_state(self.method, next_step, best=best, **prefixed("best_tensors", self.best.tensors))


def training_hash(training: Sources) -> str:
    """sha256 of the lists of files that a model is trained on; where the folders lie does not matter."""
    if len(training) == 1:
        return list_hash(training.union)
    return hashlib.sha256(repr(_domain_hashes(training)).encode()).hexdigest()


def _domain_hashes(sources: Sources) -> dict[str, str]:
    return {name: list_hash(part) for name, part in _named(sources)}


def _named(sources: Sources) -> list[tuple[str, ImageSet]]:
    return list(zip(sources.names, sources.parts, strict=True))


def _given(**values: Any) -> dict[str, Any]:
    """The values that are there."""
    return {name: value for name, value in values.items() if value}


def _describe_domains(rows: list[dict[str, Any]]) -> list[str]:
    """A line per source domain: its images, and its held-out accuracy with its own prompts and with the mean."""
    lines = []
    for row in rows:
        mean = row.get("accuracy_mean_prompts")
        with_mean = "" if mean is None else f" with its own prompts, {100 * mean:.1f} % with the mean of all"
        lines.append(f"  {row['name']}: {row['images']} images, held-out {100 * row['accuracy']:.1f} %{with_mean}")
    return lines
