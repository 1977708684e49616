"""The contract of unsupervised domain adaptation: labelled source and unlabelled target images in every step.

The frame is that of the Transfer Learning Library (TLL): SGD with Nesterov momentum, the backbone at a tenth of the
learning rate, lr_t = lr (1 + 0.001 t)^-0.75, 30 epochs of 1000 steps. Two deviations hold for all methods. TLL puts a
bottleneck (Linear, BatchNorm, ReLU) between backbone and classifier; here the features go straight to the model's own
linear head (through the batch norm in the adversarial methods, which need it), so that what is written is an ordinary
dept model. And images are cropped at random (TLL: at the centre).

Batch norm of the backbone is in training mode and sees both halves as one batch, as in TLL (CAN differs, see there).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from dept.core import losses
from dept.core.adapter import Adapter
from dept.core.select import select
from dept.data.loader import Batch
from dept.methods.base import Group, Method, Passes, Progress, part, prefixed
from dept.methods.config import BaseConfig


@dataclass(frozen=True)
class PairedBatch(Batch):
    """`views` and `index` are the target's; beside them views and labels (B,) of source images."""

    source_views: tuple[Tensor, ...]
    source_labels: Tensor


@dataclass(frozen=True)
class PairedPasses:
    """Passes over both domains as test views; called, it passes over the target. `labels` (n,) are the source's."""

    source: Passes
    target: Passes
    labels: Tensor

    def __call__(self) -> Iterable[Batch]:
        return self.target()

    @property
    def image_count(self) -> int:
        """Target images."""
        return self.target.image_count


class Halves(NamedTuple):
    """Features (B, D) and logits (B, C) of the source and the target half of a step."""

    source: Tensor
    target: Tensor
    source_logits: Tensor
    target_logits: Tensor


@dataclass(frozen=True)
class UDAConfig(BaseConfig):
    """TLL's frame."""

    lr: float = 0.01
    """η of head, prompts and the method's own modules"""
    backbone_scale: float = 0.1
    """factor on η for the backbone"""
    nesterov: bool = True
    """Nesterov form of the momentum"""
    weight_decay: float = 1e-3
    """SGD weight decay"""
    decay: float = 0.001
    """learning rate of step t: η (1 + decay · t)^-power"""
    power: float = 0.75
    """exponent of that decay; 0 for none"""
    batch: int = 32
    """B, images per step of each domain"""
    epochs: int = 30
    """epochs of `iters_per_epoch` steps"""
    iters_per_epoch: int = 1000
    """steps that count as an epoch"""

    @property
    def images_per_step(self) -> int:
        """Images of both domains in a step."""
        return 2 * self.batch


class UDAMethod(Method):
    """A method that sees source labels. A subclass gives `paired_loss` and, if it needs modules, `build`.

    `extra` holds those modules (discriminators, second classifiers): trained and resumed, never written to the model.
    """

    views = "w"
    Config = UDAConfig
    config: UDAConfig
    settled: bool = False  # a method that sets it in `refresh` ends the run there

    def build(self) -> dict[str, nn.Module]:
        """Fresh modules of the method's own, trained at the learning rate of the head."""
        return {}

    def paired_loss(self, batch: PairedBatch) -> dict[str, Tensor]:
        """Named, weighted terms; their sum is minimised."""
        raise NotImplementedError(f"{type(self).__name__} must define `paired_loss`.")

    def choose(self, source: list[int], target: list[int], generator: torch.Generator) -> tuple[list[int], list[int]]:
        """Positions of the images of a step, given the random ones of both domains; `generator` is the step's own."""
        return source, target

    def prepare(self) -> None:
        """The method's own modules, on the model's device."""
        with self.fresh_parameters():
            self.extra = nn.ModuleDict(self.build()).to(self.model.head.weight.device)

    def tuned(self) -> list[Group]:
        """Head and prompts at η, the backbone at a tenth of it."""
        config = self.config
        return [
            Group(tuple(select(self.model, "prompts", "head")), config.lr),
            Group(tuple(select(self.model, "backbone")), config.lr * config.backbone_scale),
        ]

    def loss(self, batch: Batch) -> dict[str, Tensor]:
        """`paired_loss` of a batch that has both domains."""
        if not isinstance(batch, PairedBatch):
            raise ValueError(f"Method {self.name!r} needs source and target images together: run it by `dept uda`.")
        return self.paired_loss(batch)

    def halves(self, batch: PairedBatch) -> Halves:
        """One forward of both domains together."""
        source = batch.source_views[0]
        output = self.model.read(torch.cat([source, batch.views[0]]))
        count = len(source)
        features, logits = output.features, output.logits
        return Halves(features[:count], features[count:], logits[:count], logits[count:])

    def source_loss(self, logits: Tensor, batch: PairedBatch) -> Tensor:
        """Cross-entropy with the source labels."""
        return losses.cross_entropy(logits, batch.source_labels)

    @torch.no_grad()
    def predict(self, images: Tensor) -> Tensor:
        """Logits (B, C) of the model's own head, with the running statistics of batch norm."""
        with evaluating(self.model):
            return super().predict(images)

    # -- learning rates, counts and state: the base class, and the method's own modules ---------------------

    def _build_optimizer(self) -> torch.optim.Optimizer:
        optimizer, lr = super()._build_optimizer(), self.config.lr
        if len(self.extra):
            optimizer.add_param_group({"params": list(self.extra.parameters()), "lr": lr, "base_lr": lr})
        return optimizer

    def lr_scale(self, progress: Progress) -> float:
        """(1 + decay · t)^-power, times the schedule if it is not constant."""
        return super().lr_scale(progress) * inverse_decay(progress.step, self.config.decay, self.config.power)

    def counts(self) -> dict[str, int]:
        """`tunable_total` counts the method's own modules too."""
        counts = super().counts()
        own = sum(parameter.numel() for parameter in self.extra.parameters())
        return counts | {"tunable_total": counts["tunable_total"] + own}

    def state_dict(self) -> dict[str, Tensor]:
        """Adds the method's own modules and the model's buffers (batch norm)."""
        extra = {name: tensor.detach() for name, tensor in self.extra.state_dict().items()}
        buffers = prefixed("buffers", dict(self.model.named_buffers()))
        return super().state_dict() | prefixed("extra", extra) | buffers

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Inverse of `state_dict`."""
        super().load_state_dict(state)
        self.extra.load_state_dict(part(state, "extra"))
        Adapter(part(state, "buffers")).copy_to(self.model)


def inverse_decay(step: int, decay: float, power: float) -> float:
    """(1 + decay · t)^-power: 1 at the start. TLL: 0.001, 0.75; CAN: 0.0005, 2.25."""
    return float((1.0 + decay * step) ** -power)


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """The model in evaluation mode, and back to the mode it was in."""
    training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(training)
