"""What NOTELA and AaD share: a memory of the target images that neighbours are found in, and what moves.

Offline every image has its own slot, filled by a pass before the first step. A stream has a ring of the latest images.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from dept.core.bank import MemoryBank
from dept.core.select import select
from dept.core.vit import Output
from dept.data.loader import Batch
from dept.methods.base import Group, Method, Passes, part, prefixed
from dept.methods.config import OfflineConfig
from dept.methods.shot import read_all

STREAM_BANK = 16384


class Neighbourhood(Method):
    """A method that learns from the predictions of an image's neighbours."""

    @dataclass(frozen=True)
    class Config(OfflineConfig):
        """DePT's optimiser and schedule, whatever moves."""

        lr: float = 5e-3
        """η of prompts and head"""
        backbone_lr: float = 2e-4
        """η of norm layers or encoder, if they move"""
        tune: Literal["prompts", "norm", "encoder"] = "prompts"
        """what moves beside the head: the prompts (the norm layers if there are none), norm layers, or the encoder"""
        clip: float = 1.0
        """largest gradient norm of each tensor, and of the prompts of each stage; 0 for none"""
        neighbours: int = 5
        """k, neighbours of an image (at most a fifth of the images in memory)"""
        bank_size: int = 0
        """online: latest images that are remembered; 0 for 16,384"""

    config: Config
    batch_statistics = True

    def tuned(self) -> list[Group]:
        """Prompts and head at η, or the head at η and a part of the backbone at its own rate."""
        model, config = self.model, self.config
        if config.tune == "prompts" and model.prompts is not None:
            return [Group(tuple(select(model, "prompts", "head")), config.lr, config.clip, by_stage=True)]
        inner = "encoder" if config.tune == "encoder" else "norm"
        return [
            Group(tuple(select(model, "head")), config.lr, config.clip),
            Group(tuple(select(model, inner)), config.backbone_lr, config.clip, by_stage=True),
        ]

    def setup(self) -> None:
        """The memory comes with the first images."""
        self.bank: MemoryBank | None = None
        self.by_index = False

    def begin(self, passes: Passes) -> None:
        """Fill the memory."""
        self.fill(*read_all(self.model, passes))

    def fill(self, features: Tensor, logits: Tensor, index: Tensor) -> None:
        """A memory of features (n, D) and predictions (n, C); the slot of an image is its index (n,)."""
        order = index.argsort()
        self.bank, self.by_index = MemoryBank.over(self.model.head, len(index)), True
        self.bank.write(features[order], logits[order].softmax(dim=-1))

    @torch.no_grad()
    def remember(self, batch: Batch, output: Output) -> tuple[MemoryBank, Tensor]:
        """Write what the model says of a batch; returns the memory and the slots (B,) of the batch."""
        entries = output.features.detach(), output.logits.detach().softmax(dim=-1)
        if self.bank is not None and self.by_index:
            slots = batch.index.to(self.model.head.weight.device)
            self.bank.put(slots, *entries)
            return self.bank, slots
        count = len(batch.index)
        if self.bank is None or len(self.bank.features) < count:  # every image of a batch needs a slot of its own
            self.bank = MemoryBank.over(self.model.head, max(self.config.bank_size or STREAM_BANK, count))
        return self.bank, self.bank.write(*entries)

    def observe(self, test: Tensor, batch: Batch) -> tuple[Tensor, dict[str, float]]:
        """Without the memory of a pass, which was made over other images than those of a stream."""
        if self.by_index:
            self.setup()
        return super().observe(test, batch)

    def state_dict(self) -> dict[str, Tensor]:
        """Adds the memory, and how it is addressed."""
        state = super().state_dict() | {"by_index": torch.tensor(self.by_index)}
        return state if self.bank is None else state | prefixed("bank", self.bank.state_dict())

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Inverse of `state_dict`."""
        super().load_state_dict(state)
        self.by_index = bool(state["by_index"])
        self.bank = MemoryBank.restored(part(state, "bank"), self.model.head.weight.device)
