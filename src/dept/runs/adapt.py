"""Offline adaptation of a model to a folder of unlabelled images: one call, one run folder."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any, Literal

from torch import Tensor

from dept import methods
from dept.core.adapter import Adapter, pick
from dept.core.collective import from_first, only_first
from dept.data.images import ImageSet, decodable, find_images, find_labelled, labelled_as
from dept.data.index import FileIndex
from dept.data.loader import Runtime, TestPasses, Views, resolve_device
from dept.data.subsets import check_ratio, fraction, sample
from dept.data.views import Augment
from dept.health.prior import Prior, believed
from dept.health.stopping import SAMPLE
from dept.methods.auto import Auto
from dept.methods.base import BaseConfig, Method, part, prefixed
from dept.methods.source import Source
from dept.models.domains import weigh_domains
from dept.models.files import adapter_meta, read_model, rest_hash, save_adapter
from dept.models.model import Model, fingerprint
from dept.models.stats import load_stats, source_shares
from dept.runs import bad_images
from dept.runs.distributed import check_inputs, check_share
from dept.runs.folder import Listener, RunFolder, silent
from dept.runs.job import JobOptions, Readings, ScoredJob, make_config, promptable, with_settings
from dept.runs.loops import Event, collect, offline, planned_steps
from dept.runs.outlook import Keeper, Outlook
from dept.runs.read import REJECTED
from dept.runs.record import Result, places, protocol, scored_list, shown
from dept.runs.words import NO_CARD, adapted, long_enough

READOUT = {"last": "last iterate", "best": "state nearest to the expected class shares"}


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
    prior: str = "unknown"
    """class shares of the target: source, uniform, a JSON file {class: share}, or unknown (guessed and tested)"""
    keep: Literal["last", "best"] = "last"
    """state of the run that is kept: the last, or the one nearest to the expected class shares (and end early)"""
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
    model: str | PathLike[str] | Model,
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
        images: a folder of any nesting, .tar archives, a list file, an address (s3://…), or an ImageSet; labels, if
            there are any, are not used.
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
    check_share(config.batch, runtime.device)
    given, sha = (model, fingerprint(model)) if isinstance(model, Model) else read_model(model)
    check_inputs(model=sha)
    # eval: batch norm must neither use nor learn the statistics of a batch unless a method asks for it
    given = given.to(runtime.device).eval()
    folder = RunFolder(out, AdaptJob.product, resume=resume, overwrite=overwrite, listener=listener)
    target, scored = _images(images, score_on, given, options, folder.index)
    domains = weigh_domains(given, target, runtime, rule=options.domain_weights, temperature=options.domain_temperature)
    source, notes = promptable(given, kind, stages=options.stages, prompts=options.prompts, seed=options.seed)
    source.configure(amp=options.amp, compile=options.compile, checkpointing=options.checkpoint)
    stats = load_stats(options.stats, source) if options.stats else None
    shares = source_shares(source, stats)
    prior = believed(options.prior, source.classes, shares)
    notes += [] if shares or prior.declared else [NO_CARD]
    views = Views(source.card.preprocess, augmentation or source.card.augment, options.seed)
    # The model as the user had it, without the prompts that it may be given for the run. Made first, because the method
    # that is made last decides what is frozen.
    plain: Method = Source(given)
    if not chosen.max_iters and chosen.epochs == kind.Config().epochs:  # a length that was asked for is not discussed
        config, more = long_enough(kind, config, len(target), fit=options.fit_length and not preset)
        notes += more
    made = kind(source, config, seed=options.seed, stats=stats, shares=prior.shares if prior.declared else ())
    notes += bad_images.note(target)
    readings, at_start = Readings.first(target, scored, made if source is given else plain, views, runtime, folder)
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
        readout="student, direct, " + READOUT[options.keep],
        evaluated_on=readings.evaluated_on,
        **({"class_shares": prior.origin} if prior.declared else {}),
        **({"domains": domains} if domains else {}),
    )
    inputs = places(model=model, images=images, score=score_on) | scored_list(scored)
    total = planned_steps(config, len(target))
    job = AdaptJob(
        made,
        target,
        record,
        folder,
        options,
        runtime,
        total,
        inputs,
        notes,
        readings,
        options.eval_every,
        at_start,
        prior,
    )
    result = job.run()
    name = shown(inputs["model"]) if "model" in inputs else AdaptRun.source
    before, after = job.at_start["student"], job.at_end["student"]
    return AdaptRun(folder.path, job.file, result, source, before, after, name, scored)


def _images(
    images: str | Path | ImageSet,
    score_on: str | Path | ImageSet | None,
    model: Model,
    options: AdaptOptions,
    index: FileIndex,
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
    check_inputs(images=found, score=scored)
    if bad_images.replaces(options.bad_images, len(found)):
        found = bad_images.unchecked(found)
    elif options.ratio < 1 or options.domain_weights != "mean":
        found = decodable(found, channels=model.card.preprocess.channels, index=index)
    return fraction(found, options.ratio, rule=options.subset, seed=0).unlabelled(), scored


def _classes(passes: TestPasses, method: Method) -> Tensor:
    return collect(passes(), method)["student"].argmax(dim=1)


@dataclass
class AdaptJob(ScoredJob):
    """One adaptation, which writes an adapter."""

    prior: Prior
    product = "adapter.safetensors"
    options: AdaptOptions

    def before(self) -> None:
        super().before()
        assert isinstance(self.method.model, Model)
        self.outlook = Outlook(self.method.model, self.at_start["student"], self.prior)
        passes = TestPasses(sample(self.images, SAMPLE), self.readings.views, self.runtime)
        best = self.options.keep == "best" and self.method.groups
        self.keeper = Keeper(self.outlook, self.method, partial(_classes, passes, self.method)) if best else None

    def steps(self, start: int) -> Iterable[Event]:
        if not self.method.groups:
            return ()  # nothing to tune (Source)
        return offline(self.method, self.images, self.readings.views, self.runtime, start=start)

    def on_step(self, event: Event) -> None:
        super().on_step(event)
        self.ended = self.keeper is not None and self.keeper.ends(event)

    def after(self, done: int) -> dict[str, Any]:
        kept = {}
        if self.keeper is not None:
            self.keeper.state.copy_to(self.method.model)
            kept = {"steps": done, "kept_steps": self.keeper.steps}
        found = super().after(done)
        scored = {}
        if self.readings.scored:
            scored["readouts"] = self.readings.top1(self.at_end)
            scored["readouts_mean_per_class"] = self.readings.mean_per_class(self.at_end)
        expected = self.outlook.expected(found["label_free"], optimised=self.method.assumes_balance)
        harmful = expected["verdict"] == "harmful" and not self.options.accept
        self.file = self.folder.path / REJECTED if harmful else self.folder.product
        own = {"method": self.method.name, "notes": self.notes, **self._domains()}
        return own | found | {"expected": expected} | scored | kept

    def save(self, next_step: int) -> None:
        extra = prefixed("keeper", self.keeper.state_dict()) if self.keeper else {}
        self.folder.save_state(self.method, next_step, **extra)

    def restore(self) -> int:
        start, extra = self.folder.load_state(self.method)
        if self.keeper:
            self.keeper.load_state_dict(part(extra, "keeper"))
        return start

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
        only_first(save_adapter)(adapter, self.file, half=self.options.half)
        result["adapter_bytes"] = from_first(lambda: self.file.stat().st_size)
        # What an earlier run has left under the other name is not this run's. It is kept as an earlier version.
        other = self.folder.product if self.file.name == REJECTED else self.folder.path / REJECTED
        only_first(other.unlink)(missing_ok=True)

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
