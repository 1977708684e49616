"""SHOT: source hypothesis transfer. Liang et al., "Do we really need to access the source data?", ICML 2020.

Keeps the classifier and moves the encoder until its features suit it: every prediction confident, the mean
prediction spread over the classes (information maximisation), and, with a smaller weight, a cross-entropy to
pseudo-labels from class centroids over all target images, recomputed every epoch, or 15 times per run as in the
released code (`labels_per_run`, preset `released`). Without its bottleneck and weight-normalised classifier: features
are the backbone's and the classifier is the model's own. `im_only` (preset `im`) leaves the pseudo-labels out: SHOT-IM.
Online there is no pass over all images, hence no centroids: SHOT-IM as well.
Cost: one forward and backward per batch through the whole encoder, and a pass over all images per epoch.
Fails when: the target's classes are far from balanced, since the mean prediction is pushed towards an even spread.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from dept.core.adapter import pick
from dept.core.clipping import clip_together
from dept.core.losses import class_diversity, cross_entropy, entropy
from dept.core.select import select
from dept.core.vit import AdaptedModel
from dept.data.loader import Batch
from dept.methods.base import Group, Method, Passes, Progress
from dept.methods.config import BaseConfig, OfflineConfig

EPS = 1e-5  # inside the logarithms, as released
LOWEST_LOG = -100.0


# SHOT-IM in CFA's ImageNet-C benchmark, which the DePT paper cites: one online pass over norm layers.
ONLINE = {
    "im_only": True,
    "tune": "norm",
    "view": "test",
    "lr": 1e-3,
    "nesterov": False,
    "weight_decay": 0.0,
    "schedule": "constant",
    "batch": 64,
    "epochs": 1,
    "clip": 1.0,
    "log": "clamped",
}


class SHOT(Method):
    """Information maximisation and centroid pseudo-labels under a frozen classifier."""

    name = "shot"
    title = "SHOT"
    summary = "information maximisation and centroid pseudo-labels, head frozen (Liang et al., ICML 2020)"
    settings: ClassVar[tuple[str, ...]] = ("offline", "online")
    passes_per_epoch = 1
    enough_steps: ClassVar[int] = 300
    assumes_balance = True

    @dataclass(frozen=True)
    class Config(OfflineConfig):
        """Defaults: the released method with the learning rate, batch and schedule used for ViTs."""

        lr: float = 2e-4
        """η of the encoder"""
        view: Literal["test", "weak"] = "weak"
        """the view that is adapted on"""
        tune: Literal["encoder", "norm", "prompts"] = "encoder"
        """what moves: everything but the head, the norm layers only, or the prompts only (of a model that has them)"""
        im_only: bool = False
        """SHOT-IM: information maximisation without pseudo-labels"""
        w_pl: float = 0.3
        """β, weight of the cross-entropy to the pseudo-labels"""
        label_refresh: int = 1
        """recompute the pseudo-labels every N epochs (divided by the ratio of images used)"""
        labels_per_run: int = 0
        """compute the pseudo-labels N times per run instead, evenly over its steps (released: 15); 0 for by epoch"""
        quiet_start: bool = False
        """no cross-entropy until the pseudo-labels are recomputed for the first time (released code on VisDA-C)"""
        power_decay: bool = False
        """η (1 + 10 t/T)^-0.75 with t counted from 1, the released schedule, instead of `schedule`"""
        clip: float = 0.0
        """largest norm of the whole gradient; 0 for none"""
        log: Literal["shifted", "clamped"] = "shifted"
        """logarithms of p + 1e-5 (released), or of p, at least -100 (the form in CFA's benchmark)"""

    config: Config
    state_names: ClassVar[tuple[str, ...]] = ("labels",)
    batch_statistics = True
    reuses_forward = True
    presets = {
        "offline": {},
        "im": {"im_only": True},
        # The published optimiser for VisDA-C with a ResNet.
        "released": {
            "lr": 1e-4,
            "weight_decay": 1e-3,
            "batch": 64,
            "power_decay": True,
            "labels_per_run": 15,
            "quiet_start": True,
        },
        "online": ONLINE,
        "online-ln": ONLINE,
    }

    @classmethod
    def scaled(cls, config: BaseConfig, ratio: float) -> BaseConfig:
        """Fewer images: more epochs, and pseudo-labels recomputed after as many steps as before."""
        scaled = super().scaled(config, ratio)
        assert isinstance(scaled, cls.Config)
        return replace(scaled, label_refresh=int(scaled.label_refresh / ratio))

    def prepare(self) -> None:
        """One view, as the Config says."""
        self.views = self.config.view[0]

    def tuned(self) -> list[Group]:
        """The encoder, or a part of it; never the head."""
        return [Group(tuple(select(self.model, self.config.tune)), self.config.lr)]

    def setup(self) -> None:
        """No pseudo-labels yet."""
        self.labels: Tensor | None = None

    def clip(self) -> None:
        """The global norm, where the preset asks for it."""
        clip_together(pick(self.model, self.trained_names).values(), self.config.clip)

    # -- pseudo-labels -------------------------------------------------------------------------------------

    def begin(self, passes: Passes) -> None:
        """First pseudo-labels."""
        if not self.config.im_only:
            self.labels = self._centroid_labels(passes)

    def refresh(self, passes: Passes, epoch: int) -> None:
        """Pseudo-labels of the encoder as it is now, where epochs count."""
        config = self.config
        if not config.im_only and not config.labels_per_run and (epoch + 1) % config.label_refresh == 0:
            self.labels = self._centroid_labels(passes)

    def before_step(self, passes: Passes) -> None:
        """The same where steps count; `begin` was the first time."""
        step = self.progress.step
        if self.config.labels_per_run and not self.config.im_only and step and step % self._interval() == 0:
            self.labels = self._centroid_labels(passes)

    def _interval(self) -> int:
        """Steps from one labelling to the next, rounded down: with a remainder there is one labelling more."""
        return max(1, self.progress.total // self.config.labels_per_run)

    def _centroid_labels(self, passes: Passes) -> Tensor:
        features, logits, index = read_all(self.model, passes)
        labels = torch.empty_like(index)
        labels[index] = centroid_labels(features, logits.softmax(dim=-1))
        return labels

    # -- one step ------------------------------------------------------------------------------------------

    def loss(self, batch: Batch) -> dict[str, Tensor]:
        """L_ent + L_div + β CE(ŷ)   [SHOT Eq. L]"""
        self._logits = logits = self._student(batch.views[0])
        terms = information_maximisation(logits, self.config.log)
        if self.labels is not None and not (self.config.quiet_start and self._first_labels()):
            labels = self.labels[batch.index.to(self.labels.device)]
            terms["pseudo_label"] = self.config.w_pl * cross_entropy(logits, labels)
        return terms

    def _first_labels(self) -> bool:
        """Whether no labels but the first have been made; the released count of steps ends one step before that."""
        if self.config.labels_per_run:
            return self.progress.step + 1 < self._interval()
        return self.progress.epoch < self.config.label_refresh

    def _student(self, images: Tensor) -> Tensor:
        logits: Tensor = self.model(images)
        return logits

    def lr_scale(self, progress: Progress) -> float:
        """The released decay, which counts steps from 1, or the common schedules."""
        return power_decay(progress.step + 1, progress.total) if self.config.power_decay else super().lr_scale(progress)

    def observe(self, test: Tensor, batch: Batch) -> tuple[Tensor, dict[str, float]]:
        """Without pseudo-labels: they were made for other images than those of a stream."""
        self.labels = None
        return super().observe(test, batch)


def information_maximisation(logits: Tensor, log: Literal["shifted", "clamped"] = "shifted") -> dict[str, Tensor]:
    """Mean entropy of predictions and negative entropy of the mean prediction: (B, C) -> two ()   [SHOT Eq. L_IM]"""
    if log == "shifted":
        p = logits.softmax(dim=-1)
        return {"entropy": -(p * (p + EPS).log()).sum(dim=-1).mean(), "class_diversity": class_diversity(logits, EPS)}
    # log of the mean by log-sum-exp: its gradient stays finite when a probability underflows to 0.
    log_mean = logits.log_softmax(dim=-1).logsumexp(dim=0) - math.log(len(logits))
    return {
        "entropy": entropy(logits).mean(),
        "class_diversity": (log_mean.exp() * log_mean.clamp_min(LOWEST_LOG)).sum(),
    }


def centroid_labels(features: Tensor, probabilities: Tensor) -> Tensor:
    """Nearest class centroid by cosine, found in two rounds: (n, D), (n, C) -> (n,)   [SHOT Eq. ŷ]

    The first centroids weigh the features (with a 1 appended) by probabilities, the second by the first labels. Only
    classes that somebody was assigned to take part.
    """
    points = F.normalize(torch.cat([features, features.new_ones(len(features), 1)], dim=1), dim=1)
    classes = probabilities.shape[1]
    labels, weights = probabilities.argmax(dim=1), probabilities
    for _ in range(2):
        centroids = weights.T @ points / (1e-8 + weights.sum(dim=0)).unsqueeze(1)
        unused = torch.bincount(labels, minlength=classes) == 0
        similarity = points @ F.normalize(centroids, dim=1).T
        labels = similarity.masked_fill(unused, -torch.inf).argmax(dim=1)
        weights = F.one_hot(labels, classes).to(points)
    return labels


def power_decay(step: int, total: int, power: float = 0.75) -> float:
    """(1 + 10 t/T)^-power: 1 at t = 0; at t = T 0.166 for a power of 0.75."""
    return float((1.0 + 10.0 * step / max(total, 1)) ** -power)


@torch.no_grad()
def read_all(model: AdaptedModel, passes: Passes) -> tuple[Tensor, Tensor, Tensor]:
    """Features (n, D), logits (n, C) and indices (n,) of one pass, in its order."""
    outputs = [(model.read(batch.views[0]), batch.index) for batch in passes()]
    features = torch.cat([output.features for output, _ in outputs])
    logits = torch.cat([output.logits for output, _ in outputs])
    return features, logits, torch.cat([index for _, index in outputs]).to(logits.device)
