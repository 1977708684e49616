"""AdaContrast: contrastive test-time adaptation. Chen et al., CVPR 2022.

Cross-entropy of a strong view to a label voted in a memory bank by the weak view's neighbours, a contrast of two
strong views against a queue of keys (those with the same pseudo-label are no negatives), and class diversity. Keys
and bank come from a momentum encoder. Tunes everything (preset `ln`: norm layers only). Strong views are those of all
methods here: the released code crops by bilinear interpolation and flips last.
Cost: four forwards and one backward per batch; memory for a second set of the tuned tensors. Fails when: the source
model is right on too few images for a vote to help, or adaptation data are few and all weights overfit them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from dept.core.adapter import Adapter, pick
from dept.core.bank import MemoryBank
from dept.core.batch_norm import untracked
from dept.core.losses import class_diversity, cross_entropy
from dept.core.select import select
from dept.data.loader import Batch
from dept.methods.base import Group, Method, Passes, part, prefixed
from dept.methods.config import OfflineConfig
from dept.methods.shot import read_all


class AdaContrast(Method):
    """Voted pseudo-labels and class-aware contrast with a momentum encoder."""

    name = "adacontrast"
    title = "AdaContrast"
    summary = "bank-voted pseudo-labels and class-aware contrast, all weights (Chen et al., CVPR 2022)"
    settings = ("offline", "online")
    forwards_per_step = 6.0
    assumes_balance = True
    views = "wss"  # weak (pseudo-label, bank), strong (query), strong (key)

    @dataclass(frozen=True)
    class Config(OfflineConfig):
        """Defaults are the released offline recipe; features are the backbone's, without a bottleneck."""

        lr: float = 2e-4
        """η of the backbone"""
        head_lr_scale: float = 10.0
        """factor on η for the head"""
        tune: Literal["all", "norm"] = "all"
        """what moves: every parameter, or the norm layers only"""
        neighbours: int = 10
        """k, neighbours in the vote (at most a fifth of the bank)"""
        bank_size: int = 0
        """N, slots of the bank; 0 for one per target image, or 16,384 online"""
        bank_warmup: int = 1024
        """online: images in the bank before it votes; until then the label is the model's own prediction"""
        queue_size: int = 16384
        """keys that a query is contrasted with"""
        temperature: float = 0.07
        """τ of the contrast"""
        ema: float = 0.999
        """m, share of the old momentum encoder that stays at each step"""
        w_pl: float = 1.0
        """weight of the cross-entropy to the pseudo-label"""
        w_contrast: float = 1.0
        """weight of the contrast; 0 switches it off"""
        w_class: float = 1.0
        """weight of the class diversity; 0 switches it off"""

    config: Config
    batch_statistics = True
    presets = {
        "offline": {},
        # Unpublished; as in the test-time-adaptation benchmark: the bank grows with the stream, predict afterwards.
        "online": {"schedule": "constant", "predict": "after", "epochs": 1},
        # The DePT paper's motivating figure; its learning rate is not given, this is the usual one for norm layers.
        "ln": {"tune": "norm", "lr": 1e-3},
    }

    def tuned(self) -> list[Group]:
        """Backbone (and prompts) at η, head at ten times that; or the norm layers."""
        config = self.config
        if config.tune == "norm":
            return [Group(tuple(select(self.model, "norm")), config.lr)]
        head = Group(tuple(select(self.model, "head")), config.lr * config.head_lr_scale)
        return [Group(tuple(select(self.model, "encoder")), config.lr), head]

    def setup(self) -> None:
        """Momentum encoder and a queue of random keys; the bank comes with the first images."""
        weight = self.model.head.weight
        self.student = pick(self.model, self.trained_names)
        self.momentum = Adapter.of(self.model, self.trained_names)
        self.queue = KeyQueue.random(self.config.queue_size, weight.shape[1], weight.shape[0], self.generator)
        self.queue.to(weight.device)
        self.bank: MemoryBank | None = None

    # -- the bank ------------------------------------------------------------------------------------------

    def begin(self, passes: Passes) -> None:
        """First fill of the bank, by one pass; unlike DePT's, it is never rebuilt."""
        count = passes.image_count
        self.bank = MemoryBank.over(self.model.head, min(self.config.bank_size or count, count))
        features, logits, _ = read_all(self.model, passes)
        self.bank.refill(features, logits.softmax(dim=-1), self.generator)

    @torch.no_grad()
    def pseudo_labels(self, weak: Tensor) -> Tensor:
        """ŷ (B,): argmax of the bank's vote around the feature, or of the prediction while the bank is too young."""
        features, logits, _ = self.model.read(weak)
        bank = self.bank
        if bank is None or len(bank) < min(self.config.bank_warmup, len(bank.features)):
            return logits.argmax(dim=-1)
        return bank.vote(features, self.config.neighbours).argmax(dim=-1)

    # -- one step ------------------------------------------------------------------------------------------

    def loss(self, batch: Batch) -> dict[str, Tensor]:
        """L_ce + L_ctr + L_div   [AdaContrast Eq. L]"""
        weak, query_view, key_view = batch.views
        config = self.config
        labels = self.pseudo_labels(weak)
        self.momentum.ema_(self.student, config.ema)  # before the keys, with the student as the last step left it
        keys = self._momentum_pass(key_view, weak)
        self._key_entry = keys, labels
        features, logits, _ = self.model.read(query_view)
        terms = {"pseudo_label": config.w_pl * cross_entropy(logits, labels)}
        if config.w_contrast:
            # Labels as they were when the stored keys were written; the released code overwrites some of them first.
            same = labels.unsqueeze(1) == self.queue.labels
            contrast = info_nce(features, keys, self.queue.keys, same=same, temperature=config.temperature)
            terms["contrast"] = config.w_contrast * contrast
        if config.w_class:
            terms["class_diversity"] = config.w_class * class_diversity(logits)
        return terms

    @torch.no_grad()
    def _momentum_pass(self, key_view: Tensor, weak: Tensor) -> Tensor:
        """Unit keys (B, D) of the key view; the weak view, for the bank, rides in the same batch."""
        with untracked(self.norms.values()):  # running statistics are the student's
            features, logits, _ = self.model.read(torch.cat([key_view, weak]), adapter=self.momentum)
        count = len(key_view)
        self._bank_entry = features[count:], logits[count:].softmax(dim=-1)
        return F.normalize(features[:count], dim=-1)

    def after_step(self, batch: Batch) -> None:
        """Keys with their labels enter the queue, the momentum encoder's view of the batch the bank."""
        self.queue.write(*self._key_entry)
        if self.bank is None:  # a stream, which no pass came before
            self.bank = MemoryBank.over(self.model.head, self.config.bank_size or 16384)
        self.bank.write(*self._bank_entry)

    # -- state ---------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Tensor]:
        """Adds momentum encoder, queue and bank."""
        state = super().state_dict() | prefixed("momentum", self.momentum.tensors)
        state |= prefixed("queue", self.queue.state_dict())
        return state if self.bank is None else state | prefixed("bank", self.bank.state_dict())

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Inverse of `state_dict`."""
        super().load_state_dict(state)
        for name, tensor in part(state, "momentum").items():
            self.momentum.tensors[name].copy_(tensor)
        self.queue.load_state_dict(part(state, "queue"))
        self.bank = MemoryBank.restored(part(state, "bank"), self.model.head.weight.device)


class KeyQueue:
    """FIFO ring of unit keys (Q, D) with the pseudo-labels (Q,) that they were written with."""

    def __init__(self, keys: Tensor, labels: Tensor) -> None:
        self.keys, self.labels, self.pointer = keys, labels, 0

    @classmethod
    def random(cls, size: int, width: int, classes: int, generator: torch.Generator) -> KeyQueue:
        """Random unit keys with random labels, as released."""
        keys = F.normalize(torch.randn(size, width, generator=generator), dim=1)
        return cls(keys, torch.randint(classes, (size,), generator=generator))

    def to(self, device: torch.device) -> None:
        """Move the tensors."""
        self.keys, self.labels = self.keys.to(device), self.labels.to(device)

    @torch.no_grad()
    def write(self, keys: Tensor, labels: Tensor) -> None:
        """Overwrite the oldest B slots, wrapping around. keys (B, D) of unit length, labels (B,)."""
        size = len(self.keys)
        keys, labels = keys[-size:], labels[-size:]
        slots = (self.pointer + torch.arange(len(keys), device=self.keys.device)) % size
        self.keys[slots], self.labels[slots] = keys, labels
        self.pointer = (self.pointer + len(keys)) % size

    def state_dict(self) -> dict[str, Tensor]:
        """Tensors that restore the queue exactly."""
        return {"keys": self.keys, "labels": self.labels, "pointer": torch.tensor(self.pointer)}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Inverse of `state_dict`."""
        device = self.keys.device
        self.keys, self.labels = (state[name].to(device, copy=True) for name in ("keys", "labels"))
        self.pointer = int(state["pointer"])


def info_nce(query: Tensor, key: Tensor, negatives: Tensor, *, same: Tensor, temperature: float) -> Tensor:
    """-log of the share of the positive pair among it and the negatives of other classes   [AdaContrast Eq. L_ctr]

    Args:
        query: features (B, D), normalised here; key: unit keys (B, D) of the same images; negatives: unit (Q, D).
        same: (B, Q), True where a negative has the query's pseudo-label and is left out.
    """
    unit = F.normalize(query, dim=-1)
    positive = (unit * key).sum(dim=-1, keepdim=True)
    others = (unit @ negatives.T).masked_fill(same, -torch.inf)
    scores = torch.cat([positive, others], dim=1) / temperature
    return -scores.log_softmax(dim=1)[:, 0].mean()
