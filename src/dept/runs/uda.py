"""Adaptation with source and target images together: one call, one run folder, an ordinary model as the result."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from dept import methods
from dept.core.collective import only_first
from dept.data.images import ImageSet, find_images, labelled_as, list_hash
from dept.data.index import FileIndex
from dept.data.loader import Runtime, Views, resolve_device
from dept.data.views import Augment
from dept.errors import DataError
from dept.methods.uda.base import UDAConfig, UDAMethod
from dept.models.files import read_model, save_model
from dept.models.model import Model, fingerprint, with_history
from dept.runs import bad_images
from dept.runs.distributed import check_inputs, check_share
from dept.runs.folder import Listener, RunFolder, silent
from dept.runs.job import JobOptions, Readings, ScoredJob, make_config, with_settings
from dept.runs.loops import Domain, Event, paired, planned_pairs
from dept.runs.record import Result, places, protocol, scored_list, skipped_files
from dept.runs.words import adapted_with_source

WITH_SOURCE = "source and target together"  # what a protocol calls this setting


@dataclass(frozen=True)
class UDAOptions(JobOptions):
    """How `adapt_with_source` runs, beside the method's own Config."""

    eval_every: int = 0
    """evaluate every N epochs (0: only before and after); needs labelled images to score on"""


@dataclass(frozen=True)
class UDARun:
    """What `adapt_with_source` returns; print it to read it."""

    folder: Path
    file: Path
    result: Result
    model: Model = field(repr=False)
    before: Tensor = field(repr=False)
    after: Tensor = field(repr=False)
    scored: ImageSet | None = field(default=None, repr=False)
    """the images that were scored, without those that do not decode"""

    def __str__(self) -> str:
        return adapted_with_source(self.result, self.file)


def adapt_with_source(
    model: str | Path | Model,
    source: str | Path | ImageSet,
    target: str | Path | ImageSet,
    *,
    out: str | Path,
    method: str = "cdan",
    config: UDAConfig | None = None,
    preset: str | None = None,
    options: UDAOptions | None = None,
    score_on: str | Path | ImageSet | None = None,
    augmentation: Augment | None = None,
    resume: bool = False,
    overwrite: bool = False,
    listener: Listener = silent,
    **settings: Any,
) -> UDARun:
    """Train a model on labelled source and unlabelled target images; writes `model.safetensors` of the last step.

    Args:
        model: a model file, or a Model, which is then changed in place. Its classes must be the source's.
        source: a folder with one sub-folder per class, a list file, or an ImageSet with labels.
        target: a folder (any nesting), a list file, or an ImageSet; labels in it are not used.
        score_on: labelled images to score on; their labels never reach the adaptation.
        config, preset, settings: as in `adapt`.
    """
    options, settings = with_settings(options or UDAOptions(), settings)
    kind = methods.get(method, "uda")
    assert issubclass(kind, UDAMethod)
    made = make_config(kind, config, preset, settings)
    assert isinstance(made, UDAConfig)
    loaded, initial = (model, fingerprint(model)) if isinstance(model, Model) else read_model(model)
    runtime = Runtime(resolve_device(options.device), options.workers)
    check_share(made.batch, runtime.device)
    check_inputs(model=initial)
    folder = RunFolder(out, "model.safetensors", resume=resume, overwrite=overwrite, listener=listener)
    labelled = _labelled(source, loaded, options, folder.index)
    unlabelled = (target if isinstance(target, ImageSet) else find_images(target)).unlabelled()
    if bad_images.replaces(options.bad_images, len(unlabelled)):
        unlabelled = bad_images.unchecked(unlabelled)
    scored = None if score_on is None else labelled_as(score_on, loaded.classes, "scored")
    check_inputs(target=unlabelled, score=scored)
    augment = augmentation or loaded.card.augment
    # Two streams of random numbers, so that order and views of the domains do not depend on each other.
    views = [Views(loaded.card.preprocess, augment, 2 * options.seed + side) for side in (0, 1)]
    learner = kind(loaded.to(runtime.device), made, seed=options.seed)
    readings, at_start = Readings.first(unlabelled, scored, learner, views[1], runtime, folder)
    unlabelled, scored = readings.target, readings.labelled
    for name, images in (("source", labelled), ("target", unlabelled)):
        _check_size(name, images, made.batch)
    record = protocol(
        loaded,
        unlabelled,
        method=learner,
        config=made,
        augment=augment,
        seed=options.seed,
        initial_backbone_sha256=initial,
        source_images=len(labelled),
        source_list_sha256=list_hash(labelled),
        setting=WITH_SOURCE,
        readout="student, direct, last iterate",
        evaluated_on=readings.evaluated_on,
    )
    job = UDAJob(
        learner,
        unlabelled,
        record,
        folder,
        options,
        runtime,
        planned_pairs(made),
        places(model=model, source=source, images=target, score=score_on) | scored_list(scored),
        bad_images.note(labelled, unlabelled),
        readings,
        options.eval_every,
        at_start,
        (Domain(labelled, views[0]), Domain(unlabelled, views[1])),
    )
    result = job.run()
    before, after = job.at_start["student"], job.at_end["student"]
    return UDARun(folder.path, folder.product, result, loaded, before, after, scored)


def _labelled(images: str | Path | ImageSet, model: Model, options: UDAOptions, index: FileIndex) -> ImageSet:
    """Source images that decode, in the model's order of classes; a DataError if the class sets differ."""
    found, channels = labelled_as(images, model.classes, "source"), model.card.preprocess.channels
    check_inputs(source=found)
    usable = bad_images.usable(found, options.bad_images, channels=channels, index=index)
    absent = [name for number, name in enumerate(model.classes) if number not in set(usable.labels or ())]
    if absent:
        raise DataError(
            f"The source images in {usable.root} have no image of {absent[:5]}, which the model knows. Source and "
            "model must have the same classes. Add images, or train a model on the source's classes."
        )
    return usable


def _check_size(name: str, images: ImageSet, batch: int) -> None:
    if len(images) < batch:
        raise DataError(
            f"The {name} domain has {len(images)} usable images in {images.root}, fewer than one batch of {batch}. "
            f"Add images, or lower `batch` to {len(images)} or less."
        )


@dataclass
class UDAJob(ScoredJob):
    """One run with source and target images, which writes a whole model."""

    domains: tuple[Domain, Domain]
    """source and target"""

    def steps(self, start: int) -> Iterable[Event]:
        self.method.model.train()
        assert isinstance(self.method, UDAMethod)
        return paired(self.method, *self.domains, self.runtime, start=start)

    def after(self, done: int) -> dict[str, Any]:
        source = self.domains[0].images
        counts = {"method": self.method.name, "source_images": len(source), "steps": done}
        return counts | {"skipped": skipped_files(source, self.images)} | super().after(done)

    def write(self, result: Result) -> None:
        model = self.method.model
        assert isinstance(model, Model)
        sizes = {"images": result["images"], "source_images": result["source_images"]}
        config = {"config": asdict(self.method.config), "seed": self.options.seed}
        with_history(model, uda={"method": self.method.name, **config, **sizes})
        only_first(save_model)(model.eval(), self.folder.product)
