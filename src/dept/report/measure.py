"""Run the models before and after on the images: probabilities and features of every image."""

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
from dept.data.decoding import decode
from dept.data.images import ImageSet, decodable, find_images, find_labelled, list_hash
from dept.data.loader import Runtime, TestPasses, Views, normalised, resolve_device
from dept.data.sources import find_sources
from dept.data.views import test_view
from dept.errors import DataError, DeptError
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
    if options.score is not None:
        found = find_labelled(options.score, model.classes)
    elif options.images is not None:
        found = find_images(options.images)
    elif run.kind == "train":
        found = _held_out(run, model)
    else:
        found = _streamed(run) if run.kind == "stream" else _recorded(run, model)
    named = options.score is not None or options.images is not None
    # Python callers and `ratio` select among a folder's images. The run identifies its list only by the hash, which is
    # of the images that could be decoded.
    recorded = None if run.kind == "train" else run.protocol.get("list_sha256")
    same = True if run.kind == "train" and not named else None
    if recorded is not None:
        skipped = run.result.get("skipped") or run.result.get("skipped_scored")
        ours = list_hash(decodable(found, channels=model.card.preprocess.channels) if skipped else found)
        same = recorded == ours
        if not (named or same or run.inputs.get("score_sha256") == ours):
            raise Missing(_foreign(found.root))
    sample = found
    if 0 < options.limit < len(found):
        sample = found.take(sorted(random.Random(SAMPLE_SEED).sample(range(len(found)), options.limit)))
    return decodable(sample, channels=model.card.preprocess.channels), len(found), same


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
    except (DeptError, ValueError) as error:
        raise Missing(_foreign(places[0])) from error
    if training_hash(training) != run.protocol["list_sha256"]:
        raise Missing(f"The source images are not those of the run: the file list differs. Pass others as {IMAGES}.")
    if not all(map(_inside, sources.parts)):
        raise Missing(_foreign(places[0]))
    return held_out.union


def _streamed(run: RunFiles) -> ImageSet:
    """The images of a stream over a folder, if they are exactly those that are there."""
    place = _place(run.inputs.get("images"), "images", IMAGES)
    found = _found_at(find_images, place)
    there = {str(path.absolute()): path for path in found.paths}
    seen = {str(Path(row["path"]).absolute()): "label" in row for row in run.predictions}
    if seen.keys() != there.keys():
        raise Missing(_foreign(place))
    return ImageSet(Path(), tuple(there[path] for path, good in seen.items() if good))


def _recorded(run: RunFiles, model: Model) -> ImageSet:
    """The images where the run found them."""
    name = "score" if "score" in run.inputs else "images"
    place = _place(run.inputs.get(name), "images", IMAGES)
    return _found_at(lambda at: find_labelled(at, model.classes) if name == "score" else find_images(at), place)


def _found_at(find: Callable[[Path], ImageSet], place: Path) -> ImageSet:
    """Images below a place that a run folder names, which nobody else vouches for.

    No single image, nothing that a link or a list fetches from elsewhere, and no message that quotes a file: a run
    folder from somewhere else must not bring private pictures or text into a page that is passed on.
    """
    try:
        found = find(place)
    except (DeptError, OSError, ValueError) as error:
        raise Missing(_foreign(place)) from error
    if found.paths == (place,) or not _inside(found):
        raise Missing(_foreign(place))
    return found


def _inside(images: ImageSet) -> bool:
    root = images.root.resolve()
    return all(path.resolve().is_relative_to(root) for path in images.paths)


def _foreign(place: Path) -> str:
    return (
        f"The images in {place} are not the list of files that the run recorded, so they are left out. "
        f"To measure on them, pass them as {IMAGES}."
    )


def _place(recorded: str | None, what: str, parameter: str) -> Path:
    """Where an input is, by the path that the run recorded, if it still exists."""
    if recorded is None:
        raise Missing(f"The run does not record where its {what} came from. Pass {parameter}.")
    try:
        there = Path(recorded).exists()
    except (OSError, ValueError):  # a name that no file can have
        there = False
    if not there:
        raise Missing(f"Not found: {recorded}, the {what} of the run. Pass the new place as {parameter}.")
    return Path(recorded)
