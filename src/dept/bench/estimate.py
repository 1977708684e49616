"""How long a suite takes on one GPU, estimated from arithmetic alone.

Multiply-accumulates of all forwards and backwards of its cells, two operations each, over an assumed effective rate of
40 TFLOP/s: about what an A100-class card sustains in TF32 or bf16 on a ViT (an eighth of its bf16 peak). Not counted:
decoding and augmenting images, which can be the slower part with few workers. In fp32 without TF32 take twice to four
times as long. Counts of images are the official ones.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from dept import methods
from dept.bench.flops import Shape, plain_forward, prompted_forward
from dept.bench.shift import Shift
from dept.bench.suite import Row, Source, Suite
from dept.data import datasets
from dept.data.datasets.derived import split_name
from dept.methods.base import BaseConfig, Method
from dept.methods.uda.base import UDAConfig
from dept.runs.job import make_config
from dept.runs.train import SourceTraining

RATE = 40e12
"""assumed effective operations per second"""

WIDTHS = {"tiny": 192, "small": 384, "base": 768, "large": 1024}
RESNETS = {"resnet50": 4.1e9, "resnet101": 7.8e9}
# Data sets that are made, not downloaded.
MADE = {"imagenet-c-mini": 1_000, "digits": 1_797}


def gpu_hours(suite: Suite) -> float:
    """Hours of one GPU for all cells of a suite, source trainings included (borrowed ones as well)."""
    starts = [(row, start) for row in suite.rows for shift in suite.shifts for start in suite.starts(row, shift)]
    trained = {(row.source, start.sources) for row, start in starts}
    seeds = len(suite.seeds)
    work = 0.0
    for name, domains in trained:
        if suite.sources[name].config is not None:
            work += (seeds if suite.sources[name].per_seed else 1) * _training(suite, name, domains)
    work += sum((seeds if suite.repeats(row) else 1) * _run(suite, row, start) for row, start in starts)
    return 2 * work / RATE / 3600


def image_count(data: str, domains: Sequence[str]) -> int:
    """Official number of images of one or several domains."""
    if data in MADE:
        return MADE[data] * len(domains)
    if data == "imagenet-c" and "clean" in domains:  # where its source models learn
        data, domains = "imagenet", ("train",)
    known = {domain.name: domain.images for domain in datasets.get(data).domains}
    return sum(known.get(name) or known.get(split_name(name)[0], 0) for name in domains)


def forward(source: Source) -> float:
    """Multiply-accumulates of one image through a source model."""
    made: Mapping[str, Any] = source.extra.get("timm", {})
    family = source.arch.split(".")[0]
    if family in RESNETS:
        return RESNETS[family] * (source.size / 224) ** 2
    width = made.get("embed_dim") or next((w for name, w in WIDTHS.items() if f"_{name}_" in family), WIDTHS["base"])
    patch = made.get("patch_size", 16)
    layers = made.get("depth", 24 if "_large_" in family else 12)
    tokens = (made.get("img_size", source.size) // patch) ** 2 + 1
    shape = Shape(layers, width, tokens, 3 * patch**2)
    return prompted_forward(shape, source.stages, source.prompts) if source.stages else plain_forward(shape)


def _training(suite: Suite, name: str, domains: Sequence[str]) -> float:
    source = suite.sources[name]
    images = image_count(suite.data, domains)
    if "most" in source.extra:
        images = min(images, source.extra["most"] * len(domains))
    config = SourceTraining.Config(**source.config or {})
    seen = _steps(config, images) * config.batch
    # Student forward and backward; a prompted model has a teacher too. Then the held-out tenth after every epoch.
    return forward(source) * (seen * (4 if source.stages else 3) + config.held_out * seen)


def _run(suite: Suite, row: Row, shift: Shift) -> float:
    """Multiply-accumulates of one adaptation, scoring before and after included."""
    found = image_count(suite.data, shift.targets)
    images = found if suite.most is None else min(found, suite.most * len(shift.targets))
    one = forward(suite.sources[row.source])
    kind = methods.get("dept+" if row.method == "auto" else row.method)  # its longest candidate
    statistics = image_count(suite.data, shift.sources) if row.extra.get("stats") else 0
    if row.setting == "online":
        return one * (images * (2 + kind.forwards_per_step) + statistics)
    fields = {k: v for k, v in row.config.items() if k in kind.Config.__dataclass_fields__}
    config = make_config(kind, None, row.preset, fields)
    every = row.extra.get("eval_every", 0)
    # All images are scored before, after, and as often as `eval_every` says.
    scorings = 2 + (config.epochs / row.extra.get("ratio", 1.0) / every if every else 0.0)
    return one * (_learning(row, kind, config, images) + statistics + kind.networks * scorings * images)


def _learning(row: Row, kind: type[Method], config: BaseConfig, images: int) -> float:
    """Image forwards of the steps, and of the passes that a method makes in between."""
    each, passes = kind.forwards_per_step, kind.passes_per_epoch
    if isinstance(config, UDAConfig):
        steps = config.max_iters or config.epochs * config.iters_per_epoch
        return steps * config.images_per_step * each + passes * config.epochs * images
    ratio = row.extra.get("ratio", 1.0)
    used, scaled = int(images * ratio), kind.scaled(config, ratio)
    if row.method == "source" or not used:
        return 0.0
    seen = _steps(scaled, used) * config.batch
    return float(seen * (each + passes * ratio) + kind.passes_at_start * used)


def _steps(config: BaseConfig, images: int) -> int:
    return config.max_iters or config.epochs * math.ceil(images / config.batch)
