"""`dept train SOURCE… --arch A --out RUN`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

import tyro

from dept.cli.parse import choose, parse, timm_options
from dept.cli.running import Keeping, show_run
from dept.data.sources import find_sources
from dept.models.model import create_model
from dept.runs.train import MultiSourceTraining, TrainOptions, train


@dataclass(frozen=True)
class Files:
    """What is trained on what."""

    source: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="SOURCE…")]
    """labelled images: a folder with one sub-folder per class, or a list file; several are one domain each"""
    out: Path
    """run folder to write"""
    arch: str = "vit_base_patch16_224.augreg_in21k_ft_in1k"
    """any timm architecture; prompts need a plain ViT"""
    stages: int = 4
    """M: 1, 4, 12 for DePT-S, -G, -D on twelve layers; 0 for a plain model"""
    prompts: int = 50
    """P, prompts per stage; 0 for a plain model"""
    pretrained: bool = True
    """start from timm's weights (downloaded) unless --weights is given"""
    weights: Path | None = None
    """local file of timm's weights to start from"""
    timm: str = "{}"
    """further keywords for timm as JSON, e.g. '{"img_size": 128}'"""
    preset: str | None = None
    """official (the released code) or paper (cross-entropy only)"""


def run(argv: list[str]) -> int:
    """Build the model, train it, print where it is."""
    _, config = choose(lambda _: MultiSourceTraining, argv, "train")
    description = "Train a source model on labelled images of one or several domains."
    command = parse("train", description, argv, files=Files, keeping=Keeping(), options=TrainOptions(), config=config)
    files: Files = command.files
    images = find_sources(files.source)
    model = create_model(
        files.arch,
        images.parts[0].classes,
        stages=files.stages,
        prompts=files.prompts,
        pretrained=files.pretrained and files.weights is None,
        weights=files.weights,
        seed=command.options.seed,
        **timm_options(files.timm),
    )
    start = partial(train, model, images, out=files.out, config=command.config, options=command.options)
    return show_run(["train", *argv], files.out, command.keeping, start)
