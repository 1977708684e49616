"""Source: no adaptation. The row every other one is compared with.

Cost: one forward per prediction. Fails when: the target is not like the source.
"""

from __future__ import annotations

from dept.data.loader import Batch
from dept.methods.base import Group, Method
from dept.methods.config import OnlineConfig


class Source(Method):
    """The source model as it is."""

    name = "source"
    title = "Source"
    summary = "no adaptation: the source model as it is"
    settings = ("offline", "online")
    forwards_per_step = 0.0
    Config = OnlineConfig

    def tuned(self) -> list[Group]:
        """Nothing."""
        return []

    def step(self, batch: Batch) -> dict[str, float]:
        """Does nothing."""
        return {}
