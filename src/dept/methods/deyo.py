"""DeYO: destroy your object. Lee et al., "Entropy is not enough for test-time adaptation: from the perspective of
disentangled factors", ICLR 2024.

Entropy minimisation on samples whose prediction rests on the shape of the object: besides a low entropy they need a
prediction that loses probability when the patches of the image are shuffled (PLPD, the pseudo-label probability
difference). Both also weigh the sample. Tunes the norm layers of the first three quarters of the blocks, as SAR; batch
norm, if any, keeps the source's statistics.
Cost: a forward of all rows, another of the confident ones, a forward and backward of the selected ones. Fails when:
classes are textures, whose patches may be shuffled at will; the thresholds were chosen for ImageNet.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from dept.core.losses import entropy
from dept.core.select import early_norms, select
from dept.data.loader import Batch
from dept.methods.base import Group
from dept.methods.norms import NormTuning


class DeYO(NormTuning):
    """Entropy minimisation on samples whose prediction depends on shape."""

    name = "deyo"
    title = "DeYO"
    summary = "entropy minimisation on samples whose prediction suffers from shuffled patches (Lee et al., ICLR 2024)"
    settings = ("online",)
    forwards_per_step = 3.0

    @dataclass(frozen=True)
    class Config(NormTuning.Config):
        """Defaults: the published online pass for ViTs. The margins scale with ln C."""

        entropy_margin: float = 0.5
        """τ_Ent / ln C; only samples of lower entropy are learned from"""
        weight_margin: float = 0.4
        """Ent₀ / ln C; samples of lower entropy weigh more than 1 by it"""
        least_drop: float = 0.2
        """τ_PLPD, probability that the predicted class must lose when patches are shuffled"""
        patches: int = 4
        """patches along each side of the image"""

    config: Config
    presets = {"online": {}}

    def tuned(self) -> list[Group]:
        """Norm layers of the first three quarters of the blocks: blocks 0-8 of 12, no final norm."""
        return [Group(tuple(early_norms(select(self.model, "norm"))), self.config.lr)]

    def setup(self) -> None:
        """Margins in nats."""
        scale = math.log(self.model.head.out_features)
        self.margin, self.weight_margin = self.config.entropy_margin * scale, self.config.weight_margin * scale

    def step(self, batch: Batch) -> dict[str, float]:
        """Select rows by forwards without graph, then step on those only; no step when none is selected."""
        images = batch.views[0]
        with torch.no_grad():
            self._logits = self.model(images)
            rows = (entropy(self._logits) < self.margin).nonzero().squeeze(1)
            if len(rows):
                drops = self.probability_drops(images[rows], self._logits[rows])
                kept = drops > self.config.least_drop
                rows, self._drops = rows[kept], drops[kept]
        if not len(rows):
            return {"loss": 0.0, "selected": 0.0}
        terms = super().step(Batch((images[rows],), batch.index[rows.cpu()]))
        return terms | {"selected": float(len(rows))}

    def probability_drops(self, images: Tensor, logits: Tensor) -> Tensor:
        """p(ŷ | x) - p(ŷ | x'), x' with shuffled patches: (B, channels, H, W), (B, C) -> (B,)   [DeYO PLPD]"""
        count = self.config.patches**2
        order = torch.rand(len(images), count, generator=self.generator).argsort(dim=1).to(images.device)
        destroyed: Tensor = self.model(shuffled_patches(images, order)).softmax(dim=-1)
        labels = logits.argmax(dim=-1, keepdim=True)
        return (logits.softmax(dim=-1) - destroyed).gather(1, labels).squeeze(1)

    def loss(self, batch: Batch) -> dict[str, Tensor]:
        """Mean of (exp(Ent₀ - H) + exp(PLPD)) H over the selected rows, weights without gradient   [DeYO Eq. L]"""
        values = entropy(self.model(batch.views[0]))
        weights = (self.weight_margin - values.detach()).exp() + self._drops.exp()
        return {"entropy": (weights * values).mean()}


def shuffled_patches(images: Tensor, order: Tensor) -> Tensor:
    """Images (B, channels, H, W) whose patches lie in the given order (B, P²), counted row by row.

    Sides that P does not divide are resized for it, and back.
    """
    size, grid, (count, channels) = images.shape[-2:], math.isqrt(order.shape[1]), images.shape[:2]
    height, width = (max(side // grid, 1) for side in size)
    fits = (height * grid, width * grid) == tuple(size)
    if not fits:
        images = F.interpolate(images, size=[height * grid, width * grid], mode="bilinear")
    cells = images.reshape(count, channels, grid, height, grid, width)
    listed = cells.permute(0, 2, 4, 1, 3, 5).flatten(1, 2)  # (B, P², channels, height, width)
    moved = listed[torch.arange(count, device=order.device).unsqueeze(1), order]
    cells = moved.reshape(count, grid, grid, channels, height, width).permute(0, 3, 1, 4, 2, 5)
    shuffled = cells.reshape(count, channels, height * grid, width * grid)
    return shuffled if fits else F.interpolate(shuffled, size=size, mode="bilinear")
