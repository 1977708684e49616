"""The model before and after, run once more on the images: probabilities and features of every image."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from dept.core.vit import Output
from dept.data.images import ImageSet, decodable, decode, find_images, find_labelled, list_hash
from dept.data.loader import Runtime, TestPasses, Views, normalised, resolve_device
from dept.data.sources import find_sources
from dept.data.views import test_view
from dept.errors import DataError
from dept.models.files import apply_adapter, load_adapter, load_model
from dept.models.model import Model
from dept.runs.read import RunFiles
from dept.runs.train import training_hash

SAMPLE_SEED = 0
Reader = Callable[[Tensor], Output]


@dataclass(frozen=True)
class ReportOptions:
    """What the report measures, and on what."""

    model: Path | None = None
    """source model, if it is no longer where the run found it"""
    images: Path | None = None
    """target images, if they are no longer where the run found them"""
    score: Path | None = None
    """labelled images to score before and after on; default: those of the run"""
    limit: int = 1000
    """images to measure on, a fixed-seed sample; 0 for all"""
    projection: Literal["auto", "pca", "tsne"] = "auto"
    """picture of the features: t-SNE (up to 2,000 images, needs scikit-learn) or PCA"""
    device: str = "auto"
    """cpu, cuda, mps or auto"""
    workers: int = 0
    """processes that decode images"""
    batch: int = 64
    """images per forward"""


@dataclass(frozen=True)
class Readout:
    """What a model says: probabilities (n, C), features (n, D)."""

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
    """images that the sample was drawn from"""
    same_list: bool | None
    """whether these are the images that the run adapted to, or held out (None: the run does not say)"""
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
        """The test view of an image: what the model sees."""
        pre = self.model.card.preprocess
        return test_view(decode(self.images.paths[index], pre.channels), pre)

    def batch(self, indices: list[int]) -> Tensor:
        """Normalised test views (B, channels, H, W)."""
        pre = self.model.card.preprocess
        pixels = np.stack([np.asarray(self.view(i)).reshape(pre.size, pre.size, pre.channels) for i in indices])
        return normalised(torch.from_numpy(pixels), pre).to(self.model.device)


class Missing(Exception):
    """Model or images are not there; the sentence says which, and which flag helps."""


def measure(run: RunFiles, options: ReportOptions) -> Measured:
    """Run both models on the images.

    Raises:
        Missing: what the run used is gone. The report is made without it.
        DataError: what the user named is not there or does not fit.
    """
    before, after, model = _models(run, options)
    images, found, same = _images(run, options, model)
    runtime = Runtime(resolve_device(options.device), options.workers, options.batch)
    passes = TestPasses(images, Views(model.card.preprocess), runtime)
    readers = [reader for reader in (before, after) if reader is not None]
    parts: list[list[Output]] = [[] for _ in readers]
    with torch.no_grad():
        for batch in passes():
            for reader, part in zip(readers, parts, strict=True):
                part.append(reader(batch.views[0]))
    readouts = [_joined(part) for part in parts]
    return Measured(images, found, same, model.to("cpu"), readouts[0] if before else None, readouts[-1])


def _joined(parts: list[Output]) -> Readout:
    logits = torch.cat([part.logits.float().cpu() for part in parts])
    return Readout(logits.softmax(dim=-1), torch.cat([part.features.float().cpu() for part in parts]))


def _models(run: RunFiles, options: ReportOptions) -> tuple[Reader | None, Reader, Model]:
    """Readers of the model before (None if there is no such thing) and after, and the latter as a model."""
    device = resolve_device(options.device)
    if run.kind == "train":
        if run.model is None:
            raise Missing("The run has no model.safetensors yet.")
        trained = _loaded(run.model).to(device)
        return None, trained.read, trained
    source = _place(options.model, run.inputs.get("model"), "model", "--model")
    before = _loaded(source, strict=options.model is not None).to(device)
    if run.kind == "uda":
        if run.model is None:
            raise Missing("The run has no model.safetensors yet.")
        after = _loaded(run.model).to(device)
        return before.read, after.read, after
    if run.adapter is None:
        raise Missing("The run has no adapter.safetensors yet.")
    try:
        adapter = load_adapter(run.adapter, before)
    except DataError as error:
        if options.model is not None:
            raise
        raise Missing(f"{error} Name the right one with --model.") from error
    after = apply_adapter(_loaded(source), adapter).to(device).eval()
    return before.read, after.read, after


def _loaded(path: Path, *, strict: bool = True) -> Model:
    try:
        return load_model(path).eval()
    except DataError as error:
        if strict:
            raise
        raise Missing(f"{error} Name the right one with --model.") from error


def _images(run: RunFiles, options: ReportOptions, model: Model) -> tuple[ImageSet, int, bool | None]:
    """The sample, how many it is of, and whether they are the run's own images."""
    same: bool | None
    if run.kind == "train" and options.score is None and options.images is None:
        found, same = _held_out(run, model), True
    else:
        found = _found(run, options, model)
        same = _same_list(run, found)
    if 0 < options.limit < len(found):
        chosen = sorted(random.Random(SAMPLE_SEED).sample(range(len(found)), options.limit))
        return decodable(found.take(chosen)), len(found), same
    return decodable(found), len(found), same


def _same_list(run: RunFiles, found: ImageSet) -> bool | None:
    # `ratio` and Python callers choose among a folder's images; the run tells which list it used only by its hash.
    recorded = run.protocol.get("list_sha256")
    if recorded is None or run.kind == "train":
        return None
    used = decodable(found) if run.result.get("skipped") else found  # the hash is of the images that could be read
    return bool(recorded == list_hash(used))


def _held_out(run: RunFiles, model: Model) -> ImageSet:
    """The images that a training held out, drawn again from its sources: a model knows those it was trained on."""
    flag = "--images, or with labels --score"
    recorded: list[str | None] = [*run.sources] or [None]
    places = [_place(None, place, "images", flag) for place in recorded]
    names = run.protocol.get("domains")  # only of several sources
    try:
        given = dict(zip(names, places, strict=True)) if names else places[0]
        sources = find_sources(given, model.classes)
        sources = sources.decodable() if run.result.get("skipped") else sources
        training, held_out = sources.split(run.protocol["config"]["held_out"], seed=run.protocol["seed"])
    except DataError as error:
        raise Missing(str(error)) from error
    if training_hash(training) != run.protocol["list_sha256"]:
        raise Missing(f"The source images are not those of the run any more: the files differ. Name some with {flag}.")
    return held_out.union


def _found(run: RunFiles, options: ReportOptions, model: Model) -> ImageSet:
    if options.score is not None:
        return find_labelled(options.score, model.classes)
    if options.images is not None:
        return find_images(options.images)
    if run.kind == "stream":
        paths = tuple(Path(row["path"]) for row in run.predictions if "label" in row)
        if not paths or not paths[0].is_file():
            raise Missing("The images of the stream are not where they were; name them with --images or --score.")
        return ImageSet(Path(), paths)
    name = "score" if "score" in run.inputs else "images"
    place = _place(None, run.inputs.get(name), "images", "--images, or with labels --score")
    try:
        return find_labelled(place, model.classes) if name == "score" else find_images(place)
    except DataError as error:
        raise Missing(str(error)) from error


def _place(given: Path | None, recorded: str | None, what: str, flag: str) -> Path:
    """Where a file is: as the user says (whatever is there), or as the run says (if it is still there)."""
    if given is not None:
        return given
    if recorded is None:
        raise Missing(f"The run does not say where its {what} came from; name it with {flag}.")
    if not Path(recorded).exists():
        raise Missing(f"The {what} of the run, {recorded}, is gone; if it moved, name it with {flag}.")
    return Path(recorded)
