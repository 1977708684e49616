"""Source training: backbone, prompts and head learn from labels, with the self-supervised terms alongside.

The prompted model is trained as the released code does (label-smoothed cross-entropy on a strong view plus the
three terms of the regulariser); the plain one on weak views with label-smoothed cross-entropy.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from dept.adapting import make_config
from dept.core import losses, schedules
from dept.core.adapter import Adapter
from dept.core.select import select
from dept.data.folder import ImageSet, decodable, find_labelled
from dept.data.loader import Views
from dept.data.subsets import split
from dept.data.views import Augment
from dept.engine import Event, LabelledBatch, Runtime, offline, planned_steps, steps_per_epoch
from dept.files import save_model
from dept.inference import class_probabilities
from dept.methods.base import Batch, Group, Progress, part, prefixed
from dept.methods.regularised import Regularised
from dept.methods.ttt import ROTATIONS, rotation_loss
from dept.models import Model, fingerprint, with_history
from dept.runs import (
    Checkpoints,
    Interrupted,
    Listener,
    RunFolder,
    environment,
    protocol,
    resolve_device,
    silent,
    stop_signal,
)


class SourceTraining(Regularised):
    """Labels in place of pseudo-labels, every parameter moving."""

    name = "source-training"
    summary = "supervised training of the source model"

    @dataclass(frozen=True)
    class Config(Regularised.Config):
        """Defaults are the released code's (preset `official`); `paper` is cross-entropy alone."""

        lr: float = 5e-4
        """η of the backbone"""
        new_lr_scale: float = 10.0
        """factor on η for prompts, head and projection heads"""
        epochs: int = 10
        """passes over the source images"""
        label_smoothing: float = 0.1
        """ε of the smoothed labels"""
        self_supervised: bool = True
        """add the three terms of the regulariser (prompted models only)"""
        w_div: float = 0.005
        """λ, weight of the diversity of prompts; 0 switches it off"""
        warmup: int = -1
        """steps of linear warm-up; -1 for min(M·P, a tenth of the steps), 0 for none"""
        freeze_backbone: bool = False
        """train prompts and head only"""
        held_out: float = 0.1
        """share of the source images that picks the best epoch"""
        crop_scale: tuple[float, float] = (0.6, 1.0)
        """area range of the strong crop"""
        aux: Literal["none", "rotation"] = "none"
        """also learn to tell by how much an image was turned, for the method ttt"""

    config: Config
    presets = {"official": {}, "paper": {"self_supervised": False, "label_smoothing": 0.0}}

    def prepare(self) -> None:
        """Two strong views for a prompted model that distils, one otherwise; weak views for a plain model."""
        if self.config.aux == "rotation" and self.model.auxiliary is None:
            with self.fresh_parameters():
                self.model.add_auxiliary(ROTATIONS)
        self.distils = self.config.self_supervised and self.model.stages > 0
        self.views = ("ss" if self.distils else "s") if self.model.stages else "w"
        if self.distils:
            super().prepare()
        else:
            self.reads_prompts = self.projects = False

    def tuned(self) -> list[Group]:
        """Backbone at η; prompts, head and projection heads at ten times that."""
        config = self.config
        new = config.lr * config.new_lr_scale
        groups = [Group(tuple(select(self.model, "prompts", "head")), new, config.clip)]
        if not config.freeze_backbone:
            groups.append(Group(tuple(select(self.model, "backbone")), config.lr, config.clip))
        if self.model.auxiliary is not None:
            groups.append(Group(tuple(n for n, _ in self.model.auxiliary.named_parameters("auxiliary")), new))
        return groups + self.projection_groups(new)

    def loss(self, batch: Batch) -> dict[str, Tensor]:
        """Smoothed cross-entropy on the student's view, plus the regulariser."""
        assert isinstance(batch, LabelledBatch)
        student = self.model.read(batch.views[-1], aggregated=self.reads_prompts)
        terms = {"cross_entropy": losses.cross_entropy(student.logits, batch.labels, self.config.label_smoothing)}
        if self.distils:
            self.distillation.update_teacher()
            teacher = self.distillation.teach(batch.views[0], aggregated=self.reads_prompts)
            terms |= self.regulariser(student, teacher)
        if self.config.aux == "rotation":
            terms["rotation"] = rotation_loss(self.model, batch.views[-1], self.generator)
        return terms

    def lr_scale(self, progress: Progress) -> float:
        """Warm-up (one step per prompt token, at most a tenth of the run), then cosine."""
        warmup = self.config.warmup
        if warmup < 0:
            warmup = min(self.model.stages * self.model.prompts_per_stage, progress.total // 10)
        return schedules.warmup_cosine(progress.step, progress.total, warmup)

    def moving_names(self) -> list[str]:
        """Everything that training changes: parameters, and buffers (the running statistics of batch norm)."""
        return self.trained_names + [name for name, _ in self.model.named_buffers()]

    def state_dict(self) -> dict[str, Tensor]:
        """Adds the buffers."""
        return super().state_dict() | prefixed("buffers", dict(self.model.named_buffers()))

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Inverse of `state_dict`."""
        super().load_state_dict(state)
        Adapter(part(state, "buffers")).copy_to(self.model)


@dataclass(frozen=True)
class TrainOptions:
    """How `train` runs, beside the Config."""

    seed: int = 0
    """seed of split, order, views and fresh parameters"""
    device: str = "auto"
    """cpu, cuda, mps or auto"""
    workers: int = 0
    """processes that decode images and make views"""


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
                f"Model: {self.file}",
                f"Next:  dept adapt {self.file} NEW_IMAGES --out runs/site",
            ]
        )


def train(
    model: Model,
    source: str | Path | ImageSet,
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
        source: a folder with one sub-folder per class, a list file, or an ImageSet.
        config, preset, settings: as in `adapt`.
    """
    own = {name: settings.pop(name) for name in list(settings) if name in TrainOptions.__dataclass_fields__}
    options = replace(options or TrainOptions(), **own)
    made = make_config(SourceTraining, config, preset, settings)
    assert isinstance(made, SourceTraining.Config)
    runtime = Runtime(resolve_device(options.device), options.workers)
    found = source if isinstance(source, ImageSet) else find_labelled(source, model.classes)
    training, held_out = split(decodable(found), made.held_out, seed=options.seed)
    folder = RunFolder(out, resume=resume, overwrite=overwrite, listener=listener)
    strong = replace(augmentation or model.card.augment, crop_scale=made.crop_scale)
    job = _Job(model.to(runtime.device), training, held_out, made, options, runtime, folder, strong)
    return job.run()


@dataclass
class _Job:
    """One training: the loop, and what is written around it."""

    model: Model
    training: ImageSet
    held_out: ImageSet
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
        initial = fingerprint(model)
        self.method = SourceTraining(model, config, seed=seed)
        self.best = Adapter.of(model, self.method.moving_names())
        total = planned_steps(config, len(self.training))
        record = protocol(
            model,
            self.training,
            method=self.method,
            config=config,
            augment=self.augment,
            seed=seed,
            initial_backbone_sha256=initial,
            held_out=len(self.held_out),
            readout="student, direct, best epoch on held-out source images",
        )
        folder.configure({"protocol": record, "options": asdict(self.options)})
        if not folder.resume:
            folder.log("start", total=total, notes=[])
        self._loop()
        self.best.copy_to(model)
        result = {
            "images": len(self.training),
            "held_out": len(self.held_out),
            "skipped": [[str(path), reason] for path, reason in self.training.skipped],
            "accuracy": self.best_accuracy,
            "best_epoch": self.best_epoch,
            "epochs": -(-total // steps_per_epoch(len(self.training), config.batch)),
            **self.method.counts(),
            "protocol": record,
            "environment": environment(self.runtime),
        }
        summary = {"preset_config": asdict(config), "seed": seed, "held_out_accuracy": self.best_accuracy}
        with_history(model, training=summary)
        file = save_model(model.eval(), folder.path / "model.safetensors")
        folder.finish(result)
        folder.log("end")
        return TrainRun(folder.path, file, result, model)

    def _loop(self) -> None:
        """Step, log, evaluate on held-out source images at the end of each epoch, keep the best, save."""
        start = self._restore()
        self._training_mode()
        checkpoints = Checkpoints()
        steps = offline(self.method, self.training, self.views, self.runtime, start=start, labelled=True)
        with stop_signal() as stopped:
            for event in steps:
                self.folder.log_step(event)
                if event.epoch_end or event.last:
                    self._evaluate(event)
                stopping = stopped()  # asked once: a Ctrl-C between two looks must not skip the save
                if checkpoints.due(event) or stopping:
                    self._save(event.progress.step + 1)
                if stopping and not event.last:
                    raise Interrupted(event.progress.step + 1, self.folder.path)

    def _training_mode(self) -> None:
        """A model from a file is in evaluation mode; the batch norm of a frozen backbone must stay in it."""
        self.model.train()
        if self.config.freeze_backbone:
            self.model.backbone.eval()

    def _evaluate(self, event: Event) -> None:
        labels = torch.tensor(self.held_out.labels)
        probabilities = class_probabilities(self.model, self.held_out, self.runtime)
        self._training_mode()
        accuracy = float((probabilities.argmax(dim=1) == labels).double().mean())
        self.folder.log("held_out", step=event.progress.step + 1, accuracy=accuracy)
        if accuracy > self.best_accuracy:
            self.best_accuracy, self.best_epoch = accuracy, event.progress.epoch
            self.best = Adapter.of(self.model, self.method.moving_names())

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
