"""Automatic choice: candidates are run in turn, and one is kept. Ours, no paper.

Not a method of its own but a choice among them, made without labels (`dept/health/choice.py`): NEO, which only
re-centres the head; DePT+, or SHOT where prompts cannot enter; and NOTELA, which assumes nothing about class shares,
where the target's seem to be unlike the source's. The source model is kept if nothing promises to be better.
Cost: at most half as much again as its longest candidate. Fails when: class shares are unlike the source's and nobody
says so (`prior`): the test for that is not exact.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

from dept.errors import UsageError
from dept.methods.config import check_numbers


class Auto:
    """Candidates in turn, of which one is kept. `dept.runs.auto` runs them."""

    name = "auto"
    title = "Auto"
    summary = "runs candidates and keeps the best of them, chosen without labels (ours)"
    settings: ClassVar[tuple[str, ...]] = ("auto",)
    relabels = False
    presets: ClassVar[dict[str, dict[str, Any]]] = {}

    @dataclass(frozen=True)
    class Config:
        """How long to try."""

        budget: str = ""
        """most time to take, such as 90s, 5m or 1h; by default as much as `max_iters` takes"""
        max_iters: int = 0
        """steps of the longest candidate; 0: 15 epochs, but at least 300 steps"""
        batch: int = 32
        """B, images per step"""

        def __post_init__(self) -> None:
            check_numbers(self)

    config: Config

    @classmethod
    def configured(cls, config: object, preset: str | None, settings: dict[str, Any]) -> Config:
        """The config to run with: given or the default, with single fields overridden."""
        base = cls.Config() if config is None else config
        if preset or not isinstance(base, cls.Config):
            given = f"preset {preset!r}" if preset else f"a {type(config).__qualname__}"
            raise UsageError(f"Method 'auto' has no presets and a Config of its own, found {given}. Choose a `method`.")
        unknown = [name for name in settings if name not in cls.Config.__dataclass_fields__]
        if unknown:
            known = ", ".join(sorted(cls.Config.__dataclass_fields__))
            raise UsageError(
                f"Method 'auto' has no setting {unknown[0]!r}. Its settings: {known}. Choose a `method` to set more."
            )
        return replace(base, **settings)
