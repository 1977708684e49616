"""Run the models before and after on the images: probabilities and features of every image."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from dept.core.vit import Output
from dept.data.decoding import decode
from dept.data.images import ImageSet, decodable, find_images, find_labelled, list_hash
from dept.data.loader import Runtime, TestPasses, Views, normalised, resolve_device
from dept.data.sources import find_sources
from dept.data.views import test_view
from dept.errors import DataError
from dept.models.files import apply_adapter, load_adapter, load_model
from dept.models.model import Model
from dept.runs.read import RunFiles
from dept.runs.train import training_hash

SAMPLE_SEED = 0
IMAGES = "`images`, or `score` if they are labelled"


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


class Missing(Exception):
    """Model or images were not found. The message says which, and which parameter helps."""


def measure(run: RunFiles, options: ReportOptions) -> Measured:
    """Run both models on the images.

    Raises:
        Missing: an input of the run was not found. The report is made without it.
        DataError: an input that the user gave was not found or does not fit.
    """
    before, after = _models(run, options)
    images, found, same = _images(run, options, after)
    runtime = Runtime(resolve_device(options.device), options.workers, options.batch)
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
    return Measured(images, found, same, after.to("cpu"), readouts[0] if before else None, readouts[-1])


def _models(run: RunFiles, options: ReportOptions) -> tuple[Model | None, Model]:
    """The models before (None for source training) and after, in eval mode on the device."""
    device, adapts = resolve_device(options.device), run.kind in ("adapt", "stream")
    written = run.adapter if adapts else run.model
    if written is None:
        raise Missing(f"The run has not written {'adapter' if adapts else 'model'}.safetensors yet.")
    after = None if adapts else load_model(written).to(device)
    if run.kind == "train" and after is not None:
        return None, after
    source = options.model or _place(run.inputs.get("model"), "model", "`model`")
    try:
        before = load_model(source).to(device)
        after = after or apply_adapter(load_model(source), load_adapter(written, before)).to(device).eval()
    except DataError as error:
        if options.model is not None:
            raise
        raise Missing(f"{error} Pass the source model of the run as `model`.") from error
    return before, after


def _images(run: RunFiles, options: ReportOptions, model: Model) -> tuple[ImageSet, int, bool | None]:
    """The sample, the number of images it was drawn from, and whether they are the run's own."""
    same: bool | None
    channels = model.card.preprocess.channels
    if run.kind == "train" and options.score is None and options.images is None:
        found, same = _held_out(run, model), True
    else:
        found = _found(run, options, model)
        # `ratio` and Python callers select among a folder's images. The run identifies its list only by the hash,
        # which is of the images that could be decoded.
        recorded = None if run.kind == "train" else run.protocol.get("list_sha256")
        used = decodable(found, channels=channels) if recorded is not None and run.result.get("skipped") else found
        same = None if recorded is None else recorded == list_hash(used)
    sample = found
    if 0 < options.limit < len(found):
        sample = found.take(sorted(random.Random(SAMPLE_SEED).sample(range(len(found)), options.limit)))
    return decodable(sample, channels=channels), len(found), same


def _held_out(run: RunFiles, model: Model) -> ImageSet:
    """The held-out images of a source training, split off its sources again."""
    recorded: list[str | None] = [*run.sources] or [None]
    places = [_place(place, "images", IMAGES) for place in recorded]
    names = run.protocol.get("domains")  # only for several sources
    try:
        given = dict(zip(names, places, strict=True)) if names else places[0]
        sources = find_sources(given, model.classes)
        sources = sources.decodable(model.card.preprocess.channels) if run.result.get("skipped") else sources
        training, held_out = sources.split(run.protocol["config"]["held_out"], seed=run.protocol["seed"])
    except DataError as error:
        raise Missing(str(error)) from error
    if training_hash(training) != run.protocol["list_sha256"]:
        raise Missing(f"The source images are not those of the run: the file list differs. Pass others as {IMAGES}.")
    return held_out.union


def _found(run: RunFiles, options: ReportOptions, model: Model) -> ImageSet:
    if options.score is not None:
        return find_labelled(options.score, model.classes)
    if options.images is not None:
        return find_images(options.images)
    if run.kind == "stream":
        paths = tuple(Path(row["path"]) for row in run.predictions if "label" in row)
        if not paths or not paths[0].is_file():
            raise Missing(f"The images of the stream were not found. If they moved, pass them as {IMAGES}.")
        return ImageSet(Path(), paths)
    name = "score" if "score" in run.inputs else "images"
    place = _place(run.inputs.get(name), "images", IMAGES)
    try:
        return find_labelled(place, model.classes) if name == "score" else find_images(place)
    except DataError as error:
        raise Missing(str(error)) from error


def _place(recorded: str | None, what: str, parameter: str) -> Path:
    """Where an input is, by the path that the run recorded, if it still exists."""
    if recorded is None:
        raise Missing(f"The run does not record where its {what} came from. Pass {parameter}.")
    if not Path(recorded).exists():
        raise Missing(f"Not found: {recorded}, the {what} of the run. Pass the new place as {parameter}.")
    return Path(recorded)
