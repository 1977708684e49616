"""Run the models before and after on the images: probabilities and features of every image."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from dept.core.vit import Output
from dept.data.decoding import decode
from dept.data.images import ImageSet, decodable
from dept.data.loader import Runtime, TestPasses, Views, normalised, resolve_device
from dept.data.subsets import sample
from dept.data.views import test_view
from dept.models.files import ModelFile
from dept.models.model import Model
from dept.runs.inputs import images_of, models_of
from dept.runs.read import RunFiles

SAMPLE_SEED = 0


@dataclass(frozen=True)
class ReportOptions:
    """What the report measures, and on which images."""

    model: Path | None = None
    """source model, if it has moved since the run"""
    images: Path | None = None
    """target images, if they have moved since the run"""
    score: Path | None = None
    """labelled images to score before and after on (default: those of the run)"""
    limit: int = 1000
    """maximum number of images, sampled with a fixed seed (0: all)"""
    projection: Literal["auto", "pca", "tsne"] = "auto"
    """projection of the features: t-SNE (up to 2,000 images, needs scikit-learn) or PCA"""
    device: str = "auto"
    """cpu, cuda, mps or auto"""
    workers: int = 0
    """processes that decode images"""
    batch: int = 64
    """images per forward"""


@dataclass(frozen=True)
class Readout:
    """Outputs of a model: probabilities (n, C), features (n, D)."""

    probabilities: Tensor
    features: Tensor

    @property
    def predicted(self) -> Tensor:
        """Class indices (n,)."""
        return self.probabilities.argmax(dim=1)

    @property
    def confidence(self) -> Tensor:
        """Probability of the predicted class (n,)."""
        return self.probabilities.max(dim=1).values


@dataclass(frozen=True)
class Measured:
    """Both models on the same images."""

    images: ImageSet
    found: int
    """number of images that the sample was drawn from"""
    same_list: bool | None
    """whether these are the images that the run adapted to or held out (None: not recorded)"""
    model: Model
    """after adaptation"""
    before: Readout | None
    after: Readout

    @property
    def classes(self) -> tuple[str, ...]:
        """Class names."""
        return self.model.classes

    @property
    def labels(self) -> Tensor | None:
        """True classes (n,), if known."""
        return None if self.images.labels is None else torch.tensor(self.images.labels)

    def view(self, index: int) -> Image.Image:
        """The test view of an image, as the model sees it."""
        pre = self.model.card.preprocess
        return test_view(decode(self.images.paths[index], pre.channels), pre)

    def batch(self, indices: list[int]) -> Tensor:
        """Normalised test views (B, channels, H, W)."""
        pre = self.model.card.preprocess
        pixels = np.stack([np.asarray(self.view(i)).reshape(pre.size, pre.size, pre.channels) for i in indices])
        return normalised(torch.from_numpy(pixels), pre).to(self.model.device)


def measure(run: RunFiles, options: ReportOptions, source: ModelFile | None = None) -> Measured:
    """Run both models on the images.

    Args:
        source: the source model, if it is at hand.

    Raises:
        Missing: an input of the run was not found. The report is made without it.
        DataError: an input that the user gave was not found or does not fit.
    """
    runtime = Runtime(resolve_device(options.device), options.workers, options.batch)
    before, after = models_of(run, model=source or options.model, device=runtime.device)
    found, same = images_of(run, after, images=options.images, score=options.score)
    most = options.limit if options.limit > 0 else len(found)
    images = decodable(sample(found, most, seed=SAMPLE_SEED), channels=after.card.preprocess.channels)
    passes = TestPasses(images, Views(after.card.preprocess), runtime)
    models = [model for model in (before, after) if model is not None]
    outputs: list[list[Output]] = [[] for _ in models]
    with torch.no_grad():
        for batch in passes():
            for model, own in zip(models, outputs, strict=True):
                own.append(model.read(batch.views[0]))
    readouts = []
    for own in outputs:
        logits = torch.cat([output.logits.float().cpu() for output in own])
        features = torch.cat([output.features.float().cpu() for output in own])
        readouts.append(Readout(logits.softmax(dim=-1), features))
    return Measured(images, len(found), same, after.to("cpu"), readouts[0] if before else None, readouts[-1])
