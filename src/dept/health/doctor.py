"""One look at a model and a sample of images, before hours are spent on them."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from functools import partial
from pathlib import PurePath

import torch
from torch import Tensor

from dept.data.images import ImageSet
from dept.data.loader import FirstPass, Runtime, Views
from dept.data.subsets import sample
from dept.health import findings
from dept.health.accuracy import accuracy_interval
from dept.health.findings import ENOUGH, Finding
from dept.health.pixels import Looks, looks
from dept.health.prior import believed
from dept.health.trials import TRIED, better_prepared
from dept.metrics import finite, label_free
from dept.models.model import Model
from dept.models.profile import Profile

CHECKS = (
    "readable files", "blank images", "colour", "channel order", "negatives", "normalisation", "brightness",
    "near-duplicates", "number of images", "class folders", "predictions", "class shares",
)  # fmt: skip
OF_COLOUR = ("colour", "channel order")
OF_MANY = ("channel order", "negatives", "predictions", "class shares")
"""checks that say nothing about a handful of images"""


@dataclass(frozen=True)
class Shift:
    """How far the images are from those of the source, as far as the model's card can tell."""

    moved: float
    """distance of the mean feature from the source's, in spreads (root of the mean squared distance from the mean)"""
    chance: float
    """what it would be for other images of the source"""
    source_accuracy: float
    accuracy: tuple[float, float]
    """interval of the accuracy on these images, wide"""

    @classmethod
    def measured(cls, features: Tensor, probabilities: Tensor, profile: Profile) -> Shift:
        """From features (n, D) and probabilities (n, C) of the images."""
        mean = features.mean(dim=0)
        spread = float((features - mean).square().sum(dim=1).mean().sqrt().clamp_min(1e-12))
        moved = float((mean - torch.tensor(profile.feature_mean).to(mean)).norm()) / spread
        chance = math.sqrt(1 / len(features) + 1 / profile.images)
        return cls(moved, chance, profile.accuracy, accuracy_interval(probabilities, profile))


@dataclass(frozen=True)
class Examined:
    """What was seen, and what is suspicious about it."""

    images: int
    """files that are there"""
    sampled: ImageSet
    """those that were looked at and can be read"""
    findings: tuple[Finding, ...]
    passed: tuple[str, ...]
    """checks without a finding"""
    statistics: dict[str, float]
    shift: Shift | None
    """None if the model has no card, or the images are too few"""
    seconds_per_image: float
    """to read it and predict it"""


@dataclass(frozen=True)
class _Seen:
    """What a pass over n images found."""

    looks: Looks
    probabilities: Tensor
    """(n, C)"""
    features: Tensor
    """(n, D)"""
    tried: Tensor
    """pixels of the first images (at most TRIED, channels, H, W), in [0, 1]"""
    mean: float
    std: float
    """of all normalised pixels"""


@torch.no_grad()
def examine(model: Model, images: ImageSet, runtime: Runtime, *, most: int, seed: int = 0) -> Examined:
    """Look at up to `most` images and at what the model says of them. A DataError if none can be read."""
    card, preprocess = model.card, model.card.preprocess
    model = model.to(runtime.device).eval()
    started = time.perf_counter()
    batches = FirstPass(sample(images, most, seed=seed), Views(preprocess), runtime)
    seen = _seen(model, batches)
    elapsed, good = time.perf_counter() - started, batches.readable
    impossible = findings.normalisation(preprocess)
    levels = findings.levels(seen.looks, preprocess, seen.mean, seen.std)
    otherwise = None
    if impossible is None and (levels is None or levels.level != "problem"):  # which trials would only repeat
        shows = seen.looks.std[: len(seen.tried)] >= findings.BLANK_STD
        predict = partial(_predicted, model, runtime)
        otherwise = better_prepared(predict, seen.tried[shows], preprocess, len(model.classes))
    found = (
        findings.unreadable(len(good), good.skipped),
        findings.blank(seen.looks),
        findings.grey(seen.looks, preprocess.channels),
        impossible,
        otherwise,
        levels,
        findings.near_duplicates(seen.looks),
        findings.amount(len(images), len(model.classes)),
        findings.folders([PurePath(name).parts[0] for name in good.iter_names() if "/" in name], model.classes),
        findings.confidence(seen.probabilities, model.classes),
        findings.unexpected_shares(seen.probabilities, believed("unknown", model.classes, card.prior)),
    )
    raised = sorted((one for one in found if one is not None), key=lambda one: one.level)  # problems first
    measurable = len(good) >= ENOUGH
    left_out = {one.check for one in raised} | {*(() if measurable else OF_MANY)}
    left_out |= {*(OF_COLOUR if preprocess.channels == 1 else ())}
    free = label_free(seen.probabilities, seen.probabilities, model.classes)["before"]
    statistics = {
        "normalised_mean": seen.mean,
        "normalised_std": seen.std,
        "colour": float(seen.looks.colour.mean()),
        "confidence": free["confidence"],
        "effective_classes": free["effective_classes"],
    }
    return Examined(
        images=len(images),
        sampled=good,
        findings=tuple(raised),
        passed=tuple(name for name in CHECKS if name not in left_out),
        statistics=statistics,
        shift=Shift.measured(seen.features, seen.probabilities, card.profile) if measurable and card.profile else None,
        seconds_per_image=elapsed / len(good),
    )


def _seen(model: Model, batches: FirstPass) -> _Seen:
    preprocess = model.card.preprocess
    mean, std = (torch.tensor(values).view(1, -1, 1, 1) for values in (preprocess.mean, preprocess.std))
    seen: list[Looks] = []
    predicted: list[Tensor] = []
    features: list[Tensor] = []
    tried: list[Tensor] = []
    sums = torch.zeros(3, dtype=torch.float64)
    for batch in batches:
        output, view = model.read(batch.views[0]), batch.views[0].cpu()
        predicted.append(finite(output.logits.softmax(dim=-1)).cpu())
        features.append(output.features.double().cpu())
        wide = view.double()
        sums += torch.stack([wide.sum(), wide.square().sum(), torch.tensor(wide.numel())])
        pixels = view * std + mean
        seen.append(looks(pixels))
        tried.append(pixels[: TRIED - sum(map(len, tried))])
    first, second = (sums[:2] / sums[2]).tolist()
    spread = math.sqrt(max(0.0, second - first**2))
    return _Seen(Looks.joined(seen), torch.cat(predicted), torch.cat(features), torch.cat(tried), first, spread)


def _predicted(model: Model, runtime: Runtime, prepared: Tensor) -> Tensor:
    """Probabilities (B, C) for normalised images (B, channels, H, W)."""
    return finite(model(prepared.to(runtime.device)).softmax(dim=-1)).cpu()
