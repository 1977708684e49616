"""DePT+: information maximisation on the prompts, from a re-centred start, with labels from neighbours. Ours, no paper.

Tunes DePT's prompts with another objective. The head takes up the mean of the target's features before the first step
(as NEO does), so that first labels and memory are made by a model that no longer leans to a few classes. Then every
prediction is to become confident, the mean prediction even (SHOT's two terms), and each image is to agree with the
mean prediction of its neighbours in a memory of all images (DePT's vote, kept soft). Weights of the head stay, so that
classes keep their meaning. One weak view does: no teacher, no strong views, no projection heads.
Where a batch is too small to hold all classes, the mean prediction is completed by the memory's.
In a stream the head follows the running mean of features, as far as several classes were predicted so far: the mean of
one class alone is that class, and not a shift.
Cost: one forward and one backward per batch, one pass over all images at the start. Fails when: the target's classes
are far from balanced (preset `unbalanced` leaves out what pulls them there).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from dept.core import losses
from dept.core.select import select
from dept.core.vit import Output
from dept.data.loader import Batch
from dept.methods.base import Group, Passes
from dept.methods.neighbourhood import Neighbourhood
from dept.methods.neo import recentered_bias, shrinkage
from dept.methods.shot import read_all

IMAGES_PER_CLASS = 4
"""in a batch, from which on its mean prediction speaks for all classes"""
CLASSES = 8
"""predicted so far, from which on a running mean of features is trusted"""


class DePTPlus(Neighbourhood):
    """Information maximisation and neighbours' labels on prompts."""

    name = "dept+"
    title = "DePT+"
    summary = "information maximisation and neighbours' soft labels on prompts, from a re-centred start (ours)"
    settings = ("offline", "online")
    forwards_per_step = 2.0
    assumes_balance = True
    needs_prompts = True
    enough_steps = 300
    reuses_forward = True
    state_names = ("mean", "predicted")

    @dataclass(frozen=True)
    class Config(Neighbourhood.Config):
        """First values, taken from DePT and SHOT where they have one. They have not been searched."""

        weight_decay: float = 0.0
        """SGD weight decay; prompts of a trained source model are not to be drawn to 0"""
        batch: int = 32
        """B, images per step: a small folder gives many steps"""
        neighbours: int = 10
        """k, neighbours whose mean prediction is the label (at most a fifth of the images in memory)"""
        w_label: float = 0.5
        """weight of the cross-entropy to the neighbours' mean prediction; 0 switches it off"""
        w_class: float = 1.0
        """weight of the evenness of the mean prediction; 0 where classes may be far from balanced"""
        recentre: bool = True
        """the head takes up the mean of the target features: before the first step, or batch by batch in a stream"""
        view: Literal["weak", "test"] = "weak"
        """the view that is learned from"""

    config: Config
    presets = {
        "offline": {},
        # The view that is predicted is the one that is learned from: one forward for both.
        "online": {"schedule": "constant", "epochs": 1, "view": "test"},
        # For targets whose classes may be far from balanced: nothing that pulls them there.
        "unbalanced": {"w_class": 0.0, "recentre": False, "w_label": 1.0},
    }

    def prepare(self) -> None:
        """One view, as the Config says."""
        self.views = self.config.view[0]

    def tuned(self) -> list[Group]:
        """The prompts; and the bias of the head, which is set once and then stays."""
        prompts = Group(tuple(select(self.model, "prompts")), self.config.lr, self.config.clip, by_stage=True)
        return [prompts, Group(("head.bias",), lr=0.0)]

    def setup(self) -> None:
        """The bias of the source model, which shifts are relative to; nothing seen yet of a stream."""
        super().setup()
        self.source_bias = self.model.head.bias.detach().clone()
        self.mean = torch.zeros_like(self.model.head.weight[0])
        self.predicted = torch.zeros_like(self.source_bias)

    @torch.no_grad()
    def begin(self, passes: Passes) -> None:
        """Re-centre the head, then fill the memory: one pass, because features do not depend on the head."""
        features, logits, index = read_all(self.model, passes)
        if self.config.recentre:
            self._shift_head(features.mean(dim=0))
            logits = self.model.head(features)
        self.fill(features, logits, index)

    def _shift_head(self, mean: Tensor) -> None:
        head = self.model.head
        head.bias.copy_(recentered_bias(head.weight, self.source_bias, mean))

    def loss(self, batch: Batch) -> dict[str, Tensor]:
        """L = H(p) - w_class H(p̄) + w_label CE(p, q), q the neighbours' mean prediction   [DePT+ Eq. L]"""
        config, output = self.config, self.model.read(batch.views[0])
        if config.recentre and not self.by_index:
            output = self._recentred(output)
        self._logits = logits = output.logits
        bank, slots = self.remember(batch, output)
        terms = {"entropy": losses.entropy(logits).mean()}
        if config.w_class:
            share = min(1.0, len(slots) / (IMAGES_PER_CLASS * logits.shape[1]))
            rest = bank.probabilities[: bank.filled].mean(dim=0)
            terms["class_diversity"] = config.w_class * evenness(logits, rest, share)
        if config.w_label and len(bank) > 1:
            labels = bank.probabilities[bank.nearest(slots, config.neighbours)].mean(dim=1)
            terms["label"] = config.w_label * losses.cross_entropy(logits, labels)
        return terms

    def _recentred(self, output: Output) -> Output:
        """A batch of a stream, through a head that takes up the mean of all features so far."""
        features = output.features.detach()
        with torch.no_grad():
            self.predicted += output.logits.softmax(dim=-1).sum(dim=0)
            seen = float(self.predicted.sum())
            self.mean.lerp_(features.mean(dim=0), len(features) / seen)
            self._shift_head(self.mean * shrinkage(round(seen), 16.0) * variety(self.predicted))
        return Output(output.features, self.model.head(output.features))


def variety(predicted: Tensor) -> float:
    """How far a mean of features is one over classes, 0 (one class) to 1: from how often each was predicted (C,).

    Effective classes, e to the entropy of their shares, against `CLASSES`, or all there are if they are fewer.
    """
    shares = predicted / predicted.sum()
    effective = float((-(shares * (shares + 1e-12).log()).sum()).exp())
    return min(1.0, (effective - 1) / (min(len(predicted), CLASSES) - 1))


def evenness(logits: Tensor, rest: Tensor, share: float) -> Tensor:
    """-H(s p̄ + (1 - s) r) / s: negative entropy of the mean prediction p̄ of a batch, completed by r of all images.

    Divided by s, so that the pull on a batch does not fade with its share of the mean. (B, C), (C,) -> ()
    """
    mean = share * logits.softmax(dim=-1).mean(dim=0) + (1 - share) * rest
    return (mean * (mean + 1e-8).log()).sum() / share
