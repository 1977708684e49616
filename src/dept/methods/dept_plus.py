"""DePT+: information maximisation on the prompts, and labels that several renderings agree on. Ours, no paper.

Tunes DePT's prompts; the weights of the head stay fixed, so that classes keep their meaning.
Before the first step the source model is asked what it sees in each image, and in the same image mirrored, blurred,
inverted, with thicker lines and in grey (`core/renderings.py`). Each rendering is re-centred by its own mean, as in
NEO, and counts the more, the more its predictions tell.
What the renderings say together, averaged with what they say of the nearest neighbours and divided by how often each
class is predicted at all, labels the image. Then predictions become confident while their mean stays even, as in SHOT,
and a weak and a strong view of each image learn its label. What the weak views say in every epoch enters the memory
that labels are made of.
How far the source model is to be trusted shows in the renderings: one that is right sees the same in most of them. The
more it is trusted, the more its labels count from the start, and a class that almost no image has is expected to be
rare. The labels of a model that is lost count little, and only towards the end.
Shares that the user declares (`prior`) are taken as they are. Class shares count most at the start: far from the
source, a class that is not found early is not found at all. Where a batch is too small to hold all classes, its mean
prediction is completed by that of all images.
Steps are relative to the size of the prompts: a LayerNorm reads them first, so that only their direction counts.
Prompts of a trained model are small, those that begin as tokens of an image up to 300 times as large.
In a stream there are no labels and no renderings, and steps are small. The head follows the running mean of the
features, the more so the more classes have been predicted: the mean of a single class is that class, not a shift.
Cost: two forwards and two backwards per batch, and before the first step a pass over all images per rendering.
Fails when: the target's classes are far from balanced, the source model is mostly wrong, and nobody says so (preset
`unbalanced` leaves out what pulls to even shares).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from dept.core import losses
from dept.core.bank import MemoryBank
from dept.core.renderings import RENDERINGS
from dept.core.select import select
from dept.core.vit import Output
from dept.data.loader import Batch
from dept.methods.base import Group, Method, Passes
from dept.methods.config import OfflineConfig
from dept.methods.neo import recentered_bias, shrinkage

IMAGES_PER_CLASS = 4
"""from which on the mean prediction of a batch, or of all images, speaks for all classes"""
LEAST_SHARE = 1e-3
"""of a class that is expected to be rarer: a prediction of it has a price, but not an infinite one"""
PRESENT = 0.25
"""of an even share: a class that is seen so often is taken to be as frequent as any"""
STREAMED = {"w_class": 1.0, "relative": False, "lr": 5e-3, "clip": 1.0}
"""SHOT's weight and DePT's own steps: a stream has no last step"""
CLASSES = 8
"""predicted so far, from which on a running mean of features is trusted"""
MOST_RENDERED = 100_000
"""images; with more of them there is enough to learn from, and the features of all renderings would not fit"""


class DePTPlus(Method):
    """Information maximisation and agreed labels on prompts."""

    name = "dept+"
    title = "DePT+"
    summary = "information maximisation and labels that several renderings agree on, on prompts (ours)"
    settings = ("offline", "online")
    forwards_per_step = 4.0
    passes_at_start = len(RENDERINGS)
    assumes_balance = True
    needs_prompts = True
    enough_steps = 300
    window_rate = 5.0
    reuses_forward = True
    state_names = ("mean", "predicted", "labels", "features", "probabilities", "expected", "trusted")

    @dataclass(frozen=True)
    class Config(OfflineConfig):
        """Steps that fit prompts of any size; labels that count as far as the source model is trusted."""

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
        w_label: float = 1.0
        """weight of the cross-entropy to the labels of a source model that is trusted"""
        w_lost: float = 0.3
        """the same for a source model that is lost, at the last step; it grows from 0"""
        w_strong: float = 1.0
        """weight of that cross-entropy for a strong view, relative to the weak one's; 0 does without that view"""
        w_class: float = 0.5
        """weight of the expected class shares in the mean prediction, at the last step; 0 where they may be far off"""
        w_class_start: float = 2.0
        """the same at the first step; in between it changes evenly"""
        recentre: bool = True
        """the head takes up the mean of the target features: before the first step, or batch by batch in a stream"""
        renderings: bool = True
        """offline: ask the source model for its opinion of every image in several renderings"""
        view: Literal["weak", "test"] = "weak"
        """the view that is learned from without labels"""
        neighbours: int = 10
        """k, nearest images whose mean prediction has a say in a label (at most a fifth of all)"""
        memory: float = 0.6
        """share of the past in what is remembered of an image, when it is seen again"""

    config: Config
    presets = {
        "offline": {},
        # The view that is predicted is the one that is learned from: one forward for both.
        "online": {"schedule": "constant", "epochs": 1, "view": "test", "w_strong": 0.0} | STREAMED,
        # For targets whose classes may be far from balanced: nothing that pulls them there.
        "unbalanced": {"w_class": 0.0, "w_class_start": 0.0, "recentre": False},
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
        self.mean = torch.zeros_like(self.model.head.weight[0])  # m, (D,)
        self.predicted = torch.zeros_like(self.source_bias)
        self.labels: Tensor | None = None  # ŷ, (n,)
        self.features: Tensor | None = None  # remembered of every image, centred, of length 1: (n, D)
        self.probabilities: Tensor | None = None  # the same of its predictions, (n, C)
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

    # -- labels --------------------------------------------------------------------------------------------

    @torch.no_grad()
    def begin(self, passes: Passes) -> None:
        """Ask for all opinions of all images, re-centre the head, and make the first labels."""
        features = self._rendered(passes)
        if self.config.recentre:
            self.mean.copy_(features[0].mean(dim=0))
            self._shift_head(self.mean)
            features = features - features.mean(dim=1, keepdim=True)
        opinions = F.linear(features, self.model.head.weight, self.source_bias).softmax(dim=-1)  # (R, n, C)
        weights = told(opinions)
        self.features = torch.einsum("r,rnd->nd", weights, F.normalize(features, dim=-1))
        self.probabilities = torch.einsum("r,rnc->nc", weights, opinions)
        together = self.probabilities.argmax(dim=1)
        if len(opinions) > 1:
            self.trusted = trust(opinions[0].argmax(dim=1), together)
        if not self.declared_shares:
            self.expected = present_shares(together, self.trusted, opinions.shape[-1])
        self._label()

    def _rendered(self, passes: Passes) -> Tensor:
        """Features (R, n, D) of R renderings of all images, in the order of their indices."""
        several = self.config.renderings and passes.image_count <= MOST_RENDERED
        renderings = RENDERINGS if several else RENDERINGS[:1]
        parts, index = [], []
        for batch in passes():
            parts.append(torch.stack([self.model.read(render(batch.views[0])).features for render in renderings]))
            index.append(batch.index)
        return torch.cat(parts, dim=1)[:, torch.cat(index).argsort().to(parts[0].device)]

    def refresh(self, passes: Passes, epoch: int) -> None:
        """Labels of what is remembered by now."""
        self._label()

    @torch.no_grad()
    def _label(self) -> None:
        """ŷ of all images, and how often each class is predicted (C,)."""
        assert self.features is not None and self.probabilities is not None
        config = self.config
        self.predicted = self.probabilities.sum(dim=0)
        near = neighbours_mean(self.features, self.probabilities, config.neighbours)
        speaks = len(near) >= IMAGES_PER_CLASS * near.shape[1] and (config.w_class or config.w_class_start)
        self.labels = agreed_labels(self.probabilities, near, self.expected if speaks else None)

    def after_step(self, batch: Batch) -> None:
        """Remember what the weak view of each image said."""
        if self.features is None or self.probabilities is None:
            return
        index, share = batch.index.to(self.features.device), 1 - self.config.memory
        for memory, now in zip((self.features, self.probabilities), self._seen, strict=True):
            memory[index] = torch.lerp(memory[index], now, share)

    def _shift_head(self, mean: Tensor) -> None:
        head = self.model.head
        head.bias.copy_(recentered_bias(head.weight, self.source_bias, mean))

    # -- one step ------------------------------------------------------------------------------------------

    def loss(self, batch: Batch) -> dict[str, Tensor]:
        """L = H(p) + w_class(t) KL(p̄ ‖ π) + w(t) (CE(p, ŷ) + w_strong CE(s, ŷ))   [DePT+ Eq. L]

        p and s are predictions of the weak and the strong view, ŷ the label that renderings and neighbours agree on,
        and w(t) = λ w_label + (1 - λ) w_lost t/T what it counts for. π are the expected class shares; without any, KL
        is to even ones, which is -H(p̄) but for a constant.
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
        if self.labels is not None:
            labels = self.labels[batch.index.to(self.labels.device)]
            counts = self.trusted * config.w_label + (1 - self.trusted) * config.w_lost * done  # w(t), ()
            terms["label"] = counts * losses.cross_entropy(logits, labels)
            if config.w_strong:
                terms["strong"] = counts * config.w_strong * losses.cross_entropy(both.logits[count:], labels)
            self._seen = F.normalize(output.features.detach() - self.mean, dim=1), logits.detach().softmax(dim=-1)
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


def told(opinions: Tensor) -> Tensor:
    """w_r ∝ I_r², I_r = H(p̄_r) - mean H(p_r): the mutual information of predictions and images, squared, for each of
    R renderings. (R, n, C) -> (R,), of sum 1   [DePT+ Eq. w]
    """
    means = opinions.mean(dim=1, keepdim=True)
    information = (opinions * ((opinions + 1e-12) / (means + 1e-12)).log()).sum(dim=-1).mean(dim=1)
    squared, total = information.square(), information.square().sum()
    return squared / total if total > 0 else torch.full_like(squared, 1 / len(squared))


def trust(first: Tensor, together: Tensor) -> Tensor:
    """λ = max(0, 2a - 1), a: the share of labels (n,) that all renderings together leave as they are   [DePT+ Eq. λ]"""
    return (2 * (first == together).float().mean() - 1).clamp_min(0)


def present_shares(labels: Tensor, trusted: Tensor, classes: int) -> Tensor:
    """π_c ∝ 1 - λ + λ min(1, n_c C / PRESENT), n_c: how often c is among the labels (n,) -> (C,)   [DePT+ Eq. π]

    Even, but for classes that a trusted model hardly ever sees: these are taken to be rare or absent.
    """
    seen = torch.bincount(labels, minlength=classes) / len(labels)
    shares = torch.lerp(torch.ones_like(seen), (seen * classes / PRESENT).clamp_max(1), trusted)
    return (shares / shares.sum()).clamp_min(LEAST_SHARE)


def neighbours_mean(features: Tensor, probabilities: Tensor, neighbours: int) -> Tensor:
    """Mean prediction of the k nearest other images by cosine; of a single image, its own. (n, D), (n, C) -> (n, C)"""
    count = len(features)
    if count == 1:
        return probabilities
    bank = MemoryBank(count, features.shape[1], probabilities.shape[1], features.device)
    slots = bank.write(features, probabilities)
    return probabilities[bank.nearest(slots, neighbours)].mean(dim=1)


def agreed_labels(probabilities: Tensor, near: Tensor, shares: Tensor | None) -> Tensor:
    """ŷ = argmax_c q_c π_c / q̄_c, q: mean of what is said of an image and of its neighbours   [DePT+ Eq. ŷ]

    Divided by its mean q̄ over all images, no class is said more often than it is expected. (n, C), (n, C) -> (n,)
    """
    said = (probabilities + near) / 2
    if shares is not None:
        said = said * shares / said.mean(dim=0).clamp_min(1e-12)
    return said.argmax(dim=1)


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
