"""`dept train SOURCE… --arch A --out RUN`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

from dept.cli.command import Command, Positional
from dept.cli.parse import parse
from dept.cli.parts import RunOutput, TimmOptions
from dept.cli.show import show_run

DEFAULT_ARCH = "vit_base_patch16_224.augreg_in21k_ft_in1k"


@dataclass(frozen=True)
class TrainInput:
    """The images to train on."""

    source: Annotated[tuple[Path, ...], Positional("SOURCE…")]
    """labelled images: a folder with one sub-folder per class, or a list file; one per domain if several"""


@dataclass(frozen=True)
class NewModel(TimmOptions):
    """The model to train."""

    arch: str | None = None
    """any timm architecture; prompts need a ViT (default: that of `weights`, else
    vit_base_patch16_224.augreg_in21k_ft_in1k)"""
    stages: int = 4
    """M: 1, 4 or 12 for DePT-S, -G or -D on twelve layers; 0 for a plain model"""
    prompts: int = 50
    """P, prompts per stage; 0 for a plain model"""
    pretrained: bool = True
    """start from timm's weights (downloaded), unless `weights` is given"""
    weights: str | None = None
    """weights to start from: a local file of timm or torchvision, a Hugging Face folder, or hf-hub:USER/REPO"""
    preset: str | None = None
    """official (the released code) or paper (cross-entropy only); by default as released, with gradients clipped"""


COMMAND = Command(
    "train",
    "Train a source model on labelled images of one or several domains.",
    {"Input": TrainInput, "Output": RunOutput, "Model": NewModel, "Run": "dept.runs.train:TrainOptions"},
    common=("resume", "overwrite", "json", "arch", "stages", "prompts", "weights", "preset", "seed", "device",
            "workers", "amp", "lr", "batch", "epochs"),
    setting="train",
    method="multi-source-training",
)  # fmt: skip


def run(argv: list[str]) -> int:
    """Build the model, train it, print where it is."""
    given, output, new, options, config = parse(COMMAND, argv)
    from dept.data.sources import find_sources
    from dept.models.model import create_model
    from dept.runs.train import train

    images = find_sources(given.source)
    model = create_model(
        new.arch or (None if new.weights else DEFAULT_ARCH),
        images.parts[0].classes,
        stages=new.stages,
        prompts=new.prompts,
        pretrained=new.pretrained and new.weights is None,
        weights=new.weights,
        seed=options.seed,
        **new.options(),
    )
    start = partial(train, model, images, preset=new.preset)
    return show_run(["train", *argv], output, start, config=config, options=options)
