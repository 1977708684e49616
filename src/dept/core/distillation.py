"""Self-distillation: an EMA teacher over the shared backbone, and the paper's hierarchical regulariser.

Source training and test-time adaptation use the same three terms with other weights.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor
from torch.func import functional_call

from dept.core import losses
from dept.core.adapter import Adapter, pick
from dept.core.projection import projection_sizes
from dept.core.vit import AdaptedModel, Embedded, Output


class Projected(NamedTuple):
    """Projections of CLS (B, K) and, per stage, of the aggregated prompts (B, P, K)."""

    cls: Tensor
    prompts: tuple[Tensor, ...]


class Distillation:
    """The teacher (an adapter), the DINO center, and the terms that compare student and teacher.

    Args:
        names: tensors that the teacher holds a moving average of; all others are shared with the student.
        momentum: share of the old teacher that stays at each update.
        center_momentum: share of the old center that stays.
    """

    def __init__(
        self, model: AdaptedModel, names: Iterable[str], *, momentum: float, center_momentum: float = 0.9
    ) -> None:
        self.model = model
        self.teacher = Adapter.of(model, names)
        self.momentum = momentum
        self.center_momentum = center_momentum
        width = projection_sizes(model.projections)["out"] if len(model.projections) else 1
        self.center = torch.zeros(width, device=model.head.weight.device)

    def update_teacher(self) -> None:
        """EMA step; done before the teacher's forward, with the student as the last step left it."""
        self.teacher.ema_(pick(self.model, self.teacher.tensors), self.momentum)

    @torch.no_grad()
    def teach(
        self, images: Tensor | Embedded, *, aggregated: bool, replaced: Mapping[str, Tensor] | None = None
    ) -> Output:
        """The teacher's outputs on normalised images, without a graph; `replaced` goes before its own tensors."""
        adapter = Adapter({**self.teacher.tensors, **(replaced or {})})
        return self.model.read(images, adapter=adapter, aggregated=aggregated)

    def project(self, output: Output, *, teacher: bool = False) -> Projected:
        """Project features with the last stage's head, aggregated prompts with their own stage's."""
        heads = list(self.model.projections)
        tensors = self.teacher.tensors if teacher else {}

        def apply(index: int, tokens: Tensor) -> Tensor:
            prefix = f"projections.{index}."
            own = {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}
            projected: Tensor = functional_call(heads[index], own, (tokens,)) if own else heads[index](tokens)
            return projected

        prompts = tuple(apply(index, tokens) for index, tokens in enumerate(output.prompts))
        cls = output.features[..., : self.model.token_width]  # all of it, or what stands beside the mean
        return Projected(apply(len(heads) - 1, cls), prompts)

    def cls_term(
        self,
        student: Projected,
        teacher: Projected,
        *,
        student_temperature: float,
        teacher_temperature: float,
    ) -> Tensor:
        """DINO loss on CLS; the center moves after the loss has used it."""
        loss = losses.dino(
            student.cls,
            teacher.cls,
            center=self.center,
            student_temperature=student_temperature,
            teacher_temperature=teacher_temperature,
        )
        self.center = losses.updated_center(self.center, teacher.cls, self.center_momentum)
        return loss

    def state_dict(self) -> dict[str, Tensor]:
        """Tensors that restore teacher and center exactly."""
        return {"center": self.center, **{f"teacher.{n}": t for n, t in self.teacher.tensors.items()}}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Inverse of `state_dict`."""
        self.center = state["center"].to(self.center)
        for name, tensor in self.teacher.tensors.items():
            tensor.copy_(state[f"teacher.{name}"])
