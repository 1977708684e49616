"""Tent: fully test-time adaptation by entropy minimisation. Wang et al., ICLR 2021.

Tunes the affine parameters of every normalisation layer (38,400 in a ViT-B) to make predictions confident. Batch norm
normalises by the batch while adapting; its running statistics follow the target and are part of the adapter.
Cost: one forward and one backward per batch. Fails when: steps are many or batches small and one-sided — the
entropy is lowest when everything is one class, so watch the histogram of predictions.
Against that, `entropy` "come" takes the entropy of an opinion that may stay uncertain (COME, Zhang et al., ICLR 2025).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from dept.core.losses import ENTROPIES
from dept.data.loader import Batch
from dept.methods.norms import NormTuning


class Tent(NormTuning):
    """Entropy minimisation on normalisation layers."""

    name = "tent"
    title = "Tent"
    summary = "entropy minimisation on the affine parameters of the norm layers (Wang et al., ICLR 2021)"
    settings: ClassVar[tuple[str, ...]] = ("offline", "online")

    @dataclass(frozen=True)
    class Config(NormTuning.Config):
        """Defaults: the published online pass."""

        entropy: Literal["softmax", "come"] = "softmax"
        """what is minimised: the entropy of the prediction, or COME's entropy of an opinion"""

    config: Config
    batch_statistics = True
    presets = {
        "online": {},
        # The common offline recipe of the DePT paper: many epochs on weak views.
        "offline": {"view": "weak", "schedule": "cosine", "batch": 128, "epochs": 15},
    }

    def prepare(self) -> None:
        """How the entropy is measured."""
        super().prepare()
        self.entropies = ENTROPIES[self.config.entropy]

    def loss(self, batch: Batch) -> dict[str, Tensor]:
        """Batch mean of H(p)   [Tent Eq. 1]"""
        self._logits = self.model(batch.views[0])
        return {"entropy": self.entropies(self._logits).mean()}
