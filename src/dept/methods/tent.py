"""Tent: fully test-time adaptation by entropy minimisation. Wang et al., ICLR 2021.

Tunes the affine parameters of every normalisation layer (38,400 in a ViT-B) to make predictions confident. Batch norm
normalises by the batch while adapting; its running statistics follow the target and are part of the adapter.
Cost: one forward and one backward per batch. Fails when: steps are many or batches small and one-sided — the
entropy is lowest when everything is one class, so watch the histogram of predictions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from dept.core.losses import entropy
from dept.core.select import select
from dept.data.loader import Batch
from dept.methods.base import Group, Method
from dept.methods.config import OnlineConfig


class Tent(Method):
    """Entropy minimisation on normalisation layers."""

    name = "tent"
    title = "Tent"
    summary = "entropy minimisation on the affine parameters of the norm layers (Wang et al., ICLR 2021)"
    settings: ClassVar[tuple[str, ...]] = ("offline", "online")
    forwards_per_step = 2.0

    @dataclass(frozen=True)
    class Config(OnlineConfig):
        """Defaults: one online pass over test views with the published ViT settings.

        The rate is for a batch of 64; for another size, scale it in proportion (η = 1e-3 B / 64).
        """

        view: Literal["test", "weak"] = "test"
        """the view that is adapted on"""

    config: Config
    batch_statistics = True
    reuses_forward = True
    presets = {
        "online": {},
        # The common offline recipe of the DePT paper: many epochs on weak views.
        "offline": {"view": "weak", "schedule": "cosine", "batch": 128, "epochs": 15},
    }

    def prepare(self) -> None:
        """One view, as the Config says."""
        self.views = self.config.view[0]

    def tuned(self) -> list[Group]:
        """Affine parameters of all normalisation layers."""
        return [Group(tuple(select(self.model, "norm")), self.config.lr)]

    def loss(self, batch: Batch) -> dict[str, Tensor]:
        """Batch mean of H(p)   [Tent Eq. 1]"""
        self._logits = self.model(batch.views[0])
        return {"entropy": entropy(self._logits).mean()}
