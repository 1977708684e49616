"""CAN: contrastive adaptation network. Kang et al., CVPR 2019.

Alternates between clustering the target (spherical k-means from the source class centers) and steps that draw the two
domains together within classes and apart between classes, on class-aware batches. Cost: per step a forward and backward
of 30 + 60 source and 60 target images; per epoch a pass over both domains. Fails when: clusters do not follow classes.

Deviations: centers are sums of unit features, so that long ones count no more than others, and an
empty cluster keeps its center (theirs, preset `released`: sums of the features as they are, and an empty cluster begins
again at the source's center). Features for clustering come from test views, an epoch has a fixed number of steps
(theirs: a fifth of a pass, about 500 on VisDA), the first layers learn too. Batch norm: each domain is normalised with
its own batch, but affine parameters are shared, and running statistics follow the target (theirs are separate per
domain), so that the result is an ordinary model.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from dept.core.batch_norm import batch_norms, untracked
from dept.data.loader import Batch
from dept.methods.base import Passes
from dept.methods.uda.base import PairedBatch, PairedPasses, UDAConfig, UDAMethod, evaluating

# scipy ships no types, and what a type checker finds without them varies: Any is the same everywhere.
optimize: Any = importlib.import_module("scipy.optimize")
IGNORED = -1  # pseudo-label of target images too far from every center


class CAN(UDAMethod):
    """Contrastive domain discrepancy on clustered target images."""

    name = "can"
    title = "CAN"
    summary = "k-means labels on the target and contrastive domain discrepancy (Kang et al., CVPR 2019)"
    settings = ("uda",)
    passes_per_epoch = 2

    @dataclass(frozen=True)
    class Config(UDAConfig):
        """The authors' VisDA settings."""

        nesterov: bool = False
        """Nesterov form of the momentum"""
        weight_decay: float = 5e-4
        """SGD weight decay"""
        decay: float = 0.0005
        """learning rate of step t: η (1 + decay · t)^-power"""
        power: float = 2.25
        """exponent of that decay"""
        batch: int = 30
        """B, source images per step for the cross-entropy"""
        epochs: int = 50
        """times the target is clustered, each followed by `iters_per_epoch` steps"""
        iters_per_epoch: int = 500
        """steps between two clusterings"""
        trade_off: float = 0.3
        """weight of the contrastive domain discrepancy"""
        classes_per_step: int = 6
        """classes drawn for the discrepancy"""
        images_per_class: int = 10
        """images of each of them, from each domain"""
        max_distance: float = 1.0
        """target images with ½ (1 - cos) to their center at or above this are left out; 1 keeps all"""
        min_images: int = 3
        """classes with fewer target images are left out"""
        raw_centers: bool = False
        """centers are sums of features as they are, and an empty one returns to the source's (released)"""
        stop_below: float = 0.001
        """end early once neither centers nor labels move by more between two clusterings, and the domains meet"""

        @property
        def images_per_step(self) -> int:
            """The random source images, and the class-aware ones of both domains."""
            return self.batch + 2 * self.classes_per_step * self.images_per_class

    config: Config
    presets = {"released": {"raw_centers": True}}

    def setup(self) -> None:
        """Labels (n,) of both domains and target centers (C, D), known once the target has been clustered."""
        self.source_labels = torch.empty(0, dtype=torch.long)
        self.target_labels = torch.empty(0, dtype=torch.long)
        self.centers = torch.empty(0)
        self.settled = False

    def begin(self, passes: Passes) -> None:
        """The first clustering."""
        self._cluster(passes)

    def refresh(self, passes: Passes, epoch: int) -> None:
        """Cluster anew."""
        self._cluster(passes)

    def choose(self, source: list[int], target: list[int], generator: torch.Generator) -> tuple[list[int], list[int]]:
        """The random source images, then some classes' images of both domains (at random if no class qualifies)."""
        config = self.config
        usable = [
            c
            for c in range(self.model.head.out_features)
            if int((self.target_labels == c).sum()) >= config.min_images and bool((self.source_labels == c).any())
        ]
        if not usable:
            return source, target
        order = torch.randperm(len(usable), generator=generator)[: config.classes_per_step]
        chosen = [usable[i] for i in order.tolist()]
        drawn = [
            [i for c in chosen for i in _draw(labels == c, config.images_per_class, generator)]
            for labels in (self.source_labels, self.target_labels)
        ]
        return source + drawn[0], drawn[1]

    def paired_loss(self, batch: PairedBatch) -> dict[str, Tensor]:
        """CE_s + trade-off · CDD over features and probabilities   [CAN Eq. 7]"""
        with untracked(batch_norms(self.model).values()):
            source = self.model.read(batch.source_views[0])
        target = self.model.read(batch.views[0])
        plain, labels = self.config.batch, batch.source_labels
        # Rows after the first B are the class-aware ones; without any, the random ones must do.
        rows = slice(plain if len(labels) > plain else 0, None)
        guessed = self.target_labels[batch.index.cpu()].to(labels.device)
        layers = [
            (source.features, target.features),
            (source.logits.softmax(dim=-1), target.logits.softmax(dim=-1)),
        ]
        classes = self.model.head.out_features
        parts = [contrastive_discrepancy(s[rows], labels[rows], t, guessed, classes) for s, t in layers]
        return {
            "cross_entropy": F.cross_entropy(source.logits[:plain], labels[:plain]),
            "discrepancy": self.config.trade_off * torch.stack(parts).sum(),
        }

    def _cluster(self, passes: Passes) -> None:
        if not isinstance(passes, PairedPasses):
            raise ValueError("Method 'can' needs source and target images together: run it by `dept uda`.")
        source, target = self._features(passes.source()), self._features(passes.target())
        self.source_labels = passes.labels.cpu()
        one_hot, raw = F.one_hot(self.source_labels, self.model.head.out_features).to(source), self.config.raw_centers
        ours = F.normalize(one_hot.T @ (source if raw else F.normalize(source, dim=1)), dim=1)
        labels, distance, centers = spherical_kmeans(target, ours, raw=raw)
        # cos is rounded: 1 must keep everything, an opposite vector too.
        far = (distance >= self.config.max_distance) & (self.config.max_distance < 1.0)
        labels = labels.masked_fill(far, IGNORED)
        if len(self.centers):
            changed = float((labels != self.target_labels).double().mean())
            moves = (mean_distance(centers, self.centers), mean_distance(centers, ours), changed)
            self.settled = max(moves) < self.config.stop_below
        self.target_labels, self.centers = labels, centers

    @torch.no_grad()
    def _features(self, batches: Iterable[Batch]) -> Tensor:
        with evaluating(self.model):
            return torch.cat([self.model.read(batch.views[0]).features.cpu() for batch in batches])

    def state_dict(self) -> dict[str, Tensor]:
        """Adds the labels that the class-aware batches are drawn by, and what the stop rule compares."""
        return super().state_dict() | {
            "labels.source": self.source_labels,
            "labels.target": self.target_labels,
            "centers": self.centers,
            "settled": torch.tensor(self.settled),
        }

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Inverse of `state_dict`."""
        super().load_state_dict(state)
        self.source_labels = state["labels.source"].cpu().clone()
        self.target_labels = state["labels.target"].cpu().clone()
        self.centers = state["centers"].cpu().clone()
        self.settled = bool(state["settled"])


def spherical_kmeans(
    features: Tensor, initial: Tensor, *, raw: bool = False, tolerance: float = 0.005, max_rounds: int = 100
) -> tuple[Tensor, Tensor, Tensor]:
    """k-means by direction: (n, D), unit centers (C, D) -> classes (n,), distances ½ (1 - cos) (n,), centers (C, D).

    Ends when the centers move less than `tolerance` on average; clusters are then matched to the initial centers
    one to one (Hungarian), and named after them. An empty cluster keeps its center.

    Args:
        raw: as released, long features count more in a center, and an empty cluster begins again where it began.
    """
    unit, centers = F.normalize(features, dim=1), initial
    for _ in range(max_rounds):
        nearest = (unit @ centers.T).argmax(dim=1)
        sums = torch.zeros_like(centers).index_add_(0, nearest, features if raw else unit)
        empty = sums.norm(dim=1, keepdim=True) < 1e-12
        moved = torch.where(empty, initial if raw else centers, F.normalize(sums, dim=1))
        shift = mean_distance(moved, centers)
        centers = moved
        if shift < tolerance:
            break
    closeness, nearest = (unit @ centers.T).max(dim=1)
    clusters, classes = optimize.linear_sum_assignment((0.5 * (1 - centers @ initial.T)).numpy())
    named = torch.empty(len(centers), dtype=torch.long)
    named[torch.as_tensor(clusters)] = torch.as_tensor(classes)
    return named[nearest], 0.5 * (1 - closeness), centers[named.argsort()]


def mean_distance(one: Tensor, two: Tensor) -> float:
    """Mean of ½ (1 - cos) over the rows of unit vectors (C, D), (C, D)."""
    return float((0.5 * (1 - (one * two).sum(dim=1))).mean())


def contrastive_discrepancy(
    source: Tensor, source_labels: Tensor, target: Tensor, target_labels: Tensor, classes: int
) -> Tensor:
    """CDD = intra - inter over the classes present in both domains.   [CAN Eq. 5]

    As released, intra is divided by all C classes and inter by C (C - 1), however few are in the batch.

    Args:
        source, target: (n, D), (m, D); labels (n,), (m,), of which negative ones take no part.
    """
    present = [c for c in range(classes) if bool((source_labels == c).any()) and bool((target_labels == c).any())]
    intra = inter = 0.0 * (source.sum() + target.sum())  # keeps the graph where no class is shared
    for one in present:
        for two in present:
            distance = kernel_discrepancy(source[source_labels == one], target[target_labels == two])
            if one == two:
                intra = intra + distance
            else:
                inter = inter + distance
    return intra / classes - inter / max(1, classes * (classes - 1))


def kernel_discrepancy(source: Tensor, target: Tensor) -> Tensor:
    """Squared MMD of (n, D) and (m, D): mean k_ss + mean k_tt - 2 mean k_st.   [CAN Eq. 3]

    k sums Gaussians of the squared distance with bandwidths γ 2^-2 … γ 2^2, γ the detached mean over all pairs of
    different samples.
    """
    both = torch.cat([source, target])
    squared = (both[:, None] - both[None]).square().sum(dim=-1)
    gamma = (squared.detach().sum() / max(1, len(both) * (len(both) - 1))).clamp_min(1e-5)
    kernel = torch.stack([(-squared / (gamma * 2.0**power)).exp() for power in range(-2, 3)]).sum(dim=0)
    n = len(source)
    return kernel[:n, :n].mean() + kernel[n:, n:].mean() - 2 * kernel[:n, n:].mean()


def _draw(wanted: Tensor, count: int, generator: torch.Generator) -> list[int]:
    """`count` positions where `wanted` is true, without repeats as far as they go."""
    positions = wanted.nonzero().squeeze(1)
    rounds = -(-count // len(positions))
    order = torch.cat([torch.randperm(len(positions), generator=generator) for _ in range(rounds)])[:count]
    return [int(i) for i in positions[order]]
