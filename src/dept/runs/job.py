"""What comes before a run: its config, a model that the method can take, and what the user should know of both."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from dept.core.vit import can_be_prompted
from dept.errors import UsageError
from dept.methods.base import BaseConfig, Method
from dept.models.model import Model

FRESH_PROMPTS = (
    "The model was never trained with prompts: {stages} x {prompts} fresh, random ones were added. They start "
    "as noise tokens (accuracy may first drop a little) and have no source knowledge; `dept train` gives better ones."
)


def make_config(
    kind: type[Method], config: BaseConfig | None, preset: str | None, settings: dict[str, Any]
) -> BaseConfig:
    """The config to run with: given, or of the preset, with single fields overridden."""
    base = config or (kind.preset(preset) if preset else kind.Config())
    unknown = [name for name in settings if name not in base.__dataclass_fields__]
    if unknown:
        known = ", ".join(sorted(base.__dataclass_fields__))
        raise UsageError(f"Method {kind.name!r} has no setting {unknown[0]!r}. Its settings: {known}.")
    return replace(base, **settings)


def promptable(model: Model, kind: type[Method], *, stages: int, prompts: int, seed: int) -> tuple[Model, list[str]]:
    """The model as the method needs it, and what to tell the user: fresh prompts where DePT finds none."""
    if model.stages or not kind.needs_prompts:
        return model, []
    if not can_be_prompted(model.backbone):
        raise UsageError(
            f"Method {kind.name!r} tunes prompts, which need a plain timm ViT; this model is a "
            f"{type(model.backbone).__name__} ({model.card.arch}). Methods without prompts take any model: try "
            "--method tent or --method shot."
        )
    note = FRESH_PROMPTS.format(stages=stages, prompts=prompts)
    return model.with_prompts(stages, prompts, seed=seed), [note]
