"""One run of any kind: before → loop → after → finish. `adapt`, `train` and `uda` say what differs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from typing import Any, Literal, TypeVar, cast

import torch
from torch import Tensor

from dept.core import collective
from dept.core.blocks import can_be_prompted
from dept.data.images import ImageSet, decodable, files_state, list_hash, without
from dept.data.loader import FirstPass, Runtime, TestPasses, Views
from dept.data.subsets import sample
from dept.errors import DeptError, UsageError, some
from dept.methods.base import BaseConfig, Method
from dept.metrics import label_free, mean_per_class, per_class_accuracy, score
from dept.models.model import Model
from dept.runs.bad_images import MOST_READ
from dept.runs.distributed import keep_in_step
from dept.runs.environment import environment
from dept.runs.folder import RunFolder, kept
from dept.runs.loops import Event, collect
from dept.runs.record import Protocol, Result, skipped_files

FRESH_PROMPTS = (
    "The model was never trained with prompts, so {stages} x {prompts} were added. They begin as tokens of a blank "
    "image, which changes little. `dept train` gives better ones."
)


@dataclass(frozen=True)
class RunOptions:
    """How any run is run, beside the method's own Config."""

    seed: int = 0
    """seed of order, views and fresh parameters"""
    device: str = "auto"
    """cpu, cuda, mps or auto"""

    def __post_init__(self) -> None:
        if not 0 <= self.seed < 2**62:  # torch takes 64 bits, and two domains take two seeds
            raise UsageError(f"`seed` must be at least 0 and below 2^62, found {self.seed}.")


@dataclass(frozen=True)
class JobOptions(RunOptions):
    """Options of a run over images that are all known from the start."""

    workers: int = 0
    """processes that decode images and make views"""
    bad_images: Literal["auto", "leave-out", "replace"] = "auto"
    """files that do not decode: leave-out decodes all images before the first step to find them, replace puts the next
    image in their place when they come (auto: from 100,000 images on, of which 10,000 are then read out)"""


Options = TypeVar("Options", bound=RunOptions)


def with_settings(options: Options, settings: dict[str, Any]) -> tuple[Options, dict[str, Any]]:
    """Settings that are fields of the options go there; the rest belongs to the method's Config."""
    own = {name: value for name, value in settings.items() if name in options.__dataclass_fields__}
    return replace(options, **own), {name: value for name, value in settings.items() if name not in own}


def make_config(
    kind: type[Method], config: BaseConfig | None, preset: str | None, settings: dict[str, Any]
) -> BaseConfig:
    """The config to run with: given, or of the preset, with single fields overridden."""
    base = config or (kind.preset(preset) if preset else kind.Config())
    unknown = [name for name in settings if name not in base.__dataclass_fields__]
    if unknown:
        known = ", ".join(sorted(base.__dataclass_fields__))
        raise UsageError(f"Method {kind.name!r} has no setting {unknown[0]!r}. Its settings: {known}.")
    return replace(base, **settings)


def promptable(model: Model, kind: type[Method], *, stages: int, prompts: int, seed: int) -> tuple[Model, list[str]]:
    """The model as the method needs it, with fresh prompts where it needs them, and a note to the user about that."""
    if model.stages or not kind.needs_prompts:
        return model, []
    if not can_be_prompted(model.backbone):
        raise UsageError(
            f"Method {kind.name!r} tunes prompts, which need a timm ViT or Eva. This model is a "
            f"{type(model.backbone).__name__} ({model.card.arch}). The methods tent and shot need no prompts."
        )
    note = FRESH_PROMPTS.format(stages=stages, prompts=prompts)
    return model.with_prompts(stages, prompts, seed=seed), [note]


@dataclass
class Job:
    """One run into its folder.

    A subclass gives `steps` (the loop) and, where it has more to do, `before`, `on_step`, `after`, `write`, `save`
    and `restore`.
    """

    method: Method
    images: ImageSet
    """what is learned from"""
    protocol: Protocol
    folder: RunFolder
    options: JobOptions
    runtime: Runtime
    total: int
    """planned steps"""
    inputs: dict[str, Any]
    """where inputs lay, for the report"""
    notes: list[str]
    """what the user should know"""
    ended: bool = field(default=False, init=False)
    """set by `on_step`: the run needs no more steps"""
    _named: int = field(default=0, init=False)  # bad images that the user has heard of

    def run(self) -> Result:
        """Before → loop → after → finish, alone in the folder."""
        with self.folder.locked():
            try:
                return self._run()
            except ConnectionError as error:
                raise DeptError(f"{error} Use `resume` to continue from the last saved step.") from error

    def _run(self) -> Result:
        folder, state = self.folder, files_state(self.images)
        earlier = folder.configure({"protocol": self.protocol, "options": asdict(self.options), "files": state})
        if not folder.resume:
            folder.log("start", total=self.total, notes=self.notes, inputs=self.inputs)
        self.before()
        done = self.restore() if folder.resume else 0
        if collective.size() > 1 and not folder.resume:
            self.save(0)  # the more processes, the likelier one of them is lost within the first minute
        for event in kept(self.steps(done), self.method, folder, self.save):
            done = event.progress.step + 1
            self.on_step(event)
            self._name_bad_images()
            if event.epoch_end:
                keep_in_step(self.method)
            if self.ended:
                break
        self._name_bad_images()  # of the passes after the last step, or of a run without any
        record = {"images": len(self.images), "skipped": skipped_files(self.images), **self.method.counts()}
        if files_state(self.images) != earlier.get("files", state):
            self.notes.append("Some images have changed since the run began: it cannot be repeated exactly.")
        if self.method.skipped_steps:
            self.notes.append(f"{self.method.skipped_steps} steps were skipped: their gradients were not finite.")
            record["skipped_steps"] = self.method.skipped_steps
        record |= self.after(done) | {"protocol": self.protocol, "environment": environment(self.runtime)}
        result = cast(Result, record)
        self.write(result)
        folder.finish(result)
        return result

    def _name_bad_images(self) -> None:
        """Log the files that were found not to decode since the last step."""
        new = [f"{place} ({why})" for place, why in islice((self.images.replaced or {}).items(), self._named, None)]
        self._named += len(new)
        if new:
            self.folder.log("note", text=f"Replaced by the next image that decodes: {some(new)}.")

    def before(self) -> None:
        """What is measured before the first step."""

    def steps(self, start: int) -> Iterable[Event]:
        """The loop, from step `start` on."""
        raise NotImplementedError(f"{type(self).__name__} must say what it runs.")

    def on_step(self, event: Event) -> None:
        """Called after every step."""

    def after(self, done: int) -> dict[str, Any]:
        """Fields of the result that this kind of run has, after `done` steps."""
        return {}

    def write(self, result: Result) -> None:
        """Write the product, which may carry numbers of the result."""

    def save(self, next_step: int) -> None:
        """Write the state from which the run continues."""
        self.folder.save_state(self.method, next_step)

    def restore(self) -> int:
        """Inverse of `save`; returns the step to continue with."""
        return self.folder.load_state(self.method)[0]


@dataclass(frozen=True)
class Readings:
    """The model read out before and after a run: on labelled images to score on, else on the target's."""

    target: ImageSet
    labelled: ImageSet | None
    views: Views
    runtime: Runtime
    classes: tuple[str, ...]
    sample: ImageSet | None = None
    """stands for a target that nobody has checked, and that is too large to be read out as a whole"""

    @property
    def images(self) -> ImageSet:
        """The images that are read out."""
        return self.labelled or self.sample or self.target

    @property
    def scored(self) -> bool:
        """Whether there are labels."""
        return self.labelled is not None

    def __call__(self, method: Method) -> dict[str, Tensor]:
        """Probabilities (n, C) of every read-out of the method."""
        return collect(TestPasses(self.images, self.views, self.runtime)(), method)

    def top1(self, readouts: dict[str, Tensor]) -> dict[str, float]:
        """Accuracy of every read-out."""
        labels = torch.tensor(self.images.labels)
        return {name: float((p.argmax(dim=1) == labels).double().mean()) for name, p in readouts.items()}

    def mean_per_class(self, readouts: dict[str, Tensor]) -> dict[str, float]:
        """Mean per-class accuracy of every read-out."""
        labels = torch.tensor(self.images.labels)
        return {
            name: mean_per_class(per_class_accuracy(p.argmax(dim=1), labels, self.classes))
            for name, p in readouts.items()
        }

    def log(self, folder: RunFolder, step: int, readouts: dict[str, Tensor]) -> None:
        """Record the accuracy after `step` steps, where there are labels."""
        if self.scored:
            scores = {"top1": self.top1(readouts), "mean_per_class": self.mean_per_class(readouts)}
            folder.log("score", step=step, **scores)

    def compared(self, before: Tensor, after: Tensor) -> dict[str, Any]:
        """What changed from probabilities (n, C) before to those after, with scores where there are labels."""
        classes = self.classes
        found: dict[str, Any] = {"label_free": label_free(before, after, classes)}
        if self.sample is not None:
            found["sampled"] = len(self.sample)
        if self.scored:
            labels = torch.tensor(self.images.labels)
            found["skipped_scored"] = skipped_files(self.images)
            found |= {"before": score(before, labels, classes), "after": score(after, labels, classes)}
        return found

    @classmethod
    def first(
        cls,
        target: ImageSet,
        labelled: ImageSet | None,
        plain: Method,
        views: Views,
        runtime: Runtime,
        folder: RunFolder,
    ) -> tuple[Readings, dict[str, Tensor]]:
        """Read `plain` out, and find on the way which images decode: large folders are not decoded once more for it.

        Returns the readings over images that decode, and the probabilities (n, C) of every read-out.
        """
        assert isinstance(plain.model, Model)
        whole, channels = target.replaced is None, views.preprocess.channels
        part = None if whole else sample(target, MOST_READ, seed=views.seed)
        good, found = _read_first(labelled or part or target, plain, views, runtime, folder)
        if labelled is not None:
            labelled = good
            target = decodable(target, channels=channels, index=folder.index) if whole else target
            part = None
        elif whole:
            target = good
        elif part is not None and target.replaced is not None:
            target.replaced.update(good.skipped[len(part.skipped) :])
            part = good
        return cls(target, labelled, views, runtime, plain.model.classes, part), found

    @property
    def evaluated_on(self) -> str:
        """What a protocol calls these images."""
        if self.sample is not None:
            return f"a sample of {len(self.sample)} target images (transductive)"
        return "scored images" if self.scored else "target images (transductive)"


def _read_first(
    images: ImageSet, plain: Method, views: Views, runtime: Runtime, folder: RunFolder
) -> tuple[ImageSet, dict[str, Tensor]]:
    """The images that decode, and what every read-out says of them; a resumed run has both from its beginning."""
    channels = views.preprocess.channels
    seen = collective.from_first(lambda: folder.index.look(images.places, channels))
    if folder.resume and seen.known.all():
        good = without(images, seen.problems)
        stored = folder.load_start(list_hash(good))
        if stored is not None:
            folder.index.learn(images.places, seen.states, seen.problems, channels)
            return good, {"student": stored}
    first = FirstPass(images, views, runtime)
    found = collect(first, plain)
    folder.index.learn(images.places, seen.states, first.problems, channels)
    return first.readable, found


@dataclass
class ScoredJob(Job):
    """A run that is read out before and after, and scored in between where labels were given for that."""

    readings: Readings
    eval_every: int
    at_start: dict[str, Tensor]
    """probabilities (n, C) of every read-out before the first step"""

    def before(self) -> None:
        if not self.folder.resume:
            self.readings.log(self.folder, 0, self.at_start)
            self.folder.save_start(self.at_start["student"], list_hash(self.readings.images))

    def on_step(self, event: Event) -> None:
        if self.readings.scored and event.ends_epochs(self.eval_every):
            self.readings.log(self.folder, event.progress.step + 1, self.readings(self.method))

    def after(self, done: int) -> dict[str, Any]:
        self.at_end = self.readings(self.method)
        self.readings.log(self.folder, done, self.at_end)
        return self.readings.compared(self.at_start["student"], self.at_end["student"])
