"""One look at a model and a sample of images, before hours are spent on them."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch
from torch import Tensor

from dept.data.images import ImageSet
from dept.data.loader import FirstPass, Runtime, Views
from dept.data.subsets import sample
from dept.health import findings
from dept.health.findings import Finding
from dept.health.pixels import Looks, looks
from dept.metrics import finite, label_free
from dept.models.model import Model

CHECKS = (
    "readable files", "blank images", "colour", "normalisation", "brightness", "near-duplicates", "number of images",
    "predictions", "class shares",
)  # fmt: skip


@dataclass(frozen=True)
class Examined:
    """What was seen, and what is suspicious about it."""

    images: int
    """files that are there"""
    sampled: ImageSet
    """those that were looked at and can be read"""
    findings: tuple[Finding, ...]
    statistics: dict[str, float]
    seconds_per_image: float
    """to read it and predict it"""

    @property
    def passed(self) -> list[str]:
        """Checks without a finding."""
        return [name for name in CHECKS if name not in {one.check for one in self.findings}]


@torch.no_grad()
def examine(model: Model, images: ImageSet, runtime: Runtime, *, most: int, seed: int = 0) -> Examined:
    """Look at up to `most` images and at what the model says of them. A DataError if none can be read."""
    preprocess = model.card.preprocess
    model = model.to(runtime.device).eval()
    started = time.perf_counter()
    batches = FirstPass(sample(images, most, seed=seed), Views(preprocess), runtime)
    seen: list[Looks] = []
    predicted: list[Tensor] = []
    sums = torch.zeros(2, dtype=torch.float64)
    for batch in batches:
        view = batch.views[0]
        predicted.append(finite(model(view).softmax(dim=-1)).cpu())
        view = view.cpu()
        sums += torch.stack([view.double().sum(), view.double().square().sum()])
        mean, std = (torch.tensor(values).view(1, -1, 1, 1) for values in (preprocess.mean, preprocess.std))
        seen.append(looks(view * std + mean))
    good = batches.readable
    elapsed = time.perf_counter() - started
    look, probabilities = Looks.joined(seen), torch.cat(predicted)
    mean_square = sums / (len(good) * preprocess.channels * preprocess.size**2)
    normal_mean, normal_std = float(mean_square[0]), float((mean_square[1] - mean_square[0] ** 2).clamp_min(0).sqrt())
    found = (
        findings.unreadable(len(good), good.skipped),
        findings.blank(look),
        findings.grey(look, preprocess.channels),
        findings.normalisation(preprocess),
        findings.levels(look, preprocess, normal_mean, normal_std),
        findings.near_duplicates(look),
        findings.amount(len(images), len(model.classes)),
        findings.confidence(probabilities, model.classes),
        findings.uneven(probabilities),
    )
    statistics = {"normalised_mean": normal_mean, "normalised_std": normal_std, "colour": float(look.colour.mean())}
    free = label_free(probabilities, probabilities, model.classes)["before"]
    statistics |= {"confidence": free["confidence"], "effective_classes": free["effective_classes"]}
    raised = sorted((one for one in found if one is not None), key=lambda one: one.level)  # problems first
    return Examined(len(images), good, tuple(raised), statistics, elapsed / len(good))
