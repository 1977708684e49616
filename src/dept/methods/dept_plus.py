"""DePT+: information maximisation on the prompts, from a re-centred start, with labels for two views. Ours, no paper.

Tunes DePT's prompts with SHOT's objective. Before the first step the head absorbs the mean of the target's features, as
in NEO, so that the first labels come from a model that no longer leans to a few classes. Then predictions become
confident while their mean stays even, and each image learns the label of its nearest class centroid, recomputed every
epoch (SHOT's three terms). A strong view of the image learns the same label, as in DePT: what is learned must not
depend on colours and crops. The weights of the head stay fixed, so that classes keep their meaning.
Where a batch is too small to hold all classes, its mean prediction is completed by that of all images.
How far the source model is to be trusted shows when the head is re-centred: a model that is right keeps its labels, one
that is lost changes most of them. The more stay, the more the class shares that the model sees count as the target's,
and the less even ones. And the less a centroid label counts if the nearest neighbours disagree with it: centroids of
absent or rare classes take images from others. Shares that the user declares (`prior`) are taken as they are.
Labels of a lost model are worth little: at the start they count as far as it is trusted, and more and more from there.
Class shares count most at the start and least at the end: far from the source, a class that is not found early is not
found at all, but the target's shares need not be exactly those that are expected.
Steps are relative to the size of the prompts: a LayerNorm reads them first, so that only their direction counts.
Prompts of a trained model are small, those that begin as tokens of an image up to 300 times as large.
In a stream there are no centroid labels, and steps are small. The head follows the running mean of the features, the
more so the more classes have been predicted: the mean of a single class is that class, not a shift.
Cost: two forwards and two backwards per batch, one pass over all images per epoch. Fails when: the target's classes are
far from balanced, the source model is mostly wrong, and nobody says so (preset `unbalanced` leaves out what pulls to
even shares).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from dept.core import losses
from dept.core.bank import MemoryBank
from dept.core.select import select
from dept.core.vit import Output
from dept.data.loader import Batch
from dept.methods.base import Group, Method, Passes
from dept.methods.config import OfflineConfig
from dept.methods.neo import recentered_bias, shrinkage
from dept.methods.shot import centroid_labels, read_all

IMAGES_PER_CLASS = 4
"""in a batch, from which on its mean prediction speaks for all classes"""
LEAST_SHARE = 1e-3
"""of a class that is expected to be rarer: a prediction of it has a price, but not an infinite one"""
STREAMED = {"w_class": 1.0, "relative": False, "lr": 5e-3, "clip": 1.0}
"""SHOT's weight and DePT's own steps: a stream has no last step"""
CLASSES = 8
"""predicted so far, from which on a running mean of features is trusted"""


class DePTPlus(Method):
    """Information maximisation and centroid labels on prompts."""

    name = "dept+"
    title = "DePT+"
    summary = "information maximisation and centroid labels on prompts, from a re-centred start (ours)"
    settings = ("offline", "online")
    forwards_per_step = 4.0
    passes_per_epoch = 1
    assumes_balance = True
    needs_prompts = True
    enough_steps = 300
    window_rate = 5.0
    reuses_forward = True
    state_names = ("mean", "predicted", "labels", "weights", "expected", "trusted")

    @dataclass(frozen=True)
    class Config(OfflineConfig):
        """SHOT's weights; steps that fit prompts of any size."""

        lr: float = 10.0
        """η of the prompts, for prompts of size 1 (the RMS of a stage) if steps are relative"""
        relative: bool = True
        """steps relative to the size that each stage's prompts begin with"""
        weight_decay: float = 0.0
        """weight decay; prompts of a trained source model are not to be drawn to 0"""
        clip: float = 0.0
        """largest gradient norm of the prompts of each stage; 0 for none"""
        batch: int = 32
        """B, images per step: a small folder gives many steps"""
        w_label: float = 0.3
        """weight of the cross-entropy to centroid labels; 0 switches it off"""
        w_strong: float = 0.3
        """the same for a strong view of the image; 0 does without that view"""
        w_class: float = 0.5
        """weight of the expected class shares in the mean prediction, at the last step; 0 where they may be far off"""
        w_class_start: float = 2.0
        """the same at the first step; in between it changes evenly"""
        recentre: bool = True
        """the head takes up the mean of the target features: before the first step, or batch by batch in a stream"""
        view: Literal["weak", "test"] = "weak"
        """the view that is learned from without labels"""
        trust: bool = True
        """offline: judge the source model by the labels that re-centring keeps; without, it is taken to be lost"""
        neighbours: int = 10
        """k, nearest images whose mean prediction a centroid label is compared with (at most a fifth of all)"""

    config: Config
    presets = {
        "offline": {},
        # The view that is predicted is the one that is learned from: one forward for both.
        "online": {"schedule": "constant", "epochs": 1, "view": "test", "w_strong": 0.0} | STREAMED,
        # For targets whose classes may be far from balanced: nothing that pulls them there.
        "unbalanced": {"w_class": 0.0, "w_class_start": 0.0, "recentre": False, "w_label": 1.0, "w_strong": 1.0},
    }

    def prepare(self) -> None:
        """One view or two, as the Config says."""
        self.views = self.config.view[0] + ("s" if self.config.w_strong else "")

    def tuned(self) -> list[Group]:
        """The prompts; and the bias of the head, which is set once and then stays."""
        prompts = Group(tuple(select(self.model, "prompts")), self.config.lr, self.config.clip, by_stage=True)
        return [prompts, Group(("head.bias",), lr=0.0)]

    def setup(self) -> None:
        """The bias of the source model, which shifts are relative to; nothing seen yet."""
        self.source_bias = self.model.head.bias.detach().clone()
        self.mean = torch.zeros_like(self.model.head.weight[0])
        self.predicted = torch.zeros_like(self.source_bias)
        self.labels: Tensor | None = None  # ŷ, (n,)
        self.weights: Tensor | None = None  # v, (n,)
        self.trusted = self.mean.new_zeros(())  # λ, ()
        declared = self.declared_shares
        self.expected = self.mean.new_tensor(declared).clamp_min(LEAST_SHARE) if declared else None  # π, (C,)
        if self.model.prompts is not None:
            self.sizes = self.model.prompts.detach().square().mean(dim=(1, 2), keepdim=True).sqrt()

    def descend(self) -> None:
        """For prompts p = s u, s their size (M, 1, 1) at the start, a step of u: s² times as long as one of p."""
        prompts = self.model.prompts
        if not self.config.relative or prompts is None:
            return super().descend()
        before = prompts.detach().clone()
        super().descend()
        with torch.no_grad():
            prompts.copy_(torch.lerp(before, prompts, self.sizes**2))

    @torch.no_grad()
    def begin(self, passes: Passes) -> None:
        """Re-centre the head, then label all images: one pass, because features do not depend on the head."""
        features, logits, index = read_all(self.model, passes)
        if self.config.recentre:
            before = logits.argmax(dim=1)
            self._shift_head(features.mean(dim=0))
            logits = self.model.head(features)
            after = logits.argmax(dim=1)
            if self.config.trust:
                self.trusted = trust(before, after)
                if not self.declared_shares:
                    self.expected = seen_shares(after, self.trusted, logits.shape[1])
        self._label(features, logits, index)

    def refresh(self, passes: Passes, epoch: int) -> None:
        """Labels of the model as it is now."""
        self._label(*read_all(self.model, passes))

    @torch.no_grad()
    def _label(self, features: Tensor, logits: Tensor, index: Tensor) -> None:
        """Centroid labels (n,) of all images, what they count for (n,), and how often each class is predicted (C,)."""
        probabilities = logits.softmax(dim=-1)
        self.predicted = probabilities.sum(dim=0)
        labels, weights = centroid_labels(features, probabilities), torch.ones_like(features[:, 0])
        if self.trusted:
            doubted = neighbours_labels(features, probabilities, self.config.neighbours) != labels
            weights[doubted] -= self.trusted
        self.labels, self.weights = torch.empty_like(index), torch.empty_like(weights)
        self.labels[index], self.weights[index] = labels, weights

    def _shift_head(self, mean: Tensor) -> None:
        head = self.model.head
        head.bias.copy_(recentered_bias(head.weight, self.source_bias, mean))

    def loss(self, batch: Batch) -> dict[str, Tensor]:
        """L = H(p) + w_class(t) KL(p̄ ‖ π) + v(t) (w_label CE(p, ŷ) + w_strong CE(s, ŷ))   [DePT+ Eq. L]

        p and s are predictions of the weak and the strong view. ŷ is the nearest class centroid and v(t) what it counts
        for: λ at the first step and 1 at the end, or 1 - λ of that where the neighbours see another class. π are the
        expected class shares; without any, KL is to even ones, which is -H(p̄) but for a constant.
        """
        config, count = self.config, len(batch.index)
        both = self.model.read(batch.views[0] if self.labels is None else torch.cat(batch.views))
        output = Output(both.features[:count], both.logits[:count])
        if self.labels is None:
            output = self._followed(output)
        self._logits = logits = output.logits
        terms = {"entropy": losses.entropy(logits).mean()}
        done = self._done()
        if weight := config.w_class_start + (config.w_class - config.w_class_start) * done:
            share = min(1.0, len(logits) / (IMAGES_PER_CLASS * logits.shape[1]))
            rest = self.predicted / self.predicted.sum()
            terms["class_diversity"] = weight * unevenness(logits, rest, share, self.expected)
        if self.labels is not None and self.weights is not None:
            index = batch.index.to(self.labels.device)
            counts = self.weights[index] * torch.lerp(self.trusted, torch.ones_like(self.trusted), done)  # v(t), (B,)
            labels = counts.unsqueeze(1) * F.one_hot(self.labels[index], logits.shape[1])
            if config.w_label:
                terms["label"] = config.w_label * losses.cross_entropy(logits, labels)
            if config.w_strong:
                terms["strong"] = config.w_strong * losses.cross_entropy(both.logits[count:], labels)
        return terms

    def _done(self) -> float:
        """How much of the run is over, t/T; all of it in a stream, which has no end."""
        step, total = self.progress[:2]
        return step / total if total else 1.0

    def _followed(self, output: Output) -> Output:
        """A batch of a stream, counted, and through a head that takes up the mean of all features so far."""
        features = output.features.detach()
        with torch.no_grad():
            self.predicted += output.logits.softmax(dim=-1).sum(dim=0)
            if not self.config.recentre:
                return output
            seen = float(self.predicted.sum())
            self.mean.lerp_(features.mean(dim=0), len(features) / seen)
            self._shift_head(self.mean * shrinkage(round(seen), 16.0) * variety(self.predicted))
        return Output(output.features, self.model.head(output.features))

    def observe(self, test: Tensor, batch: Batch) -> tuple[Tensor, dict[str, float]]:
        """Without what a pass found out, which was made over other images than those of a stream."""
        if self.labels is not None:
            self.setup()
        return super().observe(test, batch)


def variety(predicted: Tensor) -> float:
    """How far a mean of features is one over classes, 0 (one class) to 1: from how often each was predicted (C,).

    Effective classes, e to the entropy of their shares, against `CLASSES`, or all there are if they are fewer.
    """
    shares = predicted / predicted.sum()
    effective = float((-(shares * (shares + 1e-12).log()).sum()).exp())
    return min(1.0, (effective - 1) / (min(len(predicted), CLASSES) - 1))


def trust(before: Tensor, after: Tensor) -> Tensor:
    """λ = max(0, 2a - 1) of labels (n,) before and after re-centring, a: the share that is the same   [DePT+ Eq. λ]"""
    return (2 * (before == after).float().mean() - 1).clamp_min(0)


def seen_shares(labels: Tensor, trusted: Tensor, classes: int) -> Tensor:
    """π = λ n + (1 - λ)/C, n: how often each class is among the labels (n,) -> (C,)   [DePT+ Eq. π]"""
    seen = torch.bincount(labels, minlength=classes) / len(labels)
    return torch.lerp(torch.full_like(seen, 1 / classes), seen, trusted).clamp_min(LEAST_SHARE)


def neighbours_labels(features: Tensor, probabilities: Tensor, neighbours: int) -> Tensor:
    """The class that the k nearest images predict on average, by cosine of centred features: (n, D), (n, C) -> (n,)"""
    count = len(features)
    bank = MemoryBank(count, features.shape[1], probabilities.shape[1], features.device)
    slots = bank.write(features - features.mean(dim=0), probabilities)
    return probabilities[bank.nearest(slots, neighbours)].mean(dim=1).argmax(dim=1)


def unevenness(logits: Tensor, rest: Tensor, share: float, expected: Tensor | None = None) -> Tensor:
    """-H(m) / s of m = s p̄ + (1 - s) r: the mean prediction p̄ of a batch, completed by r of all images.

    With expected class shares π (C,) it is KL(m ‖ π) / s instead. Divided by s, so that the pull on a batch does not
    fade with its share of the mean. (B, C), (C,) -> ()
    """
    mean = share * logits.softmax(dim=-1).mean(dim=0) + (1 - share) * rest
    divergence = (mean * (mean + 1e-8).log()).sum()
    if expected is not None:
        divergence = divergence - (mean * expected.log()).sum()
    return divergence / share
