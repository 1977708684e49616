"""The embedded demo: a small ViT that knows rendered digits meets real handwritten ones.

`train_source` makes the model that the package carries (assets/digits.safetensors, variant G). `run_demo` scores it on
the real digits, adapts it without labels by Tent and DePT, once with a wrong setting, judges DePT's run with 30 labels,
and reports what changed. Architecture, rendering and training were fixed on held-out rendered digits alone, before any
real digit was looked at.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from PIL import Image

from dept import methods
from dept.bench.suites.digits import ADAPTING, AUGMENT, CLASSES, EMBEDDED, PROMPTS, STAGES, TRAINING
from dept.data.digits import real_digits, rendered_digits, write_digits
from dept.data.images import find_labelled, label_shares
from dept.data.loader import Runtime
from dept.errors import UsageError
from dept.io import write_atomic
from dept.models.files import load_model, save_model
from dept.models.model import Model, create_model
from dept.report.blocks import Section
from dept.report.measure import Measured, ReportOptions
from dept.report.page import write_report
from dept.report.story import COLUMNS, Told, standalone, story
from dept.runs.adapt import AdaptRun, adapt
from dept.runs.check import CheckOptions, check
from dept.runs.folder import Listener, silent
from dept.runs.judge import judge
from dept.runs.profile import measure_profile
from dept.runs.train import train

RENDERED = 20_000  # a tenth of them is held out
FOR_CARD = 1_000  # rendered anew, for what the embedded model's card says
LABELS = 30  # that `dept judge` gets
WRONG = "wrong"
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "tent": ("tent", ADAPTING["tent"]),
    # Five hundred times Tent's own learning rate: predictions collapse within one pass.
    WRONG: ("tent", ADAPTING["tent"] | {"lr": 0.5}),
    "dept": ("dept", ADAPTING["dept"]),
}
"""name of the run folder -> method, and its settings"""


def source_model(variant: str = "G", *, seed: int = 0) -> Model:
    """The untrained model: 12 layers, 64 wide, 16 patches, 8 prompts per stage; S, G or D says how many stages."""
    if variant not in STAGES:
        raise UsageError(f"There is no variant {variant!r}; choose from {', '.join(STAGES)}.")
    model = create_model(
        "vit_tiny_patch16_224",
        CLASSES,
        stages=STAGES[variant],
        prompts=PROMPTS,
        seed=seed,
        img_size=32,
        patch_size=8,
        in_chans=1,
        embed_dim=64,
        depth=12,
        num_heads=4,
        weight_init="jax",  # Xavier; timm's default of 0.02 is made for ten times the width
    )
    # Digits fill their image: the test view may lose an edge of two pixels, not the usual eighth.
    preprocess = replace(model.card.preprocess, resize=36)
    model.card = replace(model.card, preprocess=preprocess, augment=AUGMENT)
    return model


def train_source(
    out: str | Path, *, variant: str = "G", seed: int = 0, listener: Listener = silent, **settings: Any
) -> Path:
    """Train a source model on freshly rendered digits; returns its file. `settings` override `TRAINING`."""
    with tempfile.TemporaryDirectory() as folder:
        write_digits(Path(folder), rendered_digits(RENDERED, seed=seed))
        run = train(
            source_model(variant, seed=seed),
            folder,
            out=out,
            config=TRAINING,
            overwrite=True,
            listener=listener,
            seed=seed,
            **settings,
        )
    return run.file


@dataclass(frozen=True)
class Row:
    """One line of the demo's table; accuracies are fractions."""

    method: str
    before: float
    after: float
    verdict: str
    """what was said without labels"""
    tunable: int
    adapter_bytes: int
    seconds: float
    adapter: str = ""
    judged: str = ""
    """what was said with `LABELS` labels, if that was asked"""


@dataclass(frozen=True)
class Demo:
    """What the demo made: the table, and the files for the next commands."""

    images: Path
    models: dict[str, Path]
    rows: list[Row]
    seconds: float
    reports: list[Path]
    """each begins with the story, whose picture is also in story-VARIANT.svg"""


def run_demo(
    out: str | Path,
    *,
    variants: Sequence[str] = ("G",),
    retrain: bool = False,
    seed: int = 0,
    limit: int = 0,
    listener: Listener = silent,
    **settings: Any,
) -> Demo:
    """Source, Tent, Tent with a wrong setting, and DePT on the real digits, for each variant.

    Args:
        variants: of S, G, D. Only G's source model is embedded; the others are trained first, once per `out`.
        retrain: train every source model anew.
        limit: use this many images only (0: all 1,797).
        settings: override single fields of DePT's Config.
    """
    if limit < 0:
        raise UsageError(f"`limit` must be at least 0 (all images), found {limit}.")
    start, out = time.perf_counter(), Path(out)
    images = out / ("real" if not limit else f"real-{limit}")
    digits, labels = real_digits()
    write_digits(images, (digits[: limit or None], labels[: limit or None]))
    models: dict[str, Path] = {}
    rows: list[Row] = []
    reports: list[Path] = []
    for variant in variants:
        models[variant] = _source_file(out / f"source-{variant}", variant, retrain, seed, listener)
        runs: dict[str, AdaptRun] = {}
        for case, (method, own) in CASES.items():
            begun = time.perf_counter()
            # Of the handwritten ones it is known, without labels, that they are about equally frequent.
            options = (
                own | (settings if case == "dept" else {}) | {"seed": seed, "listener": listener, "prior": "uniform"}
            )
            folder = out / f"{case}-{variant}"
            runs[case] = adapt(
                models[variant], images, out=folder, method=method, score_on=images, overwrite=True, **options
            )
            if len(runs) == 1:
                rows.append(_source_row(variant, runs[case]))
            rows.append(_row(_title(case, variant), runs[case], time.perf_counter() - begun))
        judged = _judged(runs["dept"])
        rows[-1] = replace(rows[-1], judged=judged["verdict"] if judged else "")
        if find_spec("jinja2"):  # the templates' engine
            reports.append(_report(runs, judged, variant, out))
    return Demo(images, models, rows, time.perf_counter() - start, reports)


def _source_file(folder: Path, variant: str, retrain: bool, seed: int, listener: Listener) -> Path:
    """The variant's source model: embedded, trained by an earlier demo, or trained now."""
    file = folder / "model.safetensors"
    if not retrain and variant == "G":
        return save_model(_with_card(load_model(EMBEDDED)), file)
    if file.exists() and not retrain:
        return file
    return train_source(folder, variant=variant, seed=seed, listener=listener)


def _with_card(model: Model) -> Model:
    """The embedded model, whose file has no card, with that of digits that it was not trained on."""
    with tempfile.TemporaryDirectory() as folder:
        write_digits(Path(folder), rendered_digits(FOR_CARD, seed=1))
        images = find_labelled(folder)
        profile = measure_profile(model, images, Runtime())
    model.card = replace(model.card, prior=label_shares(images), profile=profile)
    return model


def _title(case: str, variant: str) -> str:
    method, own = CASES[case]
    title = f"{methods.card(method).title}-{variant}"
    return f"{title}, learning rate {own['lr']:g}" if case == WRONG else title


def _source_row(variant: str, run: AdaptRun) -> Row:
    """The source model, as a run found it."""
    top1 = run.result["before"]["top1"]
    return Row(f"Source-{variant}", top1, top1, "", 0, 0, 0.0)


def _row(title: str, run: AdaptRun, seconds: float) -> Row:
    result = run.result
    return Row(
        title,
        result["before"]["top1"],
        result["after"]["top1"],
        result["expected"]["verdict"],
        result["tunable_model"],
        result["adapter_bytes"],
        seconds,
        str(run.adapter),
    )


def _judged(run: AdaptRun) -> dict[str, Any] | None:
    """The result of `dept judge`, where the names of the folders answer for a person; None if nothing changed."""
    asked = check([run.folder], CheckOptions(labels=LABELS)).questions.asked
    if not asked:
        return None
    rows = [f"{one.image},{Path(one.image).parent.name}\n" for one in asked]
    table = run.folder / "labelled.csv"
    write_atomic(table, "".join(["image,class\n", *rows]).encode())
    return judge([run.folder], [table]).result


def _report(runs: Mapping[str, AdaptRun], judged: dict[str, Any] | None, variant: str, out: Path) -> Path:
    """The report of DePT, which begins with the story; its picture is written beside the runs."""
    glyphs, _ = rendered_digits(COLUMNS, seed=1)
    good, wrong = (Told(_title(case, variant), runs[case].result) for case in ("dept", WRONG))

    def opening(measured: Measured) -> tuple[Section, Section]:
        return story(measured, [Image.fromarray(glyph) for glyph in glyphs], replace(good, judged=judged), wrong)

    # All digits. PCA takes no time; t-SNE of 1,797 images twice would take longer than the adaptation.
    shown = ReportOptions(limit=0, projection="pca")
    file, page = write_report(out / f"dept-{variant}", options=shown, opening=opening)
    write_atomic(out / f"story-{variant}.svg", standalone(page.sections[0].figures[0].svg).encode())
    return file
