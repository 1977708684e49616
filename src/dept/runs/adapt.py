"""Offline adaptation of a model to a folder of unlabelled images: one call, one run folder."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from dept import methods
from dept.core.adapter import Adapter, pick
from dept.data.images import ImageSet, decodable, find_images, find_labelled, labelled_as
from dept.data.loader import Runtime, TestPasses, Views, resolve_device
from dept.data.subsets import fraction
from dept.data.views import Augment
from dept.methods.base import BaseConfig, Method
from dept.methods.source import Source
from dept.metrics import label_free, score
from dept.models.domains import weigh_domains
from dept.models.files import adapter_meta, load_model, rest_hash, save_adapter
from dept.models.model import Model, fingerprint
from dept.models.stats import load_stats
from dept.runs.environment import environment
from dept.runs.folder import Listener, RunFolder, kept, silent
from dept.runs.job import make_config, promptable
from dept.runs.loops import collect, offline, planned_steps
from dept.runs.record import Protocol, check_seed, places, protocol, shown, skipped_files
from dept.runs.words import describe, few_steps


@dataclass(frozen=True)
class AdaptOptions:
    """How `adapt` runs, beside the method's own Config."""

    seed: int = 0
    """seed of order, views and fresh parameters"""
    ratio: float = 1.0
    """share of the target images that adaptation may use"""
    subset: Literal["uniform", "stratified"] = "uniform"
    """how --ratio draws: from all images alike, or from each true class (the authors' way; needs labelled images)"""
    stages: int = 4
    """M of fresh prompts, for a model that has none"""
    prompts: int = 50
    """P of fresh prompts, for a model that has none"""
    eval_every: int = 0
    """score every so many epochs (0: only before and after); needs --score"""
    domain_weights: Literal["mean", "signature"] = "mean"
    """model of several sources: prompts start from the mean of the domains, or more from those that look alike"""
    domain_temperature: float = 0.5
    """τ of --domain-weights signature, in mean distances between source domains; smaller picks the nearest"""
    stats: str = ""
    """source statistics file from `dept stats` (CFA needs it, EATA can use it)"""
    half: bool = False
    """store the adapter in fp16"""
    device: str = "auto"
    """cpu, cuda, mps or auto"""
    workers: int = 0
    """processes that decode images and make views"""
    augment: Literal["workers", "device"] = "workers"
    """where random views are made: in the workers (reference), or in batch on the device (equal up to rounding)"""
    amp: bool = False
    """run the backbone in bf16 (where the hardware has it); losses, bank and EMA stay in fp32"""
    compile: bool = False
    """torch.compile the backbone"""
    checkpoint: bool = False
    """recompute activations stage by stage: less memory, more time"""

    def __post_init__(self) -> None:
        check_seed(self.seed)


@dataclass(frozen=True)
class AdaptRun:
    """What `adapt` gives back; print it to read it."""

    folder: Path
    adapter: Path
    result: dict[str, Any]
    model: Model = field(repr=False)
    before: Tensor = field(repr=False)
    after: Tensor = field(repr=False)
    source: str = "MODEL"
    """the model file, if it was given as one"""
    scored: ImageSet | None = field(default=None, repr=False)
    """the images that were scored, without those that do not decode"""

    def __str__(self) -> str:
        return describe(self.result, self.folder, self.source)


def adapt(
    model: str | Path | Model,
    images: str | Path | ImageSet,
    *,
    out: str | Path,
    method: str = "dept",
    config: BaseConfig | None = None,
    preset: str | None = None,
    options: AdaptOptions | None = None,
    score_on: str | Path | ImageSet | None = None,
    augmentation: Augment | None = None,
    resume: bool = False,
    overwrite: bool = False,
    listener: Listener = silent,
    **settings: Any,
) -> AdaptRun:
    """Adapt to unlabelled images and write the adapter.

    Args:
        model: a model file, or a model (it is changed in place; one that gets prompts for DePT stays as it is but for
            a tuned backbone, see `AdaptRun.model`).
        images: a folder of any nesting, a list file, or an ImageSet; labels, if there are any, are not used.
        config: the method's Config; or `preset`, and `settings` that override single fields of either
            (`lr=…`) or of the options (`seed=…`).
        score_on: labelled images that the run is scored on. Labels score, they never adapt.
        augmentation: strength of the random views; the model's own by default.
    """
    options = options or AdaptOptions()
    own = {name: settings.pop(name) for name in list(settings) if name in AdaptOptions.__dataclass_fields__}
    options = replace(options, **own)
    kind = methods.get(method, "offline")
    config = make_config(kind, config, preset, settings)
    on_device = options.augment == "device"
    runtime = Runtime(resolve_device(options.device), options.workers, device_views=on_device)
    # eval: batch norm must neither use nor learn the statistics of a batch unless a method asks for it
    source = (load_model(model) if not isinstance(model, Model) else model).to(runtime.device).eval()
    target, scored = _images(images, score_on, source, options)
    domains = weigh_domains(
        source, target, runtime, rule=options.domain_weights, temperature=options.domain_temperature
    )
    given = source
    source, notes = promptable(given, kind, stages=options.stages, prompts=options.prompts, seed=options.seed)
    source.configure(amp=options.amp, compile=options.compile, checkpointing=options.checkpoint)
    folder = RunFolder(out, "adapter.safetensors", resume=resume, overwrite=overwrite, listener=listener)
    chosen, config = config, kind.scaled(config, options.ratio)
    if not chosen.max_iters and chosen.epochs == kind.Config().epochs:  # a length that was asked for is not discussed
        notes += few_steps(kind, config, len(target))
    strength = augmentation or source.card.augment
    inputs = places(model=model, images=images, score=score_on)
    job = _Job(given, source, target, scored, kind, config, options, runtime, folder, strength, domains, inputs)
    return job.run(notes)


def _images(
    images: str | Path | ImageSet, score_on: str | Path | ImageSet | None, model: Model, options: AdaptOptions
) -> tuple[ImageSet, ImageSet | None]:
    """The images to adapt on, without labels, and those to score on, with labels."""
    scored = None if score_on is None else decodable(labelled_as(score_on, model.classes, "scored"))
    needs_labels = options.ratio < 1 and options.subset == "stratified"
    if isinstance(images, ImageSet):
        found = images
    else:
        found = find_labelled(images, model.classes) if needs_labels else find_images(images)
    usable = decodable(found)
    return fraction(usable, options.ratio, rule=options.subset, seed=0).unlabelled(), scored


@dataclass
class _Job:
    """One adaptation: the loop, and what is written around it."""

    given: Model
    """what the user had: the model, still without the prompts that it may have been given for the run"""
    model: Model
    target: ImageSet
    scored: ImageSet | None
    kind: type[Method]
    config: BaseConfig
    options: AdaptOptions
    runtime: Runtime
    folder: RunFolder
    augment: Augment
    domains: dict[str, Any] | None
    inputs: dict[str, str]

    def run(self, notes: list[str]) -> AdaptRun:
        model, folder = self.model, self.folder
        self.sha = fingerprint(model)
        self.views = Views(model.card.preprocess, self.augment, self.options.seed)
        stats = load_stats(self.options.stats, model) if self.options.stats else None
        source = Source(self.given)  # first, because the last method that is made decides what is frozen
        self.method = self.kind(model, self.config, seed=self.options.seed, stats=stats)
        self.protocol = self._protocol()
        folder.configure({"protocol": self.protocol, "options": asdict(self.options)})
        before = self._readouts(self.method if self.given is model else source)
        if not folder.resume:
            total = planned_steps(self.config, len(self.target))
            folder.log("start", total=total, notes=notes, inputs=self.inputs)
            self._log_scores(before, step=0)
        start = folder.load_state(self.method)[0] if folder.resume else 0
        self._loop(start)
        after = self._readouts(self.method)
        self._log_scores(after, step=planned_steps(self.config, len(self.target)))
        model.configure()  # whoever uses the adapter, or this model, does so in fp32 unless asked otherwise
        return self._finish(before, after, notes)

    def _loop(self, start: int) -> None:
        """The visible loop; `kept` logs every step and saves."""
        if not self.method.groups:
            return  # nothing to tune (Source)
        steps = offline(self.method, self.target, self.views, self.runtime, start=start)
        for event in kept(steps, self.method, self.folder, partial(self.folder.save_state, self.method)):
            if self.scored is not None and event.ends_epochs(self.options.eval_every):
                self._log_scores(self._readouts(self.method), step=event.progress.step + 1)

    def _readouts(self, method: Method) -> dict[str, Tensor]:
        """Probabilities (n, C) of every read-out on the images that matter: scored ones, else the target's."""
        images = self.scored if self.scored is not None else self.target
        return collect(TestPasses(images, self.views, self.runtime)(), method)

    def _top1(self, readouts: dict[str, Tensor]) -> dict[str, float]:
        assert self.scored is not None and self.scored.labels is not None
        labels = torch.tensor(self.scored.labels)
        return {name: float((p.argmax(dim=1) == labels).double().mean()) for name, p in readouts.items()}

    def _log_scores(self, readouts: dict[str, Tensor], step: int) -> None:
        if self.scored is not None:
            self.folder.log("score", step=step, top1=self._top1(readouts))

    def _protocol(self) -> Protocol:
        options = self.options
        return protocol(
            self.model,
            self.target,
            method=self.method,
            config=self.config,
            augment=self.augment,
            seed=options.seed,
            backbone_sha256=self.sha,
            ratio=options.ratio,
            subset=options.subset if options.ratio < 1 else "all",
            setting="offline",
            views_made_on=options.augment,
            readout="student, direct, last iterate",
            evaluated_on="scored images" if self.scored is not None else "target images (transductive)",
            **self._domains(),
        )

    def _domains(self) -> dict[str, Any]:
        """The source domains that the prompts started from, for the records; nothing if there is only one."""
        return {"domains": self.domains} if self.domains else {}

    def _adapter(self) -> Adapter:
        """The tuned tensors; with weighted domains the prompts too, tuned or not: the model file has their mean."""
        adapter = self.method.adapter()
        if self.domains and self.domains["rule"] != "mean":
            adapter.tensors.setdefault("prompts", pick(self.model, ["prompts"])["prompts"].detach().clone())
        return adapter

    def _finish(self, start: dict[str, Tensor], end: dict[str, Tensor], notes: list[str]) -> AdaptRun:
        method, folder = self.method, self.folder
        before, after = start["student"], end["student"]
        result: dict[str, Any] = {
            "method": method.name,
            "images": len(self.target),
            "skipped": skipped_files(self.target),
            "notes": notes,
            **self._domains(),
            **method.counts(),
            "label_free": label_free(before, after, self.model.classes),
        }
        if self.scored is not None:
            labels = torch.tensor(self.scored.labels)
            result["skipped_scored"] = skipped_files(self.scored)
            result["before"] = score(before, labels, self.model.classes)
            result["after"] = score(after, labels, self.model.classes)
            result["readouts"] = self._top1(end)
        adapter = self._adapter()
        adapter.meta = adapter_meta(
            self.model,
            backbone_sha256=self.sha,
            rest_sha256=rest_hash(self.model, adapter.tensors),
            method=method.name,
            config=asdict(self.config),
            seed=self.options.seed,
            images=len(self.target),
            list_sha256=self.protocol["list_sha256"],
            metrics={k: result[k]["top1"] for k in ("before", "after") if k in result},
            **self._domains(),
        )
        path = save_adapter(adapter, folder.product, half=self.options.half)
        result["adapter_bytes"] = path.stat().st_size
        result["protocol"] = self.protocol
        result["environment"] = environment(self.runtime)
        folder.finish(result)
        folder.log("end")
        source = shown(self.inputs["model"]) if "model" in self.inputs else AdaptRun.source
        return AdaptRun(folder.path, path, result, self.model, before, after, source, self.scored)
