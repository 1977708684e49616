"""SWD: sliced Wasserstein discrepancy. Lee et al., CVPR 2019.

Two classifiers are made to disagree on target images, then the backbone to make them agree, where disagreement is the
sliced Wasserstein distance of their outputs. The authors published a toy only; steps and rates are those of MCD (Saito
et al., CVPR 2018) on VisDA, without MCD's optional balance term. The classifiers are linear (MCD: three layers with
dropout): the first is the model's own head, which predicts; the second is fresh and not kept. Cost: per step, forward
and backward of one source and four target batches (of both domains each time under batch norm), and a source forward.
Fails when: the classifiers agree from the start, or the learning rate is high.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from dept.core.adapter import pick
from dept.core.batch_norm import batch_norms
from dept.core.select import select
from dept.data.loader import Batch
from dept.methods.base import Group
from dept.methods.uda.base import PairedBatch, UDAConfig, UDAMethod


class SWD(UDAMethod):
    """Two classifiers against a backbone, in three phases per step."""

    name = "swd"
    title = "SWD"
    summary = "two classifiers disagree in sliced Wasserstein distance, the backbone mends it (Lee et al., CVPR 2019)"
    settings = ("uda",)
    forwards_per_step = 16.0

    @dataclass(frozen=True)
    class Config(UDAConfig):
        """MCD's VisDA settings."""

        lr: float = 1e-3
        """η of backbone and classifiers"""
        backbone_scale: float = 1.0
        """factor on η for backbone and prompts, which have no momentum"""
        nesterov: bool = False
        """Nesterov form of the classifiers' momentum"""
        weight_decay: float = 5e-4
        """SGD weight decay"""
        power: float = 0.0
        """exponent of the learning rate's decay; 0 for none"""
        epochs: int = 20
        """epochs of `iters_per_epoch` steps"""
        trade_off: float = 1.0
        """weight of the discrepancy"""
        projections: int = 128
        """random directions, fresh for every distance"""
        generator_steps: int = 4
        """updates of the backbone (phase C) per step"""

    config: Config

    def build(self) -> dict[str, nn.Module]:
        """The second classifier."""
        return {"second": nn.Linear(self.model.head.in_features, self.model.head.out_features)}

    def tuned(self) -> list[Group]:
        """The head (first classifier); backbone and prompts (generator)."""
        config = self.config
        return [
            Group(tuple(select(self.model, "head")), config.lr),
            Group(tuple(select(self.model, "encoder")), config.lr * config.backbone_scale),
        ]

    def setup(self) -> None:
        """The generator is moved without momentum, as in MCD."""
        assert self.optimizer is not None
        self.optimizer.param_groups[1] |= {"momentum": 0.0, "nesterov": False}
        self.batch_norm = bool(batch_norms(self.model))

    def paired_loss(self, batch: PairedBatch) -> dict[str, Tensor]:
        """Phase A: cross-entropy of both classifiers on the source.   [SWD Eq. 1]"""
        return self._source_terms(self._features(batch, source=True), batch)

    def step(self, batch: Batch) -> dict[str, float]:
        """A: all learn the source. B: classifiers disagree on the target. C: the backbone makes them agree."""
        terms = super().step(batch)
        assert isinstance(batch, PairedBatch)
        head, encoder = (list(pick(self.model, group.names).values()) for group in self.groups)
        classifiers = [*head, *self.extra.parameters()]
        with torch.no_grad():
            source = self._features(batch, source=True)
        target = self._features(batch, source=False)
        apart = torch.stack(list(self._source_terms(source, batch).values())).sum()
        self._update(apart - self.config.trade_off * self._discrepancy(target.detach()), classifiers)
        discrepancy = torch.zeros(())
        for number in range(self.config.generator_steps):
            # B has left the backbone alone: its features serve for the first update too.
            target = self._features(batch, source=False) if number else target
            discrepancy = self.config.trade_off * self._discrepancy(target)
            self._update(discrepancy, encoder)
        return terms | {"discrepancy": float(discrepancy.detach())}

    def _features(self, batch: PairedBatch, *, source: bool) -> Tensor:
        """(B, D) of one domain; computed in one batch with the other one only where batch norm wants it."""
        if self.batch_norm:
            both = self.halves(batch)
            return both.source if source else both.target
        return self.model.read(batch.source_views[0] if source else batch.views[0]).features

    def _source_terms(self, features: Tensor, batch: PairedBatch) -> dict[str, Tensor]:
        return {
            "cross_entropy": self.source_loss(self.model.head(features), batch),
            "cross_entropy_second": self.source_loss(self.extra["second"](features), batch),
        }

    def _discrepancy(self, features: Tensor) -> Tensor:
        first, second = self.model.head(features), self.extra["second"](features)
        directions = torch.randn(first.shape[1], self.config.projections, generator=self.generator)
        directions = (directions / directions.norm(dim=0)).to(first)
        return sliced_wasserstein(first.softmax(dim=-1), second.softmax(dim=-1), directions)

    def _update(self, loss: Tensor, parameters: list[Tensor]) -> None:
        """One optimiser step on some parameters: the others have no gradient and are left alone."""
        assert self.optimizer is not None
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward(inputs=parameters)  # type: ignore[no-untyped-call]
        self.descend()


def sliced_wasserstein(one: Tensor, two: Tensor, directions: Tensor) -> Tensor:
    """Mean squared distance of the sorted projections: (B, C), (B, C), unit columns (C, R) -> ()   [SWD Eq. 7]"""
    first, second = ((rows @ directions).sort(dim=0).values for rows in (one, two))
    return (first - second).square().mean()
