"""Measuring a source model's profile: on labelled source images, and on corrupted versions of them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from dept.data.corruptions import CORRUPTIONS, SMALLEST_SIDE, corrupt
from dept.data.images import ImageSet
from dept.data.loader import Runtime, TestPasses, Views, normalised
from dept.data.subsets import sample
from dept.data.views import Preprocess
from dept.health.accuracy import confidence, estimated_accuracy, fit_temperature, threshold_of
from dept.metrics import finite
from dept.models.model import Model
from dept.models.profile import Profile

MOST = 1000
"""images that are read"""
CORRUPTED = 64
"""of them, so many are corrupted in each of 15 ways"""
SEVERITY = 4
WITHOUT_CORRUPTIONS = (0.2, 0.4)
"""errors (80 %, 90 %) that are assumed of models whose images are too small to be corrupted"""


@torch.no_grad()
def measure_profile(model: Model, images: ImageSet, runtime: Runtime) -> Profile:
    """The profile of a model on labelled images, ideally ones that it was not trained on. The model is not changed."""
    model.to(runtime.device).eval()
    drawn = sample(images, MOST)
    labels = torch.tensor(drawn.labels)
    views = Views(model.card.preprocess)
    outputs, means = [], []
    for batch in TestPasses(drawn, views, runtime)():
        found = model.read(batch.views[0])
        outputs.append(finite(found.logits.softmax(dim=-1)).cpu())
        means.append(found.features.double().sum(dim=0).cpu())
    probabilities = torch.cat(outputs)
    accuracy = _accuracy(probabilities, labels)
    temperature = fit_temperature(probabilities, labels)
    threshold = threshold_of(confidence(probabilities, temperature), accuracy)
    mean = (torch.stack(means).sum(dim=0) / len(drawn)).float()
    profile = Profile(len(drawn), accuracy, temperature, threshold, 0.0, 0.0, tuple(round(x, 6) for x in mean.tolist()))
    error80, error90 = _errors(model, drawn, profile, runtime)
    return replace(profile, error80=error80, error90=error90)


def _errors(model: Model, images: ImageSet, profile: Profile, runtime: Runtime) -> tuple[float, float]:
    """80 % and 90 % quantile of the error of the estimated accuracy, over the corruptions."""
    if model.card.preprocess.size < SMALLEST_SIDE:
        return WITHOUT_CORRUPTIONS
    some = sample(images, CORRUPTED)
    labels = torch.tensor(some.labels)
    found: dict[str, list[Tensor]] = {name: [] for name in CORRUPTIONS}
    for batch in TestPasses(some, Views(model.card.preprocess), runtime)():
        pixels = _pixels(batch.views[0], model.card.preprocess)
        for name, parts in found.items():
            views = normalised(_corrupted(pixels, name, batch.index), model.card.preprocess).to(runtime.device)
            parts.append(finite(model(views).softmax(dim=-1)).cpu())
    outputs = [torch.cat(parts) for parts in found.values()]
    errors = torch.tensor([abs(estimated_accuracy(one, profile) - _accuracy(one, labels)) for one in outputs])
    return float(errors.quantile(0.8)), float(errors.quantile(0.9))


def _accuracy(probabilities: Tensor, labels: Tensor) -> float:
    return float((probabilities.argmax(dim=1) == labels).double().mean())


def _pixels(views: Tensor, pre: Preprocess) -> Tensor:
    """Inverse of `normalised`: float (B, channels, H, W) -> uint8 (B, H, W, channels)."""
    mean, std = (torch.tensor(values).view(1, -1, 1, 1) for values in (pre.mean, pre.std))
    return ((views.cpu() * std + mean) * 255).round().clamp(0, 255).to(torch.uint8).permute(0, 2, 3, 1)


def _corrupted(pixels: Tensor, name: str, index: Tensor) -> Tensor:
    """uint8 (B, H, W, channels), every image with its own random numbers."""
    grey = pixels.shape[-1] == 1
    made = [
        corrupt(image[..., 0] if grey else image, name, SEVERITY, seed=int(seed))
        for image, seed in zip(pixels.numpy(), index, strict=True)
    ]
    return torch.from_numpy(np.stack(made)[..., :1] if grey else np.stack(made))
