"""The method of source training: labels in place of pseudo-labels, every parameter moving.

A prompted model learns by label-smoothed cross-entropy on a strong view plus the three terms of the regulariser, a
plain one by label-smoothed cross-entropy on weak views. Preset `official` is the released recipe. The defaults differ
from it in four settings, which make short runs on few images safer: gradients are clipped tensor by tensor (`clip`),
the warm-up is at most a tenth of the run (`warmup_share`), a fresh head starts small (`head_init`), and the teacher
starts as the student (`teacher_start`).
Cost: one forward and backward per batch, and a teacher's forward for a prompted model. Fails when: images per class are
few, since every parameter moves (`freeze_backbone` trains prompts and head alone).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from dept.core import losses, schedules
from dept.core.adapter import Adapter, pick
from dept.core.projection import ProjectionHead, projection_sizes
from dept.core.select import select
from dept.core.vit import Output, fresh_prompts
from dept.data.loader import Batch, LabelledBatch
from dept.methods.base import Group, Progress, part, prefixed
from dept.methods.regularised import Regularised
from dept.methods.ttt import ROTATIONS, rotation_loss
from dept.methods.ttt_plus import PROJECTION, contrastive_loss

OFFICIAL = {"clip": 0.0, "warmup_share": 0.0, "head_init": "uniform", "teacher_start": "fresh"}
# The text has no more than the cross-entropy. Where it is silent, the released code speaks.
PAPER = OFFICIAL | {"self_supervised": False, "label_smoothing": 0.0}


class SourceTraining(Regularised):
    """Labels in place of pseudo-labels, every parameter moving."""

    name = "source-training"
    title = "Source training"
    summary = "supervised training of the source model"
    settings = ("train",)

    @dataclass(frozen=True)
    class Config(Regularised.Config):
        """Defaults: the released recipe with clipping, a bounded warm-up and a quiet start (see `official`)."""

        lr: float = 5e-4
        """η of the backbone"""
        new_lr_scale: float = 10.0
        """factor on η for prompts, head and projection heads"""
        schedule: Literal["cosine"] = "cosine"
        """learning rate over the run, after the warm-up"""
        epochs: int = 10
        """passes over the source images"""
        label_smoothing: float = 0.1
        """ε of the smoothed labels"""
        self_supervised: bool = True
        """add the three terms of the regulariser (prompted models only)"""
        w_div: float = 0.005
        """λ, weight of the diversity of prompts; 0 switches it off"""
        warmup: int = -1
        """steps of linear warm-up; -1 for M·P (see `warmup_share`), 0 for none"""
        warmup_share: float = 0.1
        """largest share of the steps that a warm-up of M·P takes; 0 for no limit (released)"""
        head_init: Literal["normal", "uniform"] = "normal"
        """fresh head: normal with deviation 0.02 and no bias, or uniform within 1/√D as torch does it (released)"""
        teacher_start: Literal["student", "fresh"] = "student"
        """the teacher starts as the student, or with random prompts and projection heads of its own (released)"""
        freeze_backbone: bool = False
        """train prompts and head only"""
        held_out: float = 0.1
        """share of the source images that picks the best epoch"""
        crop_scale: tuple[float, float] = (0.6, 1.0)
        """area range of the strong crop"""
        aux: Literal["none", "rotation", "hypothesis", "contrastive"] = "none"
        """also learn by how much an image was turned (for the method ttt), a second classifier (hdmi), or which views
        are of the same image (ttt++)"""

    config: Config
    presets = {"official": OFFICIAL, "paper": PAPER}

    def prepare(self) -> None:
        """Two strong views for a prompted model that distils, one otherwise; weak views for a plain model."""
        if self.config.head_init == "uniform" and self.model.fresh_head:
            self._redraw_head()
        self.model.fresh_head = False  # from here on it is trained
        task = self.config.aux
        if task != "none" and (self.model.auxiliary is None or self.model.auxiliary_task != task):
            outputs = {"rotation": ROTATIONS, "hypothesis": self.model.head.out_features, "contrastive": PROJECTION}
            with self.fresh_parameters():
                self.model.add_auxiliary(outputs[task], task)
        self.distils = self.config.self_supervised and self.model.stages > 0
        self.views = "s" if self.model.stages else "w"
        if self.distils or task == "contrastive":
            self.views = "s" + self.views
        if self.distils:
            super().prepare()
            self.distils = self.projects  # with all weights at 0 there is nothing to learn from a teacher
        else:
            self.reads_prompts = self.projects = False

    def setup(self) -> None:
        """Teacher and center."""
        super().setup()
        if self.distils and self.config.teacher_start == "fresh":
            self._redraw_teacher()

    @torch.no_grad()
    def _redraw_head(self) -> None:
        """Weights and biases as `nn.Linear` draws them: U(±1/√D)."""
        head = self.model.head
        with self.fresh_parameters():
            drawn = nn.Linear(head.in_features, head.out_features)
        head.load_state_dict(drawn.state_dict())

    def _redraw_teacher(self) -> None:
        """Prompts and projection heads from a draw of their own: the released code builds two networks."""
        teacher, model = self.distillation.teacher.tensors, self.model
        sizes, width = projection_sizes(model.projections), model.token_width
        with self.fresh_parameters():
            for name in self.prompt_names():  # P are drawn, so that their bound is that of P prompts
                stages, count, _ = teacher[name].shape
                teacher[name].copy_(fresh_prompts(stages, model.prompts_per_stage, width)[:, :count])
            heads = nn.ModuleList(ProjectionHead(width, **sizes) for _ in model.projections)
        for name, drawn in heads.named_parameters("projections"):
            if drawn.requires_grad:
                teacher[name].copy_(drawn.detach())

    def tuned(self) -> list[Group]:
        """Backbone at η; prompts, head and projection heads at ten times that."""
        config = self.config
        new = config.lr * config.new_lr_scale
        groups = [Group((*self.prompt_names(), *select(self.model, "head")), new, config.clip)]
        if not config.freeze_backbone:
            groups.append(Group(tuple(select(self.model, "backbone")), config.lr, config.clip))
        if self.model.auxiliary is not None:
            groups.append(Group(tuple(n for n, _ in self.model.auxiliary.named_parameters("auxiliary")), new))
        return groups + self.projection_groups(new)

    def prompt_names(self) -> list[str]:
        """Names of the prompts that are trained."""
        return select(self.model, "prompts")

    def per_sample(self, batch: Batch, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """What each sample of the batch has of its own, made of the trained tensors or a teacher's; here nothing."""
        return {}

    def loss(self, batch: Batch) -> dict[str, Tensor]:
        """Smoothed cross-entropy on the student's view, plus the regulariser."""
        assert isinstance(batch, LabelledBatch)
        own = Adapter(self.per_sample(batch, pick(self.model, self.trained_names)))
        student = self.model.read(batch.views[-1], adapter=own, aggregated=self.reads_prompts)
        terms = {"cross_entropy": losses.cross_entropy(student.logits, batch.labels, self.config.label_smoothing)}
        if self.distils:
            self.distillation.update_teacher()
            replaced = self.per_sample(batch, self.distillation.teacher.tensors)
            teacher = self.distillation.teach(batch.views[0], aggregated=self.reads_prompts, replaced=replaced)
            terms |= self.regulariser(student, teacher)
        return terms | self._second_task(batch, student, own)

    def _second_task(self, batch: LabelledBatch, student: Output, own: Adapter) -> dict[str, Tensor]:
        """The loss of the auxiliary head, if there is one to train."""
        task, head, smoothing = self.config.aux, self.model.auxiliary, self.config.label_smoothing
        if task == "none" or head is None:
            return {}
        if task == "rotation":
            return {task: rotation_loss(self.model, batch.views[-1], self.generator, own)}
        if task == "hypothesis":
            return {task: losses.cross_entropy(head(student.features), batch.labels, smoothing)}
        return {task: contrastive_loss(self.model, batch.views[0], student.features, own)}

    def lr_scale(self, progress: Progress) -> float:
        """Warm-up (one step per prompt token, unless that is too large a share of the run), then cosine."""
        warmup, share = self.config.warmup, self.config.warmup_share
        if warmup < 0:
            warmup = self.model.stages * self.model.prompts_per_stage
            warmup = min(warmup, int(share * progress.total)) if share else warmup
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
