"""CoTTA: continual test-time domain adaptation. Wang et al., CVPR 2022.

For streams that go on for long and change. All weights of a student learn the prediction of a teacher, its average over
time; where the source model is unsure of a batch, the teacher's logits are averaged over augmented views. After each
step a few weights, drawn at random, return to the source's, so that it is not forgotten. The teacher predicts.
Deviations: augmented views are the strong views of all methods here, four of them (released: 32, preset `released`);
batch norm, if any, keeps the source's statistics.
Cost: three forwards and a full backward per batch, and a forward per augmented view of an unsure batch; memory for four
copies of all weights. Fails when: the learning rate does not fit: published results on ViTs depend on it more than on
anything else, and streams are often too short for a teacher that follows by a thousandth per step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dept.core.adapter import Adapter
from dept.core.losses import symmetric_cross_entropy
from dept.core.select import select
from dept.data.loader import Batch
from dept.methods.base import Group
from dept.methods.mean_teacher import MeanTeacher


class CoTTA(MeanTeacher):
    """A slow teacher's predictions, learned by all weights, some of which return to the source."""

    name = "cotta"
    title = "CoTTA"
    summary = "all weights learn a slow teacher's predictions, some return to the source (Wang et al., CVPR 2022)"
    settings = ("online",)
    forwards_per_step = 5.0

    @dataclass(frozen=True)
    class Config(MeanTeacher.Config):
        """Constants are those for ImageNet-C; the learning rate is the one used for a ViT-B."""

        lr: float = 5e-3
        """η, learning rate"""
        restore: float = 0.001
        """p, probability that a weight returns to the source's after a step; 0 for never"""
        augmentations: int = 4
        """N, augmented views of every image; 0 for none"""
        confidence: float = 0.1
        """p_th, mean confidence of the source model below which the views are used; raise it for few classes"""

    config: Config
    reuses_forward = True
    presets = {"online": {}, "released": {"augmentations": 32}}

    def prepare(self) -> None:
        """The view that is predicted, and the augmented ones."""
        self.views = "t" + "s" * self.config.augmentations

    def tuned(self) -> list[Group]:
        """Everything."""
        return [Group(tuple(select(self.model, "all")), self.config.lr)]

    def setup(self) -> None:
        """The source's weights."""
        super().setup()
        self.source = self.student.clone()

    def loss(self, batch: Batch) -> dict[str, Tensor]:
        """Symmetric cross-entropy of student and teacher   [CoTTA Eq. L]"""
        clean, *augmented = batch.views
        self._logits = self.target(clean, augmented)
        return {"consistency": symmetric_cross_entropy(self.model(clean), self._logits).mean()}

    @torch.no_grad()
    def target(self, clean: Tensor, augmented: Sequence[Tensor]) -> Tensor:
        """The teacher's logits (B, C), averaged over augmented views if the source model is unsure   [CoTTA Eq. ŷ]"""
        if augmented:
            source = self.model.read(clean, adapter=self.source).logits.softmax(dim=-1)
            if float(source.max(dim=-1).values.mean()) < self.config.confidence:
                return torch.stack([self.teach(view) for view in augmented]).mean(dim=0)
        return self.teach(clean)

    def after_step(self, batch: Batch) -> None:
        """The teacher follows; then some of the student's weights return to the source's   [CoTTA Eq. restore]"""
        super().after_step(batch)
        restore_some(self.student, self.source, self.config.restore, self.device_generator())


def restore_some(student: Adapter, source: Adapter, probability: float, generator: torch.Generator) -> None:
    """Each number of the student's tensors becomes the source's with this probability, in place."""
    for name, tensor in student.tensors.items():
        chosen = torch.rand(tensor.shape, generator=generator, device=tensor.device) < probability
        tensor.copy_(torch.where(chosen, source.tensors[name], tensor))
