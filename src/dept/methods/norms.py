"""What the methods on norm layers share: one view of every image, and what moves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from dept.core.select import select
from dept.methods.base import Group, Method
from dept.methods.config import OnlineConfig


class NormTuning(Method):
    """A method that tunes the affine parameters of the norm layers with one forward and backward per batch."""

    forwards_per_step = 2.0

    @dataclass(frozen=True)
    class Config(OnlineConfig):
        """Defaults: one online pass over test views with the published ViT settings.

        The rate is for a batch of 64; for another size, scale it in proportion (η = 1e-3 B / 64).
        """

        view: Literal["test", "weak"] = "test"
        """the view that is adapted on"""

    config: Config
    reuses_forward = True

    def prepare(self) -> None:
        """One view, as the Config says."""
        self.views = self.config.view[0]

    def tuned(self) -> list[Group]:
        """Affine parameters of all normalisation layers."""
        return [Group(tuple(select(self.model, "norm")), self.config.lr)]
