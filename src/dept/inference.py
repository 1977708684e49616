"""Predicting and evaluating with a model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from dept.core.adapter import Adapter
from dept.data.decoding import upright
from dept.data.images import ImageSet, decodable, find_images, labelled_as
from dept.data.loader import FirstPass, Runtime, TestPasses, Views, normalised, resolve_device
from dept.data.views import Preprocess, test_view
from dept.errors import UsageError
from dept.metrics import Scores, finite, score
from dept.models.files import load
from dept.models.model import Model

Picture = Image.Image | np.ndarray[Any, Any]
"""an image in memory; an array is (H, W[, 3]) of uint8"""


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
    images: str | Path | Picture | ImageSet,
    *,
    topk: int = 5,
    features: bool = False,
    device: str = "auto",
    workers: int = 0,
    batch: int = 64,
) -> list[Prediction]:
    """Labels of a folder, .tar archives, a list file, an address, one file, a PIL image or an array (H, W[, 3]).

    Files that do not decode are left out; `predict_readable` tells which. An ImageSet is taken as it is.
    """
    _check_topk(topk)
    runtime, pre = Runtime(resolve_device(device), workers, batch), model.card.preprocess
    if isinstance(images, (Image.Image, np.ndarray)):
        return _predictions(model, [""], [_test_views([images], pre, runtime)], topk, features)
    if not isinstance(images, ImageSet):
        found = find_images(images)
        return predict_readable(
            model, found, topk=topk, features=features, device=device, workers=workers, batch=batch
        )[0]
    passes = TestPasses(images, Views(pre), runtime)
    return _predictions(model, images.names(), (one.views[0] for one in passes()), topk, features)


def predict_readable(
    model: Model,
    images: ImageSet,
    *,
    topk: int = 5,
    features: bool = False,
    device: str = "auto",
    workers: int = 0,
    batch: int = 64,
) -> tuple[list[Prediction], ImageSet]:
    """Labels of the images that decode, and those images; the others are in its `skipped`. Each is decoded once."""
    _check_topk(topk)
    runtime = Runtime(resolve_device(device), workers, batch)
    first = FirstPass(images, Views(model.card.preprocess), runtime)
    made = _predictions(model, None, (one.views[0] for one in first), topk, features)
    good = first.readable
    return [replace(one, path=name) for one, name in zip(made, good.iter_names(), strict=True)], good


def _check_topk(topk: int) -> None:
    if topk < 1:
        raise UsageError(f"`topk` must be at least 1, found {topk}.")


class Classifier:
    """A model in the manner of scikit-learn: one row per image, none left out. It cannot be fitted.

    >>> classifier = Classifier.load("model.safetensors", adapter="runs/site/adapter.safetensors")
    >>> classifier.predict(paths)         # class names (n,)
    >>> classifier.predict_proba(paths)   # probabilities (n, C), a column for each of `classes_`
    """

    def __init__(self, model: Model, *, device: str = "auto", workers: int = 0, batch: int = 64) -> None:
        self.runtime = Runtime(resolve_device(device), workers, batch)
        self.model = model.to(self.runtime.device).eval()
        self.classes_ = np.array(model.classes)

    @classmethod
    def load(cls, model: str | Path, *, adapter: str | Path | Adapter | None = None, **runtime: Any) -> Classifier:
        """A model and an adapter of it, from files or the hub; `runtime` as in the constructor."""
        return cls(load(model, adapter=adapter), **runtime)

    @torch.no_grad()
    def predict_proba(self, images: Sequence[str | Path | Picture]) -> np.ndarray[Any, Any]:
        """Class probabilities (n, C) of paths, or of pictures in memory. A file that does not decode is an error."""
        from dept.runs.loops import class_probabilities  # `predict` starts without the run loops

        if isinstance(images, (str, Path)) or not len(images):
            raise UsageError(f"A list of images is expected, found {images!r}. `dept.predict` labels a folder.")
        paths = [Path(one) for one in images if isinstance(one, (str, Path))]
        if len(paths) == len(images):
            return class_probabilities(self.model, ImageSet(Path(), tuple(paths)), self.runtime).numpy()
        if paths:
            raise UsageError("Give either paths or pictures, not both in one list.")
        pictures, size = cast(Sequence[Picture], images), self.runtime.eval_batch
        groups = [pictures[at : at + size] for at in range(0, len(pictures), size)]
        logits = [self.model(_test_views(group, self.model.card.preprocess, self.runtime)) for group in groups]
        return finite(torch.cat(logits).softmax(dim=-1)).cpu().numpy()

    def predict(self, images: Sequence[str | Path | Picture]) -> np.ndarray[Any, Any]:
        """Class names (n,)."""
        named: np.ndarray[Any, Any] = self.classes_[self.predict_proba(images).argmax(axis=1)]
        return named

    def score(self, images: Sequence[str | Path | Picture], labels: Sequence[str]) -> float:
        """Accuracy against the true class names."""
        return float((self.predict(images) == np.asarray(labels)).mean())


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


def _test_views(pictures: Sequence[Picture], pre: Preprocess, runtime: Runtime) -> Tensor:
    """Pictures in memory as the model reads them, (B, channels, size, size)."""
    opened = [one if isinstance(one, Image.Image) else Image.fromarray(one) for one in pictures]
    views = np.stack([np.asarray(test_view(upright(one, pre.channels), pre)) for one in opened])
    pixels = torch.from_numpy(views).reshape(-1, pre.size, pre.size, pre.channels)
    return normalised(pixels.to(runtime.device), pre)


@torch.no_grad()
def _predictions(
    model: Model, names: list[str] | None, views: Iterator[Tensor] | list[Tensor], topk: int, with_features: bool
) -> list[Prediction]:
    results: list[Prediction] = []
    model.eval()
    for images in views:
        output = model.to(images.device).read(images)
        best = finite(output.logits.softmax(dim=-1)).topk(min(topk, len(model.classes)), dim=-1)
        for row, (values, indices) in enumerate(zip(best.values.tolist(), best.indices.tolist(), strict=True)):
            ranked = tuple((model.classes[i], value) for i, value in zip(indices, values, strict=True))
            extra = tuple(output.features[row].tolist()) if with_features else ()
            results.append(Prediction(names[len(results)] if names else "", *ranked[0], ranked, extra))
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
