"""HDMI: mutual information under several hypotheses that must agree. Lao, Jiang and Havaei, AAAI 2021.

A hypothesis is a classifier on the shared encoder. The source training has taught a second one beside the model's own,
from another random start (`model.auxiliary`). Both stay fixed. The encoder moves until each is confident of every image
while its mean prediction is spread over the classes (as in SHOT-IM), and until both say the same: where they disagree,
the source images did not settle the matter, and confidence would be a guess.
The model's own classifier predicts. Two hypotheses and λ = 0.5 are the paper's usual choice.
Simplified: hypotheses are linear instead of two layers deep, and there is no bottleneck.
Cost: one forward and backward per batch through the whole encoder. Fails when: the source model was not trained with
two hypotheses, or the target's classes are far from balanced, since mean predictions are pushed to an even spread.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from dept.core.losses import symmetric_cross_entropy
from dept.core.select import select
from dept.data.loader import Batch
from dept.methods.base import Group, Method
from dept.methods.config import OfflineConfig
from dept.methods.shot import information_maximisation


class HDMI(Method):
    """Information maximisation under two fixed classifiers that must agree."""

    name = "hdmi"
    title = "HDMI"
    summary = "information maximisation under two source classifiers that must agree (Lao et al., AAAI 2021)"
    settings = ("offline", "online")
    enough_steps = 300
    assumes_balance = True
    batch_statistics = True
    reuses_forward = True
    needs_task = "hypothesis"

    @dataclass(frozen=True)
    class Config(OfflineConfig):
        """Defaults: the published weights with the learning rate, batch and schedule used for ViTs."""

        lr: float = 2e-4
        """η of the encoder"""
        weight_decay: float = 5e-4
        """SGD weight decay"""
        w_disparity: float = 0.5
        """λ, weight of the cross-entropy between hypotheses"""
        view: Literal["test", "weak"] = "weak"
        """the view that is adapted on"""
        tune: Literal["encoder", "norm", "prompts"] = "encoder"
        """what moves: everything but the classifiers, the norm layers only, or the prompts only"""

    config: Config
    presets = {"offline": {}}

    def prepare(self) -> None:
        """Find the second hypothesis."""
        self.second = self.taught_head()
        self.views = self.config.view[0]

    def tuned(self) -> list[Group]:
        """The encoder, or a part of it; never a classifier."""
        return [Group(tuple(select(self.model, self.config.tune)), self.config.lr)]

    def loss(self, batch: Batch) -> dict[str, Tensor]:
        """E_h[H(h(x)) - H(mean h(x))] + λ E_{i≠j}[CE(h_i, h_j)]   [HDMI Eq. L_target]"""
        features, logits, _ = self.model.read(batch.views[0])
        self._logits, other = logits, self.second(features)
        terms = [information_maximisation(one) for one in (logits, other)]
        mean = {name: (terms[0][name] + terms[1][name]) / 2 for name in terms[0]}
        return mean | {"disparity": self.config.w_disparity * symmetric_cross_entropy(logits, other).mean()}
