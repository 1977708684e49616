"""What RoTTA and CoTTA share: a student that learns, and a teacher, its average over time, that predicts.

Between steps the model is the teacher, so read-out and adapter are the teacher's. During a step it is the student.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dept.core.adapter import Adapter, pick
from dept.data.loader import Batch
from dept.methods.base import Method, part, prefixed
from dept.methods.config import OnlineConfig


class MeanTeacher(Method):
    """A method whose model is the moving average of what it trains."""

    @dataclass(frozen=True)
    class Config(OnlineConfig):
        """How slowly the teacher follows."""

        ema: float = 0.999
        """share of the old teacher that stays at each step"""

    config: Config

    def setup(self) -> None:
        """Student and teacher begin as the source model."""
        self.student = Adapter.of(self.model, self.trained_names)
        self.teacher = self.student.clone()

    def step(self, batch: Batch) -> dict[str, float]:
        """The student takes the model's place, learns, and leaves it to the teacher again (`after_step`)."""
        self.teacher = Adapter.of(self.model, self.trained_names)
        self.student.copy_to(self.model)
        return super().step(batch)

    def after_step(self, batch: Batch) -> None:
        """teacher <- m teacher + (1 - m) student, which the model becomes."""
        self.student = Adapter.of(self.model, self.trained_names)
        self.teacher.ema_(pick(self.model, self.trained_names), self.config.ema)
        self.teacher.copy_to(self.model)

    @torch.no_grad()
    def teach(self, images: Tensor) -> Tensor:
        """The teacher's logits (B, C) during a step."""
        return self.model.read(images, adapter=self.teacher).logits

    def state_dict(self) -> dict[str, Tensor]:
        """Adds the student; what is tuned of the model is the teacher."""
        return super().state_dict() | prefixed("student", self.student.tensors)

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Inverse of `state_dict`."""
        super().load_state_dict(state)
        for name, tensor in part(state, "student").items():
            self.student.tensors[name].copy_(tensor)
