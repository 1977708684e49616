"""Settings that methods share. A Config is the flags, the help and the saved JSON of a method; no torch in here."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal


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
        for name, least in (("batch", 1), ("epochs", 1), ("max_iters", 0), ("steps_per_batch", 1)):
            if getattr(self, name, least) < least:
                raise ValueError(f"{name} must be at least {least}, found {getattr(self, name)}.")
        for name, end in (("lr", math.inf), ("momentum", 1.0), ("weight_decay", math.inf)):
            if not 0 <= getattr(self, name) < end:  # nan is in no range
                below = "finite" if end == math.inf else f"below {end:g}"
                raise ValueError(f"{name} must be at least 0 and {below}, found {getattr(self, name)}.")


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
