"""SHOT++: SHOT, then labelling transfer. Liang et al., "Source data-absent unsupervised domain adaptation through
hypothesis transfer and labeling transfer", TPAMI 2021.

After SHOT, the target is split: in every predicted class the most confident images count as labelled by their
prediction, the others as unlabelled, and MixMatch trains encoder and head on both. One run does both steps.
Simplified: SHOT's first step is taken without the rotation task; labelled and unlabelled images come in the
proportion of the split, from one shuffled batch, instead of two loaders of equal batches; no second network; the second
step goes on with the source head (released: a new one, over 100 epochs).
Cost: as SHOT, then about three forwards and one and a half backwards per batch. Fails when: SHOT's confident
predictions are wrong: they become labels. A run of one epoch never gets to the second step.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from dept.core.adapter import Adapter
from dept.core.losses import entropy
from dept.core.select import select
from dept.data.loader import Batch
from dept.methods.base import Group, Passes, Progress
from dept.methods.shot import SHOT, read_all


class SHOTPlus(SHOT):
    """SHOT, then MixMatch from its confident to its unsure predictions."""

    name = "shotpp"
    title = "SHOT++"
    summary = "SHOT, then MixMatch from confident to unsure images (Liang et al., TPAMI 2021)"
    settings = ("offline",)
    views = "ww"

    @dataclass(frozen=True)
    class Config(SHOT.Config):
        """Defaults: 15 epochs of SHOT and 10 of MixMatch, whose constants are the released ones."""

        epochs: int = 25
        """passes over the target images, both steps together; divided by the ratio of images used"""
        shot_share: float = 0.6
        """share of the run that is SHOT; the second step begins at the nearest end of an epoch"""
        head_lr_scale: float = 10.0
        """factor on η for the head, which moves in the second step only"""
        easy_share: float = 0.0
        """share of each class that counts as labelled; 0: that of images with entropy below the mean"""
        sharpening: float = 0.5
        """T, guessed labels are averaged over two views and raised to the power 1/T"""
        mix_alpha: float = 0.75
        """α of the Beta distribution of the mixing weight"""
        w_unlabelled: float = 100.0
        """λ_u, final weight of the unlabelled term; grows linearly from 0 over the second step"""

    config: Config
    state_names = ("labels", "easy")
    presets = {
        "offline": {},
        # The second step alone, for a model that SHOT has adapted already.
        "second-step": {"shot_share": 0.0, "epochs": 10},
    }

    def prepare(self) -> None:
        """Two views of every image; SHOT's step uses the first."""
        self.views = self.config.view[0] * 2

    def tuned(self) -> list[Group]:
        """SHOT's encoder, and the head."""
        head = Group(tuple(select(self.model, "head")), self.config.lr * self.config.head_lr_scale)
        return [*super().tuned(), head]

    def setup(self) -> None:
        """The second step has not begun; when it will is known with the number of images."""
        super().setup()
        self.easy: Tensor | None = None
        self.second_start = 0

    # -- which step ----------------------------------------------------------------------------------------

    def begin(self, passes: Passes) -> None:
        """Plan the switch; pseudo-labels of the step that comes first."""
        config = self.config
        per_epoch = -(-passes.image_count // config.batch)
        total = config.max_iters or config.epochs * per_epoch
        epochs = max(1, round(config.shot_share * total / per_epoch)) if config.shot_share else 0
        self.second_start = epochs * per_epoch
        if epochs:
            super().begin(passes)
        else:
            self._transfer_labels(passes)

    def refresh(self, passes: Passes, epoch: int) -> None:
        """SHOT's pseudo-labels, until it is time for the split."""
        if self.progress.step + 1 == self.second_start:
            self._transfer_labels(passes)
        elif self.easy is None:
            super().refresh(passes, epoch)

    def before_step(self, passes: Passes) -> None:
        """SHOT's pseudo-labels, where steps count and not epochs; none after the split."""
        if self.easy is None:
            super().before_step(passes)

    def _transfer_labels(self, passes: Passes) -> None:
        """Begin the second step: predictions become labels, the easy ones are marked; momentum starts anew."""
        _, logits, index = read_all(self.model, passes)
        self.labels, self.easy = torch.empty_like(index), torch.empty_like(index, dtype=torch.bool)
        self.labels[index] = logits.argmax(dim=1)
        self.easy[index] = easy_split(logits, self.config.easy_share)
        assert self.optimizer is not None
        self.optimizer.state.clear()

    def lr_scale(self, progress: Progress) -> float:
        """The schedule, run through once in each step."""
        start = self.second_start
        if self.easy is not None:
            return super().lr_scale(Progress(progress.step - start, progress.total - start, progress.epoch))
        length = min(start or progress.total, progress.total)
        return super().lr_scale(Progress(min(progress.step, length), length, progress.epoch))

    # -- one step ------------------------------------------------------------------------------------------

    def loss(self, batch: Batch) -> dict[str, Tensor]:
        """SHOT's terms under a frozen head, or MixMatch's."""
        return super().loss(batch) if self.easy is None else self._mixmatch(batch)

    def _student(self, images: Tensor) -> Tensor:
        """With the head as a constant: without a gradient it does not move, not even by weight decay."""
        head = {name: tensor.detach() for name, tensor in self.model.head.named_parameters(prefix="head")}
        return self.model.read(images, adapter=Adapter(head)).logits

    def _mixmatch(self, batch: Batch) -> dict[str, Tensor]:
        """L_x + λ_u L_u on mixed images   [SHOT++, MixMatch]"""
        assert self.easy is not None and self.labels is not None
        first, second = batch.views
        rows = batch.index.to(self.easy.device)
        easy, labels = self.easy[rows], self.labels[rows]
        guesses = self._guess(first[~easy], second[~easy])
        images = torch.cat([first[easy], first[~easy], second[~easy]])
        targets = torch.cat([F.one_hot(labels[easy], guesses.shape[1]).to(guesses), guesses, guesses])
        images, targets = self._mixed(images, targets)
        logits: Tensor = self.model(images)
        known, terms = int(easy.sum()), {}
        if known:
            terms["labelled"] = -(targets[:known] * logits[:known].log_softmax(dim=-1)).sum(dim=-1).mean()
        if known < len(logits):
            gap = (logits[known:].softmax(dim=-1) - targets[known:]).square().mean()
            done, length = self.progress.step + 1 - self.second_start, self.progress.total - self.second_start
            ramp = min(max(done / max(length, 1), 0.0), 1.0)
            terms["unlabelled"] = self.config.w_unlabelled * ramp * gap
        return terms

    @torch.no_grad()
    def _guess(self, first: Tensor, second: Tensor) -> Tensor:
        """Sharpened mean prediction over the two views: (U, C)"""
        if not len(first):
            return self.model.head.weight.new_zeros(0, self.model.head.out_features)
        both = self.model(torch.cat([first, second])).softmax(dim=-1)
        return sharpened(both.unflatten(0, (2, -1)).mean(dim=0), self.config.sharpening)

    def _mixed(self, images: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Every row with another one; one weight of at least ½ for the whole batch, as released."""
        seed = int(torch.randint(2**31, (), generator=self.generator))
        weight = float(np.random.default_rng(seed).beta(self.config.mix_alpha, self.config.mix_alpha))
        weight = max(weight, 1 - weight)
        other = torch.randperm(len(images), generator=self.generator).to(images.device)
        return torch.lerp(images[other], images, weight), torch.lerp(targets[other], targets, weight)

    # -- state ---------------------------------------------------------------------------------------------

    def observe(self, test: Tensor, batch: Batch) -> tuple[Tensor, dict[str, float]]:
        """A stream is never split: SHOT-IM on its first view."""
        self.easy = None
        return super().observe(test, batch)

    def state_dict(self) -> dict[str, Tensor]:
        """Adds when the split is due."""
        return super().state_dict() | {"second_start": torch.tensor(self.second_start)}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Inverse of `state_dict`."""
        super().load_state_dict(state)
        self.second_start = int(state["second_start"])


def easy_split(logits: Tensor, share: float = 0.0) -> Tensor:
    """Which images are easy: of every predicted class, the `share` of lowest entropy. (n, C) -> (n,)   [SHOT++]

    `share` 0 stands for that of images whose entropy is below the mean.
    """
    values, labels = entropy(logits), logits.argmax(dim=1)
    share = share or float((values < values.mean()).double().mean())
    easy = torch.zeros_like(labels, dtype=torch.bool)
    for number in range(logits.shape[1]):
        rows = (labels == number).nonzero().squeeze(1)
        easy[rows[values[rows].argsort()[: int(len(rows) * share)]]] = True
    return easy


def sharpened(probabilities: Tensor, temperature: float) -> Tensor:
    """p^(1/T) / Σ p^(1/T): (B, C) -> (B, C)   [MixMatch]"""
    powers = probabilities.pow(1 / temperature)
    return powers / powers.sum(dim=-1, keepdim=True)
