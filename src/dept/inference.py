"""Predicting and evaluating with a model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from dept.data.decoding import upright
from dept.data.images import ImageSet, decodable, find_images, labelled_as
from dept.data.loader import Runtime, TestPasses, Views, normalised, resolve_device
from dept.data.views import test_view
from dept.errors import UsageError
from dept.metrics import Scores, finite, score
from dept.models.model import Model


@dataclass(frozen=True)
class Prediction:
    """What the model says about one image; `topk` are (class, probability), best first."""

    path: str
    label: str
    confidence: float
    topk: tuple[tuple[str, float], ...]
    features: tuple[float, ...] = ()


def predict(
    model: Model,
    images: str | Path | Image.Image | np.ndarray[Any, Any] | ImageSet,
    *,
    topk: int = 5,
    features: bool = False,
    device: str = "auto",
    workers: int = 0,
    batch: int = 64,
) -> list[Prediction]:
    """Labels of a folder, a list file, one file, a PIL image or an array (H, W[, 3]) of uint8.

    Files that do not decode are left out; `find_images` and `decodable` tell which.
    """
    if topk < 1:
        raise UsageError(f"`topk` must be at least 1, found {topk}.")
    runtime, pre = Runtime(resolve_device(device), workers, batch), model.card.preprocess
    if isinstance(images, (Image.Image, np.ndarray)):
        picture = images if isinstance(images, Image.Image) else Image.fromarray(images)
        view = np.asarray(test_view(upright(picture, pre.channels), pre))
        pixels = torch.from_numpy(view.copy()).reshape(1, pre.size, pre.size, pre.channels)
        return _predictions(model, [""], [normalised(pixels.to(runtime.device), pre)], topk, features)
    found = images if isinstance(images, ImageSet) else decodable(find_images(images), channels=pre.channels)
    passes = TestPasses(found, Views(pre), runtime)
    return _predictions(model, found.names(), (batch.views[0] for batch in passes()), topk, features)


def evaluate(
    model: Model,
    images: str | Path | ImageSet,
    *,
    device: str = "auto",
    workers: int = 0,
    batch: int = 64,
) -> Scores:
    """top1, mean_per_class, per_class, nll, ece and ci95 on labelled images (fractions)."""
    return evaluate_ensemble([model], images, device=device, workers=workers, batch=batch)  # the mean of one is itself


@torch.no_grad()
def _predictions(
    model: Model, names: list[str], views: Iterator[Tensor] | list[Tensor], topk: int, with_features: bool
) -> list[Prediction]:
    results: list[Prediction] = []
    model.eval()
    for images in views:
        output = model.to(images.device).read(images)
        best = finite(output.logits.softmax(dim=-1)).topk(min(topk, len(model.classes)), dim=-1)
        for row, (values, indices) in enumerate(zip(best.values.tolist(), best.indices.tolist(), strict=True)):
            ranked = tuple((model.classes[i], value) for i, value in zip(indices, values, strict=True))
            extra = tuple(output.features[row].tolist()) if with_features else ()
            results.append(Prediction(names[len(results)], *ranked[0], ranked, extra))
    return results


def as_row(prediction: Prediction) -> dict[str, Any]:
    """A prediction as a JSON object."""
    row = asdict(prediction)
    row["topk"] = [{"label": label, "probability": value} for label, value in prediction.topk]
    if not prediction.features:
        del row["features"]
    return row


def mean_probabilities(members: Sequence[Tensor]) -> Tensor:
    """Mean of the members' class probabilities, k × (n, C) -> (n, C); its argmax is that of their sum.   [SHOT]"""
    shapes = sorted({tuple(member.shape) for member in members})
    if len(shapes) != 1:
        raise ValueError(f"An ensemble needs at least one member, and the same images and classes for all: {shapes}.")
    return torch.stack(list(members)).mean(dim=0)


def evaluate_ensemble(
    models: Sequence[Model],
    images: str | Path | ImageSet,
    *,
    device: str = "auto",
    workers: int = 0,
    batch: int = 64,
) -> Scores:
    """As `evaluate`, for the mean of the models' probabilities; each model sees the images its own way."""
    from dept.runs.loops import class_probabilities  # `predict` starts without the run loops

    if len({model.classes for model in models}) != 1:
        raise ValueError("An ensemble needs at least one model, and the same classes in the same order for all.")
    classes = models[0].classes
    found = labelled_as(images, classes, "scored")
    if not isinstance(images, ImageSet):  # a set is taken as it is
        for channels in {model.card.preprocess.channels for model in models}:
            found = decodable(found, channels=channels)
    runtime = Runtime(resolve_device(device), workers, batch)
    members = [class_probabilities(model, found, runtime) for model in models]
    return score(mean_probabilities(members), torch.tensor(found.labels), classes)
