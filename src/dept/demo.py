"""The embedded demo: a small ViT that knows rendered digits meets real handwritten ones.

`train_source` makes the model that the package carries (assets/digits.safetensors, variant G); `run_demo`
scores it on the real digits, adapts it without labels by Tent and DePT, and reports what changed. Architecture,
rendering and training were fixed on held-out rendered digits alone, before any real digit was looked at.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from dept import methods
from dept.bench.suites.digits import ADAPTING, AUGMENT, CLASSES, EMBEDDED, PROMPTS, STAGES, TRAINING
from dept.data.digits import real_digits, rendered_digits, write_digits
from dept.errors import UsageError
from dept.inference import evaluate
from dept.models.files import load_model
from dept.models.model import Model, create_model
from dept.report.measure import ReportOptions
from dept.report.page import write_report
from dept.runs.adapt import adapt
from dept.runs.folder import Listener, silent
from dept.runs.train import train

RENDERED = 20_000  # a tenth of them is held out


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
    tunable: int
    adapter_bytes: int
    seconds: float
    adapter: str = ""


@dataclass(frozen=True)
class Demo:
    """What the demo made: the table, and the files for the next commands."""

    images: Path
    models: dict[str, Path]
    rows: list[Row]
    seconds: float
    reports: list[Path]


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
    """Source, Tent and DePT on the real digits, for each variant.

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
        begun = time.perf_counter()
        top1 = evaluate(load_model(models[variant]), images)["top1"]
        rows.append(Row(f"Source-{variant}", top1, top1, 0, 0, time.perf_counter() - begun))
        for method, own in ADAPTING.items():
            options = own | (settings if method == "dept" else {}) | {"seed": seed, "listener": listener}
            rows.append(_adapted_row(method, variant, models[variant], images, out, **options))
        if find_spec("jinja2"):  # the templates' engine
            # All digits. PCA takes no time; t-SNE of 1,797 images twice would take longer than the adaptation.
            shown = ReportOptions(limit=0, projection="pca")
            reports.append(write_report(out / f"dept-{variant}", options=shown)[0])
    return Demo(images, models, rows, time.perf_counter() - start, reports)


def _source_file(folder: Path, variant: str, retrain: bool, seed: int, listener: Listener) -> Path:
    """The variant's source model: embedded, trained by an earlier demo, or trained now."""
    file = folder / "model.safetensors"
    if not retrain and variant == "G":
        folder.mkdir(parents=True, exist_ok=True)
        return Path(shutil.copyfile(EMBEDDED, file))
    if file.exists() and not retrain:
        return file
    return train_source(folder, variant=variant, seed=seed, listener=listener)


def _adapted_row(method: str, variant: str, model: Path, images: Path, out: Path, **options: Any) -> Row:
    start, folder = time.perf_counter(), out / f"{method}-{variant}"
    run = adapt(model, images, out=folder, method=method, score_on=images, overwrite=True, **options)
    result = run.result
    return Row(
        f"{methods.card(method).title}-{variant}",
        result["before"]["top1"],
        result["after"]["top1"],
        result["tunable_model"],
        result["adapter_bytes"],
        time.perf_counter() - start,
        str(run.adapter),
    )
