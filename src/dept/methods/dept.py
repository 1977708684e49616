"""DePT: visual prompt tuning for test-time domain adaptation. Gao et al., arXiv 2022.

Tunes prompts and head over a frozen ViT with pseudo-labels voted by a memory bank, a DINO loss on CLS, a
consistency loss and a diversity term on the aggregated prompts of each stage.
Cost: four forwards and one backward per batch. Fails when: the source model is right on too few images for a
vote to help, or the target's class balance is far from even (lower `w_class` then). It is slow: the paper makes about
6,000 steps, so for few images ask for steps (`max_iters`), not epochs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from dept.core import collective, losses
from dept.core.bank import MemoryBank
from dept.core.select import select
from dept.core.vit import Embedded, Output
from dept.data.loader import Batch
from dept.methods.base import Group, Passes, part, prefixed
from dept.methods.config import BaseConfig, OnlineConfig
from dept.methods.neo import recentered_bias
from dept.methods.regularised import Regularised
from dept.methods.shot import read_all


class DePT(Regularised):
    """Prompt tuning with refined pseudo-labels and hierarchical self-distillation."""

    name = "dept"
    title = "DePT"
    summary = "prompt tuning with bank-voted pseudo-labels and self-distillation (Gao et al., arXiv 2022)"
    settings = ("offline", "online")
    forwards_per_step = 5.0
    passes_per_epoch = 1
    networks = 2
    assumes_balance = True
    needs_prompts = True
    fewest_images, window_rate = 32, 5.0  # its votes lose accuracy from windows of 8, and gain from these
    enough_steps = 1200  # what took it from 69 to 82 % on the cartoons of docs/results.md; the paper makes 6,000
    views = "wss"  # weak (pseudo-label, bank), strong (teacher), strong (student)

    @dataclass(frozen=True)
    class Config(Regularised.Config, OnlineConfig):
        """Defaults are what the released code does (preset `official`); `paper` is the text where it differs."""

        lr: float = 5e-3
        """η, learning rate of prompts, head and projection heads"""
        backbone_lr: float = 2e-4
        """η of the backbone, if everything is tuned; 0 for the same as `lr`"""
        schedule: Literal["cosine", "constant"] = "cosine"
        """learning rate over the run"""
        epochs: int = 15
        """passes over the target images; divided by the ratio of images used, as the authors do"""
        tune: Literal["prompts", "all"] = "prompts"
        """what moves: prompts and head, or every parameter"""
        pseudo_labels: bool = True
        """L_pl on or off"""
        bank: bool = True
        """refine pseudo-labels by a vote in the memory bank"""
        neighbours: int = 10
        """k, neighbours in the vote (at most a fifth of the bank)"""
        bank_size: int = 0
        """N, slots of the bank; 0 for one per target image"""
        bank_refresh: int = 1
        """refill the bank by a teacher pass every N epochs (divided by the ratio of images used); 0 for FIFO only"""
        w_class: float = 1.0
        """weight of the class diversity (released code only); 0 switches it off"""
        recentre: bool = False
        """offline: begin with a head that takes up the mean of the target features, as NEO does (not in the paper)"""
        clip_by: Literal["stage", "tensor"] = "stage"
        """prompts are clipped stage by stage (the released code has a tensor for each), or all stages as one"""
        lean: bool = False
        """the teacher's weak view gives the pseudo-labels too: one forward fewer per step, not exact"""

    config: Config
    presets = {
        "official": {},
        # Online: batches arrive once, so no decay, no bank; the label is the student's own prediction.
        "online": {"schedule": "constant", "bank": False, "predict": "after"},
        "paper": {
            "w_class": 0.0,
            "w_div": 0.005,
            "reduction": "sum",
            "stage_weighting": "uniform",
            "bank_refresh": 0,
        },
    }

    @classmethod
    def scaled(cls, config: BaseConfig, ratio: float) -> BaseConfig:
        """Fewer images: more epochs, and the bank refreshed after as many steps as before."""
        scaled = super().scaled(config, ratio)
        assert isinstance(scaled, cls.Config)
        return replace(scaled, bank_refresh=int(scaled.bank_refresh / ratio))

    def tuned(self) -> list[Group]:
        """Prompts and head (or everything), clipped; projection heads, not clipped."""
        config = self.config
        if not (config.pseudo_labels or self.projects or config.w_class):
            raise ValueError("Every term of the loss is switched off: nothing is left to learn from.")
        by_stage = config.clip_by == "stage"
        groups = [Group(tuple(select(self.model, "prompts", "head")), config.lr, config.clip, by_stage)]
        if config.tune == "all":
            lr = config.backbone_lr or config.lr
            groups.append(Group(tuple(select(self.model, "backbone")), lr, config.clip))
        return groups + self.projection_groups(config.lr)

    def setup(self) -> None:
        """Teacher and center; the bank comes with the first images."""
        super().setup()
        self.bank: MemoryBank | None = None

    # -- the bank ------------------------------------------------------------------------------------------

    def begin(self, passes: Passes) -> None:
        """First fill of the bank; student and teacher are still the same network."""
        if self.config.recentre:
            # Pseudo-labels are as good as the start, and a shift of the mean is a large part of many domain gaps.
            head, (features, _, _) = self.model.head, read_all(self.model, passes)
            with torch.no_grad():
                head.bias.copy_(recentered_bias(head.weight, head.bias, features.mean(dim=0)))
            self.distillation.teacher.tensors["head.bias"].copy_(head.bias.detach())
        if self.config.bank and self.config.pseudo_labels:
            self.bank = MemoryBank.over(self.model.head, self.config.bank_size or passes.image_count)
            self._fill(passes)

    def refresh(self, passes: Passes, epoch: int) -> None:
        """Refill the bank by a teacher pass over all target images (released code, not in the text)."""
        every = self.config.bank_refresh
        if self.bank is not None and every and (epoch + 1) % every == 0:
            self._fill(passes)

    def _fill(self, passes: Passes) -> None:
        assert self.bank is not None
        outputs = [self.distillation.teach(batch.views[0], aggregated=False) for batch in passes()]
        features = torch.cat([output.features for output in outputs])
        probabilities = torch.cat([output.logits for output in outputs]).softmax(dim=-1)
        self.bank.refill(features, probabilities, self.generator)

    # -- one step ------------------------------------------------------------------------------------------

    def loss(self, batch: Batch) -> dict[str, Tensor]:
        """L = L_pl + β₁ L_cls + β₂ L_prompt - λ L_div, and AdaContrast's class diversity."""
        weak, strong_teacher, strong_student = batch.views
        config = self.config
        shared = self._embedded(weak)
        labels = self.pseudo_labels(shared) if config.pseudo_labels and not config.lean else None
        self.distillation.update_teacher()
        teacher = self._teach(strong_teacher, shared)
        if config.pseudo_labels and config.lean:
            labels = self._labels(self._weak)
        student = self.model.read(strong_student, aggregated=self.reads_prompts)
        terms: dict[str, Tensor] = {}  # [DePT Eq. L] their sum; `regulariser` gives the middle three, weighted
        if labels is not None:
            terms["pseudo_label"] = losses.cross_entropy(student.logits, labels)
        if self.projects:
            terms |= self.regulariser(student, teacher)
        if config.w_class:
            terms["class_diversity"] = config.w_class * losses.class_diversity(student.logits)
        return terms

    @torch.no_grad()
    def pseudo_labels(self, weak: Tensor | Embedded) -> Tensor:
        """ŷ (B,): argmax of the bank's vote around the student's feature, or of the student's own prediction."""
        return self._labels(self.model.read(weak))

    def _labels(self, output: Output) -> Tensor:
        if self.bank is None:
            return output.logits.argmax(dim=-1)
        return self.bank.vote(output.features, self.config.neighbours).argmax(dim=-1)

    @torch.no_grad()
    def _embedded(self, images: Tensor) -> Tensor | Embedded:
        """Patch tokens once for student and teacher, where they share the patch embedding."""
        # Not in a run of several processes, each of which reads some rows: this would embed all of them.
        shared = self.config.tune == "prompts" and self.model.prompts is not None and collective.size() == 1
        return self.model.embed(images) if shared else images

    def _teach(self, strong: Tensor, weak: Tensor | Embedded) -> Output:
        """The teacher's output on the strong view; its weak view, where it is needed, rides in the same batch."""
        if self.bank is None and not self.config.lean:
            return self.distillation.teach(strong, aggregated=self.reads_prompts)
        if collective.size() > 1:  # by itself: `Output.prompts` holds the process's own rows of one view
            assert isinstance(weak, Tensor)
            self._weak = self.distillation.teach(weak, aggregated=False)
            return self.distillation.teach(strong, aggregated=self.reads_prompts)
        views = self._embedded(strong)
        if isinstance(views, Embedded) and isinstance(weak, Embedded):
            joined: Tensor | Embedded = views._replace(tokens=torch.cat([views.tokens, weak.tokens]))
        else:
            assert isinstance(weak, Tensor)
            joined = torch.cat([strong, weak])
        both = self.distillation.teach(joined, aggregated=self.reads_prompts)
        count = len(strong)
        self._weak = Output(both.features[count:], both.logits[count:])
        return Output(both.features[:count], both.logits[:count], tuple(t[:count] for t in both.prompts))

    def after_step(self, batch: Batch) -> None:
        """The teacher's view of this batch enters the bank."""
        if self.bank is not None:
            self.bank.write(self._weak.features, self._weak.logits.softmax(dim=-1))

    # -- read-outs and state -------------------------------------------------------------------------------

    @torch.no_grad()
    def readouts(self, images: Tensor) -> dict[str, Tensor]:
        """{student, teacher} × {direct, kNN-refined}, as the authors log them."""
        outputs = {
            "student": self.model.read(images),
            "teacher": self.distillation.teach(images, aggregated=False),
        }
        scores = {name: output.logits.softmax(dim=-1) for name, output in outputs.items()}
        if self.bank is not None:
            for name, output in outputs.items():
                scores[f"{name}_knn"] = self.bank.vote(output.features, self.config.neighbours)
        return scores

    def state_dict(self) -> dict[str, Tensor]:
        """Adds the bank."""
        state = super().state_dict()
        return state if self.bank is None else state | prefixed("bank", self.bank.state_dict())

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Inverse of `state_dict`."""
        super().load_state_dict(state)
        self.bank = MemoryBank.restored(part(state, "bank"), self.model.head.weight.device)
