"""Ensembles: the answer of several adapted models together.

Multi-source SHOT adapts each source model to the target by itself and sums their softmax outputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dept.data.folder import ImageSet
from dept.engine import Runtime
from dept.inference import class_probabilities, scorable
from dept.metrics import score
from dept.models import Model
from dept.runs import resolve_device


def mean_probabilities(members: Sequence[Tensor]) -> Tensor:
    """Mean of the members' class probabilities, k × (n, C) -> (n, C); its argmax is that of their sum.   [SHOT]"""
    if not members:
        raise ValueError("An ensemble needs at least one member.")
    shapes = {tuple(member.shape) for member in members}
    if len(shapes) > 1:
        raise ValueError(f"The members of an ensemble must score the same images and classes, found {sorted(shapes)}.")
    return torch.stack(list(members)).mean(dim=0)


def evaluate_ensemble(
    models: Sequence[Model],
    images: str | Path | ImageSet,
    *,
    device: str = "auto",
    workers: int = 0,
    batch: int = 64,
) -> dict[str, Any]:
    """As `evaluate`, for the mean of the models' probabilities; each model sees the images its own way."""
    if not models:
        raise ValueError("An ensemble needs at least one member.")
    classes = models[0].classes
    if any(model.classes != classes for model in models):
        raise ValueError("The models of an ensemble must have the same classes in the same order.")
    found = scorable(images, classes)
    runtime = Runtime(resolve_device(device), workers, batch)
    members = [class_probabilities(model, found, runtime) for model in models]
    return score(mean_probabilities(members), torch.tensor(found.labels), classes)
