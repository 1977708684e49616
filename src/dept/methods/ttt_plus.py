"""TTT++: contrastive test-time training with feature alignment. Liu et al., NeurIPS 2021.

The encoder keeps solving the second task that the source training gave it: among all views of a batch, find the other
view of the same image, by a projection of the features (`model.auxiliary`). So that it does not wander off, mean and
covariance of features and of projections are drawn to those of the source images. They are estimated on the batch and
a queue of earlier features, and each distance counts in units of what batches of source images differ by.
Not strictly source-free: needs the source statistics that `dept stats` writes (`stats`).
Simplified: the projection is linear, the views are one strong and one weak, and the weak one is aligned too, where the
released code draws other images for that. It stops by the labels of the target, which we do not.
Cost: two forwards and backwards per batch through the whole encoder. Fails when: the source model was not trained with
the contrastive task, batches are so small that there is little to tell apart, or class shares differ from the source's,
whose mean and covariance are then wrong.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dept.core.adapter import Adapter
from dept.core.moments import PAIRS, covariance, moment_distances
from dept.core.select import select
from dept.core.vit import AdaptedModel
from dept.data.loader import Batch
from dept.methods.base import Group, Method, part, prefixed
from dept.methods.config import OfflineConfig

PROJECTION = 128
"""width of the projection"""
TEMPERATURE = 0.5
"""τ of the contrastive task, in source training too"""
MEAN_SHARE = 0.5
"""weight of a distance of means, relative to that of covariances"""


class TTTPlus(Method):
    """Contrastive learning on the target, and alignment of first and second moments with the source's."""

    name = "ttt++"
    title = "TTT++"
    summary = "contrastive task at test time, with moments aligned to the source's (Liu et al., NeurIPS 2021)"
    settings = ("offline", "online")
    views = "sw"
    forwards_per_step = 6.0
    enough_steps = 300
    batch_statistics = True
    needs_task = "contrastive"
    needs_stats = True
    state_names = ("queue",)

    @dataclass(frozen=True)
    class Config(OfflineConfig):
        """Defaults: the released weights with the learning rate, batch and schedule used for ViTs."""

        lr: float = 2e-4
        """η of the encoder"""
        w_contrast: float = 7.142857142857142
        """weight of the contrastive task; the released loss is multiplied by τ / 0.07"""
        w_features: float = 0.05
        """weight of the alignment of features"""
        w_projections: float = 0.2
        """weight of the alignment of projections"""
        queue_size: int = 1536
        """images that moments are estimated on, those of the batch among them"""

    config: Config
    presets = {"offline": {}, "released": {"lr": 1e-2, "weight_decay": 0.0, "nesterov": False, "batch": 256}}

    def prepare(self) -> None:
        """Find the projection."""
        self.projection = self.taught_head()
        if "feature_covariance" not in self.source_stats:
            raise ValueError(
                "TTT++ compares covariances, and these source statistics have none for the projection of this model. "
                "Write them with `dept stats` from the model that is adapted."
            )

    def tuned(self) -> list[Group]:
        """The encoder. Classifier and projection stay, as in the released commands."""
        return [Group(tuple(select(self.model, "encoder")), self.config.lr)]

    def setup(self) -> None:
        """The statistics that this method reads; no features yet."""
        self.source = {name: tensor for name, tensor in self.source_stats.items() if name.startswith(PAIRS)}
        self.queue = self.model.head.weight.new_zeros(0, self.model.head.in_features)  # the latest features

    def loss(self, batch: Batch) -> dict[str, Tensor]:
        """w NT-Xent + Σ over features and projections of their distance to the source's   [TTT++ Eq. L]"""
        config, both = self.config, self.model.read(torch.cat(batch.views)).features
        features = both[len(batch.index) :]
        seen = torch.cat([features, self.queue])[: config.queue_size]
        self.queue = seen.detach()
        return {
            "contrast": config.w_contrast * contrast(self.projection(both)),
            "features": config.w_features * distance(seen, self.source, "feature"),
            "projections": config.w_projections * distance(self.projection(seen), self.source, "projection"),
        }

    def state_dict(self) -> dict[str, Tensor]:
        """Adds the statistics."""
        return super().state_dict() | prefixed("source", self.source)

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Inverse of `state_dict`."""
        super().load_state_dict(state)
        device = self.model.head.weight.device
        self.source = {name: tensor.to(device, copy=True) for name, tensor in part(state, "source").items()}


def contrast(projections: Tensor, temperature: float = TEMPERATURE) -> Tensor:
    """NT-Xent of two views of B images, the second views after all first ones: (2B, K) -> ()   [TTT++ Eq. L_s]

    The mean over all views of -log(e^{s(i, i')} / Σ_{j ≠ i} e^{s(i, j)}), s: cosine over τ, i': the other view of i.
    """
    unit = F.normalize(projections, dim=1)
    similarity = (unit @ unit.T / temperature).fill_diagonal_(-torch.inf)
    other = torch.arange(len(unit), device=unit.device).roll(len(unit) // 2)
    return F.cross_entropy(similarity, other)


def contrastive_loss(model: AdaptedModel, images: Tensor, features: Tensor, adapter: Adapter | None = None) -> Tensor:
    """The task in source training: other views (B, channels, H, W) of the images whose features are (B, D)."""
    assert isinstance(model.auxiliary, nn.Linear)
    others = model.read(images, adapter=adapter).features
    return contrast(model.auxiliary(torch.cat([others, features])))


def distance(points: Tensor, source: Mapping[str, Tensor], kind: str) -> Tensor:
    """‖Σ - Σ_s‖² / (4 D² n_Σ) + ½ ‖μ - μ_s‖² / (D n_μ) of points (n, D)   [TTT++ Eq. L_f]

    n_Σ and n_μ are the mean distances between batches of source images, `noise` in the statistics.
    """
    spread, gap = moment_distances(
        points.mean(dim=0), covariance(points), source[f"{kind}_mean"], source[f"{kind}_covariance"]
    )
    noise = source[f"{kind}_noise"].clamp_min(1e-12)
    return spread / noise[0] + MEAN_SHARE * gap / noise[1]
