"""Settings that methods share. A Config is the flags, the help and the saved JSON of a method; no torch in here."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

MOST = 2**31  # more is a slip of the keyboard, and overflows in sizes and in float32
# Every number must be finite and at least 0, unless its name is here.
ALLOWS_MINUS_ONE = ("warmup", "domain_prompts")  # -1: chosen by the method
COUNTS = (
    "batch", "epochs", "steps_per_batch", "neighbours", "label_refresh", "iters_per_epoch",
    "generator_steps", "images_per_class", "classes_per_step", "min_images", "hidden", "projections", "queue_size",
    "projection_hidden", "projection_bottleneck", "projection_out", "iterations", "patches",
    "memory_size", "noise_patch",
)  # fmt: skip
POSITIVE = (
    "student_temperature", "teacher_temperature", "teacher_warmup_from", "temperature", "sharpening", "mix_alpha",
    "new_lr_scale", "head_lr_scale", "crop_scale", "softness",
)  # fmt: skip
BELOW_ONE = ("momentum", "label_smoothing", "held_out")
UP_TO_ONE = (
    "ema", "mean_ema", "center_momentum", "mean_momentum", "loss_momentum", "shot_share", "easy_share", "crop_scale",
    "backbone_scale", "source_share", "warmup_share", "restore", "confidence", "low_share", "drop", "noise",
)  # fmt: skip


def _check(name: str, value: float) -> None:
    """Refuse a setting that makes no sense, whoever gives it."""
    least = -1 if name in ALLOWS_MINUS_ONE else 1 if name in COUNTS else 0
    if not (least <= value < math.inf and (value > 0 or name not in POSITIVE)):  # nan is in no range
        bound = "above 0" if name in POSITIVE else f"at least {least}"
        finite = "" if isinstance(value, int) else " and finite"
        raise ValueError(f"{name} must be {bound}{finite}, found {value}.")
    if value > MOST:
        raise ValueError(f"{name} must be at most {MOST:,}, found {value:g}.")
    if value > 1 and name in UP_TO_ONE:
        raise ValueError(f"{name} must be at most 1, found {value}.")
    if value >= 1 and name in BELOW_ONE:
        raise ValueError(f"{name} must be below 1, found {value}.")


def check_numbers(config: object) -> None:
    """Refuse settings that make no sense."""
    for name, value in vars(config).items():
        for number in value if isinstance(value, tuple) else (value,):
            if isinstance(number, int | float) and not isinstance(number, bool):
                _check(name, number)


@dataclass(frozen=True)
class BaseConfig:
    """Settings that all methods share. A method's own Config adds fields and changes defaults."""

    lr: float = 1e-3
    """η, learning rate"""
    momentum: float = 0.9
    """SGD momentum"""
    nesterov: bool = False
    """Nesterov form of the momentum"""
    weight_decay: float = 0.0
    """SGD weight decay"""
    schedule: Literal["cosine", "constant"] = "constant"
    """learning rate over the run"""
    batch: int = 64
    """B, images per step"""
    epochs: int = 1
    """passes over the target images; divided by the ratio of images used, as the authors do"""
    max_iters: int = 0
    """steps; overrides epochs when above 0"""

    def __post_init__(self) -> None:
        check_numbers(self)


@dataclass(frozen=True)
class OnlineConfig(BaseConfig):
    """Settings that all test-time methods share."""

    predict: Literal["before", "after"] = "before"
    """online: a batch is predicted before or after the update it causes"""
    steps_per_batch: int = 1
    """online: updates per batch"""


@dataclass(frozen=True)
class OfflineConfig(OnlineConfig):
    """The recipe that the DePT paper gives all methods offline."""

    nesterov: bool = True
    """Nesterov form of the momentum"""
    weight_decay: float = 1e-4
    """SGD weight decay"""
    schedule: Literal["cosine", "constant"] = "cosine"
    """learning rate over the run"""
    batch: int = 128
    """B, images per step"""
    epochs: int = 15
    """passes over the target images; divided by the ratio of images used, as the authors do"""
