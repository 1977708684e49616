"""`adapt` with method auto: candidates are adapted in turn, and the best of them by label-free scores is kept.

Every candidate is an ordinary run in OUT/candidates. The files of the one that is kept are copied to OUT, whose
result.json also says which candidates there were, how they scored and why this one was kept.
"""

from __future__ import annotations

import json
import re
import time
from copy import deepcopy
from dataclasses import asdict, dataclass, replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch

from dept import methods
from dept.core.blocks import can_be_prompted
from dept.core.collective import by_first, from_first
from dept.data.images import ImageSet, decodable, find_images, labelled_as
from dept.data.loader import Runtime, resolve_device
from dept.data.subsets import sample
from dept.data.views import Augment
from dept.errors import DeptError, UsageError
from dept.health.choice import Scored, choose, plausible
from dept.health.expected import expected_gain, mostly_right
from dept.health.prior import Prior, believed
from dept.io import write_atomic
from dept.methods.auto import Auto
from dept.metrics import score
from dept.models.files import apply_adapter, load_adapter, load_model
from dept.models.model import Model
from dept.models.stats import load_stats, source_shares
from dept.runs.bad_images import MOST_READ, replaces
from dept.runs.folder import Listener, PlanFolder
from dept.runs.loops import class_probabilities, steps_per_epoch
from dept.runs.read import read_result, read_run
from dept.runs.record import Result, places, scored_list, shown, skipped_files
from dept.runs.seal import sealed

if TYPE_CHECKING:
    from dept.runs.adapt import AdaptOptions, AdaptRun

EPOCHS, LEAST_STEPS = 15, 300
"""length of the longest candidate: the paper's epochs, which are too few steps on a small folder"""
CAREFUL = "notela"
"""the candidate that assumes nothing about class shares; it too moves prompts"""
PASSES = 3
"""over all images, of a run without a backward: before, its step, after"""


@dataclass(frozen=True)
class Trial:
    """What all candidates are adapted with."""

    model: str | PathLike[str] | Model
    images: str | Path | ImageSet
    options: AdaptOptions
    score_on: str | Path | ImageSet | None
    augmentation: Augment | None
    folder: PlanFolder

    def run(self, method: str, **settings: Any) -> tuple[Result, AdaptRun | None]:
        """One candidate in its own folder: begun, resumed, or read if it has ended before an interruption."""
        from dept.runs.adapt import adapt  # which calls this module for method auto

        out = self.place(method)
        done, begun = from_first(lambda: (read_result(out / "result.json"), (out / "resume.safetensors").exists()))
        if done:
            return done, None
        length = f", {settings['max_iters']} steps" if "max_iters" in settings else ""

        def told(event: dict[str, Any]) -> None:
            if event["event"] == "start":
                self.folder.listener({"event": "note", "text": f"Candidate {method}{length}."})
            self.folder.listener(event)

        made = adapt(
            deepcopy(self.model) if isinstance(self.model, Model) else self.model,
            self.images,
            out=out,
            method=method,
            # One of several: none is rejected by itself. A long one ends when it should; NEO is one pass.
            options=replace(self.options, accept=True, keep="best" if "max_iters" in settings else "last"),
            augmentation=self.augmentation,
            resume=begun,
            overwrite=not begun,
            listener=told,
            **settings,
        )
        return made.result, made

    def place(self, method: str) -> Path:
        """The run folder of a candidate."""
        return self.folder.path / "candidates" / method


def adapt_auto(
    model: str | PathLike[str] | Model,
    images: str | Path | ImageSet,
    *,
    out: str | Path,
    config: Auto.Config,
    options: AdaptOptions,
    score_on: str | Path | ImageSet | None,
    augmentation: Augment | None,
    resume: bool,
    overwrite: bool,
    listener: Listener,
) -> AdaptRun:
    """Try the candidates, keep one. See `adapt`; a model that is given is not changed."""
    given = model if isinstance(model, Model) else load_model(model)
    stats = load_stats(options.stats, given) if options.stats else None
    prior = believed(options.prior, given.classes, source_shares(given, stats))
    seconds = parse_budget(config.budget)
    folder = PlanFolder(out, "adapter.safetensors", resume=resume, overwrite=overwrite, listener=listener)
    trial = Trial(model, images, options, score_on, augmentation, folder)
    with folder.locked():
        folder.begin({"protocol": {"config": asdict(config)}, "options": asdict(options)})
        try:
            return _tried(trial, given, prior, config, seconds)
        except DeptError:
            folder.forget_unused()
            raise


def _tried(trial: Trial, given: Model, prior: Prior, config: Auto.Config, seconds: float) -> AdaptRun:
    """The cheap candidate, then the long one, or one without assumptions if class shares look different."""
    main = longest(given)
    began, runs = time.monotonic(), {}
    runs["neo"] = trial.run("neo", batch=config.batch)
    first = runs["neo"][0]
    steps = config.max_iters or usual_steps(first["images"], config.batch)
    if seconds:
        steps = min(steps, affordable(seconds, time.monotonic() - began, first["images"], config.batch, main))
    steps = trial.folder.settled(steps)
    prior, differ = plausible(scored("neo", first), prior)
    second = main if not differ else CAREFUL if main == "dept+" else ""
    if second:
        runs[second] = trial.run(second, batch=config.batch, max_iters=steps)
    accuracy = first["expected"]["accuracy"]  # of the source model, so the same for every candidate
    tried = [scored(name, result) for name, (result, _) in runs.items()]
    choice = choose(tried, prior, differ=differ, right=mostly_right(accuracy))
    if choice.kept == "source":
        runs["source"] = trial.run("source")
    record = {"prior": prior.origin, "declared": prior.declared, "steps": steps, **asdict(choice)}
    result, made = runs[choice.kept]
    last = scored(choice.kept, result)
    expected = expected_gain(
        last.before,
        last.after,
        last.changed,
        last.images,
        prior,
        differ=differ,
        optimised=methods.get(choice.kept).assumes_balance,
        accuracy=accuracy and tuple(accuracy),
    )
    return _kept(trial, choice.kept, cast(Result, {**result, "expected": expected.record(), "auto": record}), made)


def longest(model: Model) -> str:
    """The candidate that is trained longest: DePT+, or SHOT where prompts cannot enter."""
    return "dept+" if model.stages or can_be_prompted(model.backbone) else "shot"


def usual_steps(images: int, batch: int) -> int:
    """Its length in steps: the paper's epochs, but enough of them on a small folder."""
    return max(LEAST_STEPS, EPOCHS * steps_per_epoch(images, batch))


def scored(name: str, result: Result) -> Scored:
    """What the choice depends on, of a finished candidate."""
    free, seen = result["label_free"], result.get("sampled", result["images"])
    return Scored(name, free["before"]["shares"], free["after"]["shares"], free["changed"], seen)


def _kept(trial: Trial, name: str, result: Result, made: AdaptRun | None) -> AdaptRun:
    """Copy the candidate's files, write the result, and return the run as if it had been the only one.

    Labelled images, if there are any, are scored only now: the choice does not depend on them.
    """
    folder, place = trial.folder, trial.place(name)
    scored_on: dict[str, str] = {}
    if made is None or trial.score_on is not None:
        made = _read_out(trial, place, result)
        if made.scored is not None:
            result |= _scores(made, result)
            scored_on = places(score=trial.score_on) | scored_list(made.scored)
    _copy(place, folder.path, scored_on)
    folder.end(result)
    return replace(made, folder=folder.path, adapter=folder.product, result=result)


@by_first
def _copy(place: Path, out: Path, scored_on: dict[str, str]) -> None:
    """The files of the candidate that is kept."""
    for file in ("config.json", "adapter.safetensors"):
        write_atomic(out / file, (place / file).read_bytes())
    write_atomic(out / "events.jsonl", _events(place, scored_on).encode())


def _read_out(trial: Trial, place: Path, result: Result) -> AdaptRun:
    """The run of a finished candidate, with predictions before and after it: of the scored images, if there are any."""
    from dept.runs.adapt import AdaptRun

    model, file = trial.model, place / "adapter.safetensors"
    before = deepcopy(model) if isinstance(model, Model) else load_model(model)
    runtime = Runtime(resolve_device(trial.options.device), trial.options.workers)
    adapted = apply_adapter(deepcopy(before), from_first(lambda: load_adapter(file, before))).eval()
    labelled = None if trial.score_on is None else labelled_as(trial.score_on, before.classes, "scored")
    found = trial.images if isinstance(trial.images, ImageSet) else find_images(trial.images)
    if labelled is None and replaces(trial.options.bad_images, len(found)):
        found = sample(found, MOST_READ, seed=trial.options.seed)
    images = decodable(labelled or found, channels=before.card.preprocess.channels)
    first, last = (class_probabilities(one, images, runtime) for one in (before, adapted))
    name = AdaptRun.source if isinstance(model, Model) else shown(places(model=model)["model"])
    return AdaptRun(place, file, result, adapted, first, last, name, images if labelled else None)


def _scores(run: AdaptRun, result: Result) -> Result:
    """What labels say of the candidate that was kept."""
    assert run.scored is not None and run.scored.labels is not None
    labels = torch.tensor(run.scored.labels)
    before, after = (score(one, labels, run.model.classes) for one in (run.before, run.after))
    found = {
        "protocol": {**result["protocol"], "evaluated_on": "scored images"},
        "skipped_scored": skipped_files(run.scored),
        "before": before,
        "after": after,
        "readouts": {"student": after["top1"]},
        "readouts_mean_per_class": {"student": after["mean_per_class"]},
    }
    return cast(Result, found)


def _events(place: Path, scored_on: dict[str, str]) -> str:
    """The events of a candidate; the first one says where the scored images lie, for the report."""
    rows = read_run(place).events
    rows = [row | {"inputs": row.get("inputs", {}) | scored_on} if row["event"] == "start" else row for row in rows]
    return "".join(json.dumps(sealed(row)) + "\n" for row in rows)


def parse_budget(text: str) -> float:
    """Seconds of "90s", "5m" or "1h"; 0 for no limit."""
    if not text:
        return 0.0
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smh])", text.strip())
    if match is None or not float(match[1]):
        raise UsageError(f"`budget` must be a time such as 90s, 5m or 1h, found {text!r}.")
    return float(match[1]) * {"s": 1, "m": 60, "h": 3600}[match[2]]


def affordable(seconds: float, spent: float, images: int, batch: int, method: str) -> int:
    """Steps that the rest of a budget allows, at least 1.

    Args:
        spent: seconds of the first candidate, which is three passes over all images.
    """
    per_image = spent / (PASSES * images)
    kind = methods.get(method)
    step = batch * per_image * (1 + kind.forwards_per_step)
    return max(1, int((seconds - 2 * spent - kind.passes_at_start * images * per_image) / step))
