"""RoTTA: robust test-time adaptation in dynamic scenarios. Yuan et al., CVPR 2023.

For streams whose classes come in blocks. A small memory keeps images that are balanced over the predicted classes,
recent, and certain. After every batch a student learns the teacher's predictions of the memory from strong views, old
images less than new ones; the teacher, an average of the student over time, predicts. Tunes the norm layers.
Without its robust batch norm, which a ViT has no use for: batch norm, if any, keeps the source's statistics. The strong
view of a remembered image is drawn once, when it comes.
Cost: a forward of the batch, two forwards and a backward of the memory, which holds two views of 64 images. Fails when:
streams are short: the teacher follows the student by a thousandth per step.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from dept.core.losses import entropy
from dept.data.loader import Batch
from dept.methods.base import part, prefixed
from dept.methods.mean_teacher import MeanTeacher
from dept.methods.norms import NormTuning


class RoTTA(MeanTeacher, NormTuning):
    """A teacher's predictions of a balanced, recent and certain memory, learned from strong views."""

    name = "rotta"
    title = "RoTTA"
    summary = "teacher and student over a memory of balanced, recent, certain images (Yuan et al., CVPR 2023)"
    settings = ("online",)
    forwards_per_step = 4.0
    sorted_classes = True

    @dataclass(frozen=True)
    class Config(MeanTeacher.Config, NormTuning.Config):
        """Defaults: the published online pass; one update per batch, which has as many images as the memory."""

        momentum: float = 0.9
        """β₁ of Adam"""
        nesterov: bool = False
        """unused: the optimiser is Adam"""
        memory_size: int = 64
        """N, images in memory; each predicted class may have N / C of them, and at least one"""
        w_age: float = 1.0
        """λ_t, weight of the age of an image when one must go"""
        w_entropy: float = 1.0
        """λ_u, weight of the entropy of its prediction"""

    config: Config
    presets = {"online": {}}

    def prepare(self) -> None:
        """The view that is predicted, and a strong one for the student."""
        super().prepare()
        self.views += "s"

    def optimizer_over(self, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
        """Adam."""
        config = self.config
        return torch.optim.Adam(groups, betas=(config.momentum, 0.999), weight_decay=config.weight_decay)

    def setup(self) -> None:
        """An empty memory."""
        super().setup()
        config, classes = self.config, self.model.head.out_features
        self.memory = BalancedMemory(config.memory_size, classes, w_age=config.w_age, w_entropy=config.w_entropy)

    def step(self, batch: Batch) -> dict[str, float]:
        """Offer the batch to the memory, image by image; then learn from the memory."""
        with torch.no_grad():
            self._logits = self.model(batch.views[0])
        found = zip(self._logits.argmax(dim=-1).tolist(), entropy(self._logits).tolist(), strict=True)
        for number, (label, uncertainty) in enumerate(found):
            # A copy: a slice would keep the whole batch alive.
            self.memory.offer(Item(tuple(view[number].clone() for view in batch.views), label, uncertainty))
        items = self.memory.items
        views = tuple(torch.stack(view) for view in zip(*(item.views for item in items), strict=True))
        return super().step(Batch(views, torch.arange(len(items))))

    def loss(self, batch: Batch) -> dict[str, Tensor]:
        """Mean of w(age) CE(teacher's prediction, student's of the strong view) over the memory   [RoTTA Eq. L]"""
        clean, strong = batch.views
        target = self.teach(clean).softmax(dim=-1)
        values = -(target * self.model(strong).log_softmax(dim=-1)).sum(dim=-1)
        ages = torch.tensor([item.age for item in self.memory.items]).to(values)
        return {"consistency": (timeliness(ages / self.memory.size) * values).mean()}

    def state_dict(self) -> dict[str, Tensor]:
        """Adds the memory."""
        return super().state_dict() | prefixed("memory", self.memory.state_dict())

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Inverse of `state_dict`."""
        super().load_state_dict(state)
        self.memory.load_state_dict(part(state, "memory"), self.model.head.weight.device)


def timeliness(ages: Tensor) -> Tensor:
    """e^-a / (1 + e^-a): ½ for a new image, less for older ones   [RoTTA Eq. timeliness]"""
    return (-ages).sigmoid()


class Item(NamedTuple):
    """A remembered image: its views, predicted class, entropy of the prediction, and images offered since it came."""

    views: tuple[Tensor, ...]
    label: int
    uncertainty: float
    age: int = 0


class BalancedMemory:
    """At most `size` items, `size` / C per class but at least one; what is old or uncertain goes first."""

    def __init__(self, size: int, classes: int, *, w_age: float = 1.0, w_entropy: float = 1.0) -> None:
        self.size, self.classes, self.w_age, self.w_entropy = size, classes, w_age, w_entropy
        self.items: list[Item] = []

    def offer(self, new: Item) -> None:
        """Take the item if there is room, or if it is better than the worst that it may replace. All grow older."""
        rivals = self._rivals(new.label)
        worst = max(rivals, key=self._rank, default=None)
        if worst is None or self.score(self.items[worst]) > self.score(new):
            if worst is not None:
                del self.items[worst]
            self.items.append(new)
        self.items = [item._replace(age=item.age + 1) for item in self.items]

    def score(self, item: Item) -> float:
        """λ_t / (1 + e^(-age/N)) + λ_u H / ln C: the higher, the sooner it goes   [RoTTA Eq. score]"""
        age = 1 / (1 + math.exp(-item.age / self.size))
        return self.w_age * age + self.w_entropy * item.uncertainty / math.log(max(self.classes, 2))

    def _rank(self, place: int) -> tuple[float, int]:
        return self.score(self.items[place]), place  # of two equals the later one

    def _rivals(self, label: int) -> list[int]:
        """Places of the items of which one must go for a new one of this class; none if there is room."""
        labels = [item.label for item in self.items]
        if labels.count(label) >= self.size / self.classes:  # the class has its share
            return [place for place, other in enumerate(labels) if other == label]
        if len(labels) < self.size:
            return []
        most = max(labels.count(other) for other in set(labels))
        return [place for place, other in enumerate(labels) if labels.count(other) == most]

    def state_dict(self) -> dict[str, Tensor]:
        """Tensors that restore the memory exactly."""
        if not self.items:
            return {}
        views = [torch.stack(view) for view in zip(*(item.views for item in self.items), strict=True)]
        return {f"view{number}": view for number, view in enumerate(views)} | {
            "labels": torch.tensor([item.label for item in self.items]),
            "ages": torch.tensor([item.age for item in self.items]),
            "uncertainties": torch.tensor([item.uncertainty for item in self.items], dtype=torch.float64),
        }

    def load_state_dict(self, state: dict[str, Tensor], device: torch.device) -> None:
        """Inverse of `state_dict`."""
        if not state:
            self.items = []
            return
        names = sorted(name for name in state if name.startswith("view"))
        views = zip(*(state[name].to(device, copy=True) for name in names), strict=True)
        rest = (state[name].tolist() for name in ("labels", "uncertainties", "ages"))
        self.items = [Item(tuple(own), *values) for own, *values in zip(views, *rest, strict=True)]
