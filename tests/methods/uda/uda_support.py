"""Tiny methods and batches with both domains."""

from __future__ import annotations

import dataclasses
from dataclasses import replace
from typing import Any

import torch

from dept import methods
from dept.core.vit import AdaptedModel
from dept.methods.uda.base import PairedBatch, UDAMethod
from support import random_batch, tiny_model

SMALL = {
    "batch": 4, "hidden": 8, "projections": 4, "classes_per_step": 2, "images_per_class": 2, "min_images": 1
}  # fmt: skip


def make(name: str, model: AdaptedModel | None = None, *, seed: int = 0, **changes: Any) -> UDAMethod:
    kind = methods.get(name)
    known = {field.name for field in dataclasses.fields(kind.Config)}
    small = {key: value for key, value in SMALL.items() if key in known}
    return kind((model or tiny_model()).train(), replace(kind.Config(), **small, **changes), seed=seed)


def paired_batch(size: int = 4, seed: int = 0) -> PairedBatch:
    target, source = random_batch("w", size, seed), random_batch("w", size, seed + 1000)
    return PairedBatch(target.views, target.index, source.views, torch.arange(size) % 3)
