"""Offline adaptation of a model to a folder of unlabelled images: one call, one run folder."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from torch import Tensor

from dept import methods
from dept.core.adapter import Adapter, pick
from dept.data.images import ImageSet, decodable, find_images, find_labelled, labelled_as
from dept.data.loader import Runtime, Views, resolve_device
from dept.data.subsets import check_ratio, fraction
from dept.data.views import Augment
from dept.health.expected import expected_gain
from dept.health.prior import believed
from dept.methods.auto import Auto
from dept.methods.base import BaseConfig, Method
from dept.methods.source import Source
from dept.metrics import LabelFree
from dept.models.domains import weigh_domains
from dept.models.files import adapter_meta, read_model, rest_hash, save_adapter
from dept.models.model import Model, fingerprint
from dept.models.stats import load_stats, source_shares
from dept.runs.folder import Listener, RunFolder, silent
from dept.runs.job import JobOptions, Readings, ScoredJob, make_config, promptable, with_settings
from dept.runs.loops import Event, offline, planned_steps
from dept.runs.read import REJECTED
from dept.runs.record import Result, places, protocol, scored_list, shown
from dept.runs.words import adapted, long_enough


@dataclass(frozen=True)
class AdaptOptions(JobOptions):
    """How `adapt` runs, beside the method's own Config."""

    ratio: float = 1.0
    """share of the target images that adaptation may use"""
    subset: Literal["uniform", "stratified"] = "uniform"
    """how the share is drawn: from all images alike, or from each true class (the authors' way; needs labels)"""
    stages: int = 4
    """M of fresh prompts, for a model that has none"""
    prompts: int = 50
    """P of fresh prompts, for a model that has none"""
    eval_every: int = 0
    """evaluate every N epochs (0: only before and after); needs labelled images to score on"""
    domain_weights: Literal["mean", "signature"] = "mean"
    """model of several sources: prompts start from the mean of the domains, or more from those that look alike"""
    domain_temperature: float = 0.5
    """τ of signature weights, in mean distances between source domains; smaller picks the nearest"""
    fit_length: bool = True
    """make as many steps as the method usually needs where its default length gives fewer (never with a preset)"""
    stats: str = ""
    """source statistics file from `dept stats` (CFA needs it, EATA can use it)"""
    accept: bool = False
    """keep an adapter that counts as harmful; otherwise it is written as adapter.rejected.safetensors"""
    half: bool = False
    """store the adapter in fp16"""
    amp: bool = False
    """run the backbone in bf16 (where the hardware has it); losses, bank and EMA stay in fp32"""
    compile: bool = False
    """torch.compile the backbone"""
    checkpoint: bool = False
    """recompute activations stage by stage: less memory, more time"""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_ratio(self.ratio)


@dataclass(frozen=True)
class AdaptRun:
    """What `adapt` returns; print it to read it."""

    folder: Path
    adapter: Path
    result: Result
    model: Model = field(repr=False)
    before: Tensor = field(repr=False)
    after: Tensor = field(repr=False)
    source: str = "MODEL"
    """the model file, if it was given as one"""
    scored: ImageSet | None = field(default=None, repr=False)
    """the images that were scored, without those that do not decode"""

    @property
    def rejected(self) -> bool:
        """Whether the adapter counts as harmful, so that the source model should stay in use."""
        return self.adapter.name == REJECTED

    def __str__(self) -> str:
        return adapted(self.result, self.folder, self.adapter, self.source)


def adapt(
    model: str | Path | Model,
    images: str | Path | ImageSet,
    *,
    out: str | Path,
    method: str = "auto",
    config: BaseConfig | Auto.Config | None = None,
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
        model: a model file, or a model (it is changed in place; method auto leaves it as it is, and so does one that
            gives it prompts, but for a tuned backbone: see `AdaptRun.model`).
        images: a folder of any nesting, a list file, or an ImageSet; labels, if there are any, are not used.
        method: by default candidates are run and one is kept, see `dept.methods.auto`.
        config: the method's Config; or `preset`, and `settings` that override single fields of either
            (`lr=…`) or of the options (`seed=…`).
        score_on: labelled images that the run is scored on. Labels score, they never adapt.
        augmentation: strength of the random views; the model's own by default.
    """
    options, settings = with_settings(options or AdaptOptions(), settings)
    if method == Auto.name:
        from dept.runs.auto import adapt_auto  # which calls this function for its candidates

        return adapt_auto(
            model,
            images,
            out=out,
            config=Auto.configured(config, preset, settings),
            options=options,
            score_on=score_on,
            augmentation=augmentation,
            resume=resume,
            overwrite=overwrite,
            listener=listener,
        )
    kind = methods.get(method, "offline")
    assert config is None or isinstance(config, BaseConfig)
    chosen = make_config(kind, config, preset, settings)
    config = kind.scaled(chosen, options.ratio)
    runtime = Runtime(resolve_device(options.device), options.workers)
    given, sha = (model, fingerprint(model)) if isinstance(model, Model) else read_model(model)
    # eval: batch norm must neither use nor learn the statistics of a batch unless a method asks for it
    given = given.to(runtime.device).eval()
    folder = RunFolder(out, AdaptJob.product, resume=resume, overwrite=overwrite, listener=listener)
    target, scored = _images(images, score_on, given, options)
    domains = weigh_domains(given, target, runtime, rule=options.domain_weights, temperature=options.domain_temperature)
    source, notes = promptable(given, kind, stages=options.stages, prompts=options.prompts, seed=options.seed)
    source.configure(amp=options.amp, compile=options.compile, checkpointing=options.checkpoint)
    stats = load_stats(options.stats, source) if options.stats else None
    views = Views(source.card.preprocess, augmentation or source.card.augment, options.seed)
    # The model as the user had it, without the prompts that it may be given for the run. Made first, because the method
    # that is made last decides what is frozen.
    plain: Method = Source(given)
    if not chosen.max_iters and chosen.epochs == kind.Config().epochs:  # a length that was asked for is not discussed
        config, more = long_enough(kind, config, len(target), fit=options.fit_length and not preset)
        notes += more
    made = kind(source, config, seed=options.seed, stats=stats)
    readings, at_start = Readings.first(target, scored, made if source is given else plain, views, runtime)
    target, scored = readings.target, readings.labelled
    record = protocol(
        source,
        target,
        method=made,
        config=config,
        augment=views.augment,
        seed=options.seed,
        backbone_sha256=sha,
        ratio=options.ratio,
        subset=options.subset if options.ratio < 1 else "all",
        setting="offline",
        views_made_on="workers",
        readout="student, direct, last iterate",
        evaluated_on=readings.evaluated_on,
        **({"domains": domains} if domains else {}),
    )
    inputs = places(model=model, images=images, score=score_on) | scored_list(scored)
    total = planned_steps(config, len(target))
    job = AdaptJob(
        made, target, record, folder, options, runtime, total, inputs, notes, readings, options.eval_every, at_start
    )
    result = job.run()
    name = shown(inputs["model"]) if "model" in inputs else AdaptRun.source
    before, after = job.at_start["student"], job.at_end["student"]
    return AdaptRun(folder.path, job.file, result, source, before, after, name, scored)


def _images(
    images: str | Path | ImageSet, score_on: str | Path | ImageSet | None, model: Model, options: AdaptOptions
) -> tuple[ImageSet, ImageSet | None]:
    """The images to adapt on, without labels, and those to score on, with labels; bad files are among them still.

    Only where a choice depends on all that decode are they found at once: a share, and prompts weighted by signatures.
    """
    scored = None if score_on is None else labelled_as(score_on, model.classes, "scored")
    needs_labels = options.ratio < 1 and options.subset == "stratified"
    if isinstance(images, ImageSet):
        found = images
    else:
        found = find_labelled(images, model.classes) if needs_labels else find_images(images)
    if options.ratio < 1 or options.domain_weights != "mean":
        found = decodable(found, channels=model.card.preprocess.channels)
    return fraction(found, options.ratio, rule=options.subset, seed=0).unlabelled(), scored


class AdaptJob(ScoredJob):
    """One adaptation, which writes an adapter."""

    product = "adapter.safetensors"
    options: AdaptOptions

    def steps(self, start: int) -> Iterable[Event]:
        if not self.method.groups:
            return ()  # nothing to tune (Source)
        return offline(self.method, self.images, self.readings.views, self.runtime, start=start)

    def after(self, done: int) -> dict[str, Any]:
        found = super().after(done)
        scored = {}
        if self.readings.scored:
            scored["readouts"] = self.readings.top1(self.at_end)
            scored["readouts_mean_per_class"] = self.readings.mean_per_class(self.at_end)
        expected = {"expected": self._expected(found["label_free"])}
        harmful = expected["expected"]["verdict"] == "harmful"
        self.file = self.folder.path / REJECTED if harmful and not self.options.accept else self.folder.product
        return {"method": self.method.name, "notes": self.notes, **self._domains(), **found, **expected, **scored}

    def _expected(self, free: LabelFree) -> dict[str, Any]:
        """What the run gained, as far as it can be told without labels."""
        assert isinstance(self.method.model, Model)
        prior = believed("unknown", self.readings.classes, source_shares(self.method.model, self.method.source_stats))
        shares = (free["before"]["shares"], free["after"]["shares"])
        return expected_gain(*shares, free["changed"], len(self.readings.images), prior).record()

    def write(self, result: Result) -> None:
        model, adapter = self.method.model, self._adapter()
        assert isinstance(model, Model)
        model.configure()  # whoever uses the adapter, or this model, does so in fp32 unless asked otherwise
        adapter.meta = adapter_meta(
            model,
            backbone_sha256=self.protocol["backbone_sha256"],
            rest_sha256=rest_hash(model, adapter.tensors),
            method=self.method.name,
            config=asdict(self.method.config),
            seed=self.options.seed,
            images=len(self.images),
            list_sha256=self.protocol["list_sha256"],
            metrics={k: result[k]["top1"] for k in ("before", "after") if k in result},
            **self._domains(),
        )
        save_adapter(adapter, self.file, half=self.options.half)
        result["adapter_bytes"] = self.file.stat().st_size
        # What an earlier run has left under the other name is not this run's. It is kept as an earlier version.
        other = self.folder.product if self.file.name == REJECTED else self.folder.path / REJECTED
        other.unlink(missing_ok=True)

    def _adapter(self) -> Adapter:
        """The tuned tensors; with weighted domains the prompts too, tuned or not: the model file has their mean."""
        adapter, domains = self.method.adapter(), self.protocol.get("domains")
        if domains and domains["rule"] != "mean":
            prompts = pick(self.method.model, ["prompts"])["prompts"]
            adapter.tensors.setdefault("prompts", prompts.detach().clone())
        return adapter

    def _domains(self) -> dict[str, Any]:
        """The source domains that the prompts started from; nothing if there is only one."""
        return {"domains": self.protocol["domains"]} if "domains" in self.protocol else {}
