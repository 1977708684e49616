"""What a run records: the protocol that every number carries, where inputs lay, what was skipped."""

from __future__ import annotations

from dataclasses import asdict
from os import PathLike
from pathlib import Path
from typing import Any, NotRequired, TypedDict, cast

from dept.data.images import ImageSet, list_hash
from dept.data.places import Place, Url, as_place
from dept.data.views import Augment
from dept.io import tensors_hash
from dept.methods.base import BaseConfig, Method
from dept.metrics import LabelFree, Scores
from dept.models.hub import is_reference
from dept.models.model import Model
from dept.runs.environment import Environment


class Protocol(TypedDict):
    """Everything that a number depends on besides the machine's rounding. Stored as JSON, compared field by field."""

    arch: str
    options: dict[str, Any]
    stages: int
    prompts: int
    preprocess: dict[str, Any]
    augment: dict[str, Any]
    images: int
    list_sha256: str
    method: str
    views: str
    config: dict[str, Any]
    seed: int
    readout: str
    amp: NotRequired[bool]
    stats_sha256: NotRequired[str]
    backbone_sha256: NotRequired[Any]
    """of the frozen backbone; of each member of an ensemble"""
    initial_backbone_sha256: NotRequired[str]
    setting: NotRequired[str]
    evaluated_on: NotRequired[str]
    ratio: NotRequired[float]
    subset: NotRequired[str]
    views_made_on: NotRequired[str]
    domains: NotRequired[dict[str, Any]]
    held_out: NotRequired[int]
    selection: NotRequired[str]
    source_images: NotRequired[int]
    source_list_sha256: NotRequired[str]
    stream: NotRequired[dict[str, Any]]
    reset: NotRequired[str]
    forced: NotRequired[list[str]]


class Predictions(TypedDict):
    """Predicted classes before and after, and the true ones, image by image."""

    before: list[int]
    after: list[int]
    labels: NotRequired[list[int]]


class Result(TypedDict):
    """What a run found out: result.json of a run folder, and the result of a benchmark cell."""

    images: int
    tunable_model: int
    tunable_total: int
    protocol: Protocol
    environment: Environment
    method: NotRequired[str]
    skipped: NotRequired[list[list[str]]]
    skipped_scored: NotRequired[list[list[str]]]
    notes: NotRequired[list[str]]
    label_free: NotRequired[LabelFree]
    sampled: NotRequired[int]
    """images that were read out before and after, where they are a sample of those adapted to"""
    before: NotRequired[Scores]
    after: NotRequired[Scores]
    readouts: NotRequired[dict[str, float]]
    """top-1 accuracy of every network and rule"""
    readouts_mean_per_class: NotRequired[dict[str, float]]
    adapter_bytes: NotRequired[int]
    expected: NotRequired[dict[str, Any]]
    """the gain as far as it can be told without labels, and the verdict that follows (see `health.expected`)"""
    auto: NotRequired[dict[str, Any]]
    """method auto: the candidates, their scores, and which was kept and why"""
    domains: NotRequired[Any]
    """adaptation: source domains that the prompts started from; training: a row per domain"""
    held_out: NotRequired[int]
    accuracy: NotRequired[float]
    best_epoch: NotRequired[int]
    epochs: NotRequired[int]
    source_images: NotRequired[int]
    steps: NotRequired[int]
    kept_steps: NotRequired[int]
    """after which the state that was kept was reached"""
    skipped_steps: NotRequired[int]
    """steps without effect, because their gradients were not finite"""
    guard: NotRequired[dict[str, Any]]
    """streams: how often the guard paused, and how often it went back (see `runs.guarded`)"""
    gain: NotRequired[float]
    gain_ci95: NotRequired[tuple[float, float]]
    predictions: NotRequired[Predictions]
    segments: NotRequired[dict[str, dict[str, float]]]
    members: NotRequired[dict[str, float]]
    curve: NotRequired[dict[str, dict[str, list[float]]]]
    seconds: NotRequired[float]


def protocol(
    model: Model,
    images: ImageSet | None,
    *,
    method: Method,
    config: BaseConfig,
    augment: Augment,
    seed: int,
    **entries: Any,
) -> Protocol:
    """The protocol of a run; `entries` are the optional fields that its kind has.

    Args:
        images: what is learned from; None for a stream, which does not know it before.
    """
    record = {
        "arch": model.card.arch,
        "options": model.card.options,
        "stages": model.stages,
        "prompts": model.prompts_per_stage,
        "preprocess": asdict(model.card.preprocess),
        "augment": asdict(augment),
        **({} if images is None else {"images": len(images), "list_sha256": list_hash(images)}),
        "method": method.name,
        "views": method.views,
        "config": asdict(config),
        "amp": model.amp,
        "seed": seed,
        **({"stats_sha256": tensors_hash(method.source_stats)} if method.source_stats else {}),
        **entries,
    }
    return cast(Protocol, record)


def places(**given: object) -> dict[str, str]:
    """Where inputs lie that were given as paths: `dept report` looks there. Not a setting: files may move."""
    named = {name: value for name, value in given.items() if isinstance(value, (str, PathLike, Url))}
    return {name: str(value if is_reference(value) else _place(value).absolute()) for name, value in named.items()}


def _place(value: str | PathLike[str] | Url) -> Place:
    return as_place(value if isinstance(value, str | Url) else Path(value))


def scored_list(images: ImageSet | None) -> dict[str, str]:
    """The hash by which `dept report` knows the scored images again, recorded beside their place."""
    return {} if images is None else {"score_sha256": list_hash(images)}


def shown(path: str | Place) -> str:
    """A path as people want to read it: from here if it is below, else whole."""
    place, here = as_place(path), Path.cwd()
    return place.relative_to(here).as_posix() if place.is_relative_to(here) else str(path)


def skipped_files(*sets: ImageSet) -> list[list[str]]:
    """Files that cannot be read, each with the reason, as results record them."""
    bad = (entry for images in sets for entry in (*images.skipped, *(images.replaced or {}).items()))
    return [[str(path), reason] for path, reason in bad]
