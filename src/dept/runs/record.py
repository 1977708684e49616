"""What a run records: the protocol that every number carries, where inputs lay, what was skipped."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from dept.data.images import ImageSet, list_hash
from dept.data.views import Augment
from dept.errors import UsageError
from dept.methods.base import BaseConfig, Method
from dept.models.model import Model, tensors_hash


def protocol(
    model: Model,
    images: ImageSet,
    *,
    method: Method,
    config: BaseConfig,
    augment: Augment,
    seed: int,
    **entries: Any,
) -> dict[str, Any]:
    """Everything that a number depends on besides the machine's rounding."""
    return {
        "arch": model.card.arch,
        "options": model.card.options,
        "stages": model.stages,
        "prompts": model.prompts_per_stage,
        "preprocess": asdict(model.card.preprocess),
        "augment": asdict(augment),
        "images": len(images),
        "list_sha256": list_hash(images),
        "method": method.name,
        "views": method.views,
        "config": asdict(config),
        "amp": model.amp,
        "seed": seed,
        **({"stats_sha256": tensors_hash(method.stats)} if method.stats else {}),
        **entries,
    }


def places(**given: object) -> dict[str, str]:
    """Where inputs lie that were given as paths: `dept report` looks there. Not a setting: files may move."""
    return {name: str(Path(value).absolute()) for name, value in given.items() if isinstance(value, (str, Path))}


def shown(path: str | Path) -> str:
    """A path as people want to read it: from here if it is below, else whole."""
    here = Path.cwd()
    return Path(path).relative_to(here).as_posix() if Path(path).is_relative_to(here) else str(path)


def skipped_files(*sets: ImageSet) -> list[list[str]]:
    """Files that do not decode, each with the reason, as results record them."""
    return [[str(path), reason] for images in sets for path, reason in images.skipped]


def check_seed(seed: int) -> None:
    """Refuse a seed that the generators of views and orders do not take."""
    if seed < 0:
        raise UsageError(f"--seed must be at least 0, found {seed}.")
