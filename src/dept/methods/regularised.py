"""What test-time DePT and its source training share: the hierarchical self-supervised regulariser of the paper."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dept.core import losses
from dept.core.collective import mean_over_rows
from dept.core.distillation import Distillation
from dept.core.schedules import teacher_temperature
from dept.core.vit import Output
from dept.methods.base import Group, Method, part, prefixed
from dept.methods.config import BaseConfig


class Regularised(Method):
    """A method with an EMA teacher, projection heads, and up to three self-supervised terms."""

    @dataclass(frozen=True)
    class Config(BaseConfig):
        """Weights and shape of the regulariser; defaults are the released code's."""

        nesterov: bool = True
        """Nesterov form of the momentum"""
        weight_decay: float = 1e-4
        """SGD weight decay"""
        batch: int = 128
        """B, images per step"""
        clip: float = 1.0
        """largest gradient norm of each tensor of the model (projection heads are not clipped)"""
        ema: float = 0.99
        """m, share of the old teacher that stays at each step"""
        w_cls: float = 0.1
        """β₁, weight of the DINO term on CLS; 0 switches it off"""
        w_prompt: float = 0.1
        """β₂, weight of the consistency of aggregated prompts; 0 switches it off"""
        w_div: float = 0.05
        """λ, weight of the diversity of prompts; 0 switches it off"""
        reduction: losses.Reduction = "mean"
        """terms on prompts: means of 1 - cos, or the sums of the text (see core/losses.py)"""
        stage_weighting: losses.StageWeighting = "softmax"
        """weights of the stages: softmax(1..M) or uniform 1/M"""
        student_temperature: float = 0.1
        """τ_s, temperature of the student's projection"""
        teacher_temperature: float = 0.07
        """τ_t, temperature of the teacher's projection"""
        teacher_warmup_from: float = 0.04
        """τ_t at the start of its warm-up"""
        teacher_warmup_epochs: int = 0
        """epochs over which τ_t is warmed up"""
        center_momentum: float = 0.9
        """share of the old DINO center that stays"""
        projection_hidden: int = 2048
        """hidden width of fresh projection heads"""
        projection_bottleneck: int = 256
        """bottleneck width of fresh projection heads"""
        projection_out: int = 2048
        """K, output width of fresh projection heads"""

    config: Config
    distils: bool = True  # whether the teacher is asked for anything

    def prepare(self) -> None:
        """Fresh projection heads, unless the model brings its own or no term needs them."""
        config = self.config
        self.reads_prompts = bool(config.w_prompt or config.w_div) and self.model.stages > 0
        self.projects = self.reads_prompts or config.w_cls > 0
        if not self.projects or len(self.model.projections):
            return
        with self.fresh_parameters():
            self.model.add_projections(
                hidden=config.projection_hidden,
                bottleneck=config.projection_bottleneck,
                out=config.projection_out,
            )

    def projection_groups(self, lr: float) -> list[Group]:
        """The projection heads as a group that is not clipped; nothing if no term needs them."""
        heads = [n for n, p in self.model.projections.named_parameters("projections") if p.requires_grad]
        return [Group(tuple(heads), lr)] if self.projects else []

    def setup(self) -> None:
        """Teacher and center; a teacher that nobody asks holds nothing."""
        config, names = self.config, self.trained_names if self.distils else ()
        self.distillation = Distillation(self.model, names, momentum=config.ema, center_momentum=config.center_momentum)

    def regulariser(self, student: Output, teacher: Output) -> dict[str, Tensor]:
        """β₁ L_cls + β₂ L_prompt - λ L_div, as named terms."""
        config, distillation = self.config, self.distillation
        ours = distillation.project(student)
        with torch.no_grad():
            theirs = distillation.project(teacher, teacher=True)
        terms: dict[str, Tensor] = {}
        if config.w_cls:
            terms["cls"] = config.w_cls * distillation.cls_term(
                ours,
                theirs,
                student_temperature=config.student_temperature,
                teacher_temperature=teacher_temperature(
                    self.progress.epoch,
                    start=config.teacher_warmup_from,
                    end=config.teacher_temperature,
                    warmup_epochs=config.teacher_warmup_epochs,
                ),
            )
        weighting, reduction = config.stage_weighting, config.reduction
        if config.w_prompt and ours.prompts:
            distance = losses.prompt_consistency(ours.prompts, theirs.prompts, weighting=weighting, reduction=reduction)
            terms["prompt"] = config.w_prompt * mean_over_rows(distance, len(ours.prompts[0]))
        if config.w_div and ours.prompts:
            spread = losses.prompt_diversity(ours.prompts, weighting=weighting, reduction=reduction)
            terms["prompt_diversity"] = -config.w_div * mean_over_rows(spread, len(ours.prompts[0]))
        return terms

    def state_dict(self) -> dict[str, Tensor]:
        """Adds teacher and center."""
        return super().state_dict() | prefixed("distillation", self.distillation.state_dict())

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Inverse of `state_dict`."""
        super().load_state_dict(state)
        self.distillation.load_state_dict(part(state, "distillation"))
