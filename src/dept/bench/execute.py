"""Running a cell of any suite: a source training, an offline or online adaptation, or one with source data."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import torch
from filelock import BaseFileLock, FileLock
from torch import Tensor

from dept import methods
from dept.bench.protocol import check_preprocess
from dept.bench.runner import Cell
from dept.bench.scores import joined, paired, scores, segments
from dept.bench.suite import TRAINING, Suite
from dept.data.datasets.derived import Domains
from dept.data.images import ImageSet, list_hash
from dept.data.loader import Runtime, TestPasses, Views, resolve_device
from dept.data.streams import Scenario, domain_by_domain, mixed
from dept.data.subsets import sample
from dept.errors import DataError
from dept.inference import mean_probabilities
from dept.io import file_sha256
from dept.methods.source import Source as NoAdaptation
from dept.metrics import label_free
from dept.models.files import load_model, save_model
from dept.models.model import Model, create_model, fingerprint
from dept.models.stats import compute_stats, load_stats, save_stats
from dept.runs.adapt import AdaptOptions, AdaptRun, adapt
from dept.runs.environment import environment
from dept.runs.job import make_config, promptable
from dept.runs.loops import collect
from dept.runs.read import read_result, read_run, score_curves
from dept.runs.record import Result, protocol
from dept.runs.stream import constant, run_scenario
from dept.runs.train import SourceTraining, train
from dept.runs.uda import adapt_with_source

# Of suites with a ratio, the authors' draw; a cell may ask for another. And lengths as the protocol says.
LITERAL: dict[str, Any] = {"subset": "stratified", "fit_length": False, "accept": True}
OPTIONS = {option.name for option in fields(AdaptOptions)} - {"stats"}  # which a cell asks for, and `_stats` makes


@dataclass(frozen=True)
class Executor:
    """Runs cells of one suite; models and run folders go to `work`."""

    suite: Suite
    domains: Domains
    weights: Path | None
    work: Path
    device: str = "auto"
    workers: int = 0
    force: bool = False
    """run with a preprocessing that contradicts the weights' own config; the results say so"""
    latest: dict[tuple[str, ...], Tensor] = field(default_factory=dict, repr=False)
    """source predictions (n, C) on the streams of the last cells: the rows of a column share them"""

    @cached_property  # a large file, and asked for once per source model of a cell
    def weights_id(self) -> str:
        """sha256 of the weights file, or the word for timm's own download."""
        return "timm" if self.weights is None else file_sha256(self.weights)

    @property
    def runtime(self) -> Runtime:
        """Where cells run."""
        return Runtime(resolve_device(self.device), self.workers)

    def run(self, cell: Cell) -> Result:
        """The result of one cell."""
        if cell.method == TRAINING:
            with self._alone(cell):
                done = self.folder(cell) / "result.json"  # of a training that was made for a cell of another shard
                if done.is_file() and done.with_name("model.safetensors").is_file():
                    return read_result(done)
                return cast(Result, self._train(cell))
        if cell.kind == "ensemble":
            return cast(Result, self._ensemble(cell))
        model, forced = self._model(cell)
        result = {"offline": self._offline, "online": self._online, "uda": self._uda}[cell.kind](cell, model)
        result["protocol"] |= forced
        return cast(Result, result)

    def _model(self, cell: Cell) -> tuple[Model, dict[str, Any]]:
        """The source model of a cell with its views, and what its protocol must say of forced preprocessing."""
        model = load_model(self.source_model(cell))
        augment = replace(model.card.augment, **cell.protocol.get("augmentation", {}))
        model.card = replace(model.card, augment=augment)
        forced = check_preprocess(model.card.arch, model.card.preprocess, force=self.force)
        return model, {"forced": forced} if forced else {}

    # -- source models -------------------------------------------------------------------------------------

    def _train(self, cell: Cell) -> dict[str, Any]:
        sources = self._sources(cell, cell.protocol.get("most"))
        run = train(
            self._fresh_model(cell, sources[0].classes),
            sources[0] if len(sources) == 1 else sources,
            config=SourceTraining.Config(**cell.protocol["config"]),
            fit_length=False,
            **self._run_options(cell),
        )
        return dict(run.result)

    def _fresh_model(self, cell: Cell, classes: tuple[str, ...]) -> Model:
        """The model before training: pretrained backbone, prompts and head new."""
        made = cell.protocol
        model = create_model(
            made["arch"],
            classes,
            stages=made["stages"],
            prompts=made["prompts"],
            weights=self.weights,
            pretrained=self.weights is None,
            seed=cell.seed,
            **({} if made["size"] == 224 else {"img_size": made["size"]}),
            **made.get("timm", {}),
        )
        card = model.card
        if "resize" in made:
            card = replace(card, preprocess=replace(card.preprocess, resize=made["resize"]))
        if "weak_resize" in made:
            card = replace(card, augment=replace(card.augment, weak_resize=made["weak_resize"]))
        model.card = card
        return model

    def source_model(self, cell: Cell) -> Path:
        """File of the source model of a cell; trained now if it is not there (results are kept, models are not)."""
        name, source = self._source(cell)
        file = self.suite.sources[name].file or self.folder(source) / "model.safetensors"
        if file.is_file():
            return file
        with self._alone(source):
            if file.is_file():
                return file
            if source.protocol["config"] is None:
                classes = self._sources(source)[0].classes
                return save_model(self._fresh_model(source, classes), file)
            self._train(source)
        return file

    def _alone(self, source: Cell) -> BaseFileLock:
        """Held while a source model is made: another shard that needs the same one waits, and finds it there."""
        self.folder(source).parent.mkdir(parents=True, exist_ok=True)
        return FileLock(self.folder(source).with_suffix(".lock"))

    def _source(self, cell: Cell) -> tuple[str, Cell]:
        """Name and training of the source model that a cell starts from."""
        for name in self.suite.sources:
            source = self.suite.source_cell(name, cell.shift, self.weights_id, cell.seed)
            if source.key == cell.protocol["source"]:
                return name, source
        raise DataError(
            f"The source model {cell.protocol['source']} of {cell.title!r} does not belong to the suite with these "
            f"weights ({self.weights_id[:12]}): the cell was made with other weights or an older definition."
        )

    # -- adaptations ---------------------------------------------------------------------------------------

    def _offline(self, cell: Cell, model: Model) -> dict[str, Any]:
        run = self._adapted(cell, model)
        found = run.result | paired(run.before, run.after, run.scored)
        if cell.protocol.get("eval_every"):
            events = read_run(self.folder(cell)).events
            top1, per_class = score_curves(events), score_curves(events, "mean_per_class")
            found["curve"] = {
                one.name: {"steps": list(one.steps), "top1": list(one.values), "mean_per_class": list(two.values)}
                for one, two in zip(top1, per_class, strict=True)
            }
        return found

    def _adapted(self, cell: Cell, model: Model) -> AdaptRun:
        images = self._target(cell)
        return adapt(
            model,
            images,
            score_on=images,
            **self._stats(cell),
            **LITERAL | {name: value for name, value in cell.protocol.items() if name in OPTIONS},
            **self._method_options(cell),
        )

    def _ensemble(self, cell: Cell) -> dict[str, Any]:
        """The method from every single source; the mean of the members' probabilities is the prediction."""
        runs: dict[str, AdaptRun] = {}
        marks: dict[str, Any] = {}
        for shift, source in zip(cell.shift.single_sources(), cell.protocol["source"].split("+"), strict=True):
            member = replace(cell, shift=shift, protocol={**cell.protocol, "source": source})
            model, forced = self._model(member)
            runs[shift.sources[0]] = self._adapted(member, model)
            marks |= forced
        images = next(iter(runs.values())).scored
        assert images is not None
        first: dict[str, Any] = {**next(iter(runs.values())).result}
        for name in ("readouts", "readouts_mean_per_class"):  # of the first member only
            first.pop(name)
        before = mean_probabilities([run.before for run in runs.values()])
        after = mean_probabilities([run.after for run in runs.values()])
        shas = {domain: run.result["protocol"]["backbone_sha256"] for domain, run in runs.items()}
        tuned = {name: sum(run.result[name] for run in runs.values()) for name in ("tunable_model", "tunable_total")}
        return {
            **first,
            **tuned,
            "members": {domain: run.result["after"]["top1"] for domain, run in runs.items()},
            "label_free": label_free(before, after, images.classes),
            **scores(before, after, images),
            **paired(before, after, images),
            "protocol": dict(runs[next(iter(runs))].result["protocol"])
            | {"setting": "ensemble", "backbone_sha256": shas}
            | marks,
        }

    def _online(self, cell: Cell, model: Model) -> dict[str, Any]:
        scenario = self._scenario(cell)
        kind, stats = methods.get(cell.method), self._stats(cell)
        config = constant(make_config(kind, None, cell.protocol["preset"], _settings(kind, cell)))
        given = model.to(self.runtime.device).eval()
        model, notes = promptable(given, kind, stages=4, prompts=50, seed=cell.seed)
        views = Views(model.card.preprocess, model.card.augment, cell.seed)
        tensors = load_stats(stats["stats"], model) if stats else None
        sha = fingerprint(model)
        before = self._before(cell, given, scenario, views)
        method = kind(model, config, seed=cell.seed, stats=tensors)  # after: a method says what is frozen
        after = before
        if kind is not NoAdaptation:
            predicted = run_scenario(method, scenario, views, self.runtime)
            after = torch.cat([logits.softmax(dim=1).cpu() for _, _, logits in predicted])
        images = joined(scenario)
        record = protocol(
            model,
            images,
            method=method,
            config=config,
            augment=views.augment,
            seed=cell.seed,
            backbone_sha256=sha,
            setting="online",
            stream=cell.protocol.get("stream", {}),
            reset=scenario.reset,
            readout=f"student, direct, predicted {config.predict} the update",
            evaluated_on="the stream, every image once",
        )
        return {
            "method": method.name,
            "images": len(images),
            "notes": notes,
            **method.counts(),
            "label_free": label_free(before, after, model.classes),
            **scores(before, after, images),
            "segments": segments(scenario, before, after),
            **paired(before, after, images),
            "protocol": record,
            "environment": environment(self.runtime),
        }

    def _before(self, cell: Cell, model: Model, scenario: Scenario, views: Views) -> Tensor:
        """Source predictions (n, C) on a stream, in the order of arrival; kept for the last two source models."""
        images = joined(scenario)
        key = (str(cell.shift), cell.protocol["source"], str(model.stages), str(cell.seed), list_hash(images))
        if key not in self.latest:
            for old in list(self.latest)[:-1]:
                del self.latest[old]
            self.latest[key] = collect(TestPasses(images, views, self.runtime)(), NoAdaptation(model))["student"]
        return self.latest[key]

    def _uda(self, cell: Cell, model: Model) -> dict[str, Any]:
        images = self._target(cell)
        sources = self._sources(cell)[0]
        run = adapt_with_source(model, sources, images.unlabelled(), score_on=images, **self._method_options(cell))
        return run.result | paired(run.before, run.after, run.scored)

    # -- what cells are made of ----------------------------------------------------------------------------

    def folder(self, cell: Cell) -> Path:
        """The run folder of a cell (models and adapters; not committed)."""
        return self.work / cell.suite / cell.key

    def _run_options(self, cell: Cell) -> dict[str, Any]:
        """An interrupted cell is resumed; leftovers of anything else are replaced."""
        interrupted = (self.folder(cell) / "resume.safetensors").exists()
        return {
            "out": self.folder(cell),
            "seed": cell.seed,
            "device": self.device,
            "workers": self.workers,
            "resume": interrupted,
            "overwrite": not interrupted,
        }

    def _method_options(self, cell: Cell) -> dict[str, Any]:
        settings = _settings(methods.get(cell.method), cell)
        return self._run_options(cell) | {"method": cell.method, "preset": cell.protocol["preset"]} | settings

    def _sources(self, cell: Cell, most: int | None = None) -> list[ImageSet]:
        return [self._domain(name, most) for name in cell.shift.sources]

    def _target(self, cell: Cell) -> ImageSet:
        return self._domain(cell.shift.target, cell.protocol["most"])

    def _domain(self, name: str, most: int | None) -> ImageSet:
        images = self.domains.load(self.suite.data, name)
        return images if most is None else sample(images, most, seed=0)

    def _stats(self, cell: Cell) -> dict[str, Any]:
        """Source statistics of the cell's model, computed once from the source images.

        `stats` in the protocol is true, or says how the source images are prepared if unlike the target's.
        """
        asked = cell.protocol.get("stats")
        if not asked:
            return {}
        file = self.source_model(cell).with_name("stats.safetensors")
        if not file.exists():
            images = self._sources(cell)[0]
            model = load_model(self.source_model(cell))
            if isinstance(asked, dict):
                model.card = replace(model.card, preprocess=replace(model.card.preprocess, **asked))
            save_stats(*compute_stats(model, images, self.runtime), file)
        return {"stats": str(file)}

    def _scenario(self, cell: Cell) -> Scenario:
        domains = [(name, self._domain(name, cell.protocol["most"])) for name in cell.shift.targets]
        how = dict(cell.protocol.get("stream", {}))
        if how.pop("mixed", False):
            return mixed(domains, seed=cell.seed)
        return domain_by_domain(domains, seed=cell.seed, **how)


def _settings(kind: Any, cell: Cell) -> dict[str, Any]:
    """The cell's config, as far as the method has such settings: rows of one protocol share batch and steps."""
    return {name: value for name, value in cell.protocol["config"].items() if name in kind.Config.__dataclass_fields__}
