"""TTT: test-time training with self-supervision. Sun et al., ICML 2020, in its online form.

Every image is turned by 0, 90, 180 or 270 degrees and the encoder learns to tell which, with a linear head that the
source training has already taught this (`model.auxiliary`); the classifier, which shares the encoder, follows.
Simplified: one step per batch (`steps_per_batch`) and no return to the source model in between. The standard form
makes ten steps on 32 augmented copies of each image, and its encoder shares only the first three stages of a ResNet.
Cost: one forward and backward per batch, one forward to predict. Fails when: the source model was not trained with
the rotation task, or rotation is no cue (digits, aerial images, textures).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from dept.core.adapter import Adapter
from dept.core.losses import cross_entropy
from dept.core.select import select
from dept.core.vit import AdaptedModel
from dept.data.loader import Batch
from dept.methods.base import Group, Method
from dept.methods.config import OnlineConfig

ROTATIONS = 4


class TTT(Method):
    """Rotation prediction on the images to be classified."""

    name = "ttt"
    title = "TTT"
    summary = "rotation prediction at test time with a source-trained rotation head (Sun et al., ICML 2020)"
    settings = ("online",)
    views = "w"
    needs_task = "rotation"

    @dataclass(frozen=True)
    class Config(OnlineConfig):
        """Defaults: the published online form; a batch is predicted after the step it causes."""

        momentum: float = 0.0
        """SGD momentum"""
        predict: Literal["before", "after"] = "after"
        """online: a batch is predicted before or after the update it causes"""
        tune: Literal["encoder", "norm"] = "encoder"
        """what moves, beside the rotation head: everything but the classifier, or the norm layers only"""

    config: Config
    presets = {"online": {}}

    def prepare(self) -> None:
        """Find the rotation head."""
        self.rotation_head = self.taught_head()

    def tuned(self) -> list[Group]:
        """Encoder and rotation head."""
        head = [name for name, _ in self.rotation_head.named_parameters("auxiliary")]
        return [Group((*select(self.model, self.config.tune), *head), self.config.lr)]

    def loss(self, batch: Batch) -> dict[str, Tensor]:
        """Cross-entropy of the rotation that each image was turned by   [TTT L_s]"""
        return {"rotation": rotation_loss(self.model, batch.views[0], self.generator)}


def rotation_loss(
    model: AdaptedModel, images: Tensor, generator: torch.Generator, adapter: Adapter | None = None
) -> Tensor:
    """Turn every image by a random multiple of 90 degrees; cross-entropy of the auxiliary head's guess."""
    assert model.auxiliary is not None
    turns = torch.randint(ROTATIONS, (len(images),), generator=generator).to(images.device)
    return cross_entropy(model.auxiliary(model.read(rotated(images, turns), adapter=adapter).features), turns)


def rotated(images: Tensor, turns: Tensor) -> Tensor:
    """Square images (B, channels, H, H), each turned anticlockwise by its number (B,) of right angles."""
    result = images.clone()
    for number in range(1, ROTATIONS):
        rows = turns == number
        result[rows] = torch.rot90(images[rows], number, dims=(-2, -1))
    return result
