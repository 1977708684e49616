"""`dept convert CHECKPOINT`."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

from dept.cli.command import Command, Positional, flag_names, with_flags
from dept.cli.parse import parse
from dept.cli.parts import TimmOptions
from dept.cli.show import say, show
from dept.errors import UsageError


@dataclass(frozen=True)
class Checkpoint:
    """A classifier that was trained elsewhere."""

    checkpoint: Annotated[str, Positional("CHECKPOINT")]
    """weights file (.safetensors, .pt, .pth, .ckpt, .bin; no code in it is run), Hugging Face folder, or
    hf-hub:USER/REPO"""
    arch: str | None = None
    """its timm architecture (default: recognised from the tensors)"""
    classes: Path | None = None
    """text file with one class name per line in the order of the logits, or a JSON list, or `imagenet`
    for n01440764 and so on (default: the names beside the weights)"""
    out: Path = Path("model.safetensors")
    """model file to write"""


@dataclass(frozen=True)
class Preprocessing(TimmOptions):
    """How it was trained; by default as the files beside the weights say, or as timm does it."""

    mean: tuple[float, ...] | None = None
    """normalisation it was trained with"""
    std: tuple[float, ...] | None = None
    """normalisation it was trained with"""
    resize: int | None = None
    """side before the centre crop"""
    rule: Literal["squash", "shorter", "none"] | None = None
    """squash: to a square; shorter: the shorter side, aspect kept; none: images already have the right size"""
    interpolation: Literal["bilinear", "bicubic"] | None = None
    """how images are resized"""


COMMAND = Command(
    "convert",
    "Convert your own checkpoint into a model file.\n\nReads timm and torchvision state dicts, also inside those of "
    "Lightning or AutoGluon, and folders of transformers (ViT, DeiT, DINOv2, CLIP, SigLIP) and of timm.",
    {"Input and output": Checkpoint, "Model": Preprocessing},
)


def run(argv: list[str]) -> None:
    """Read the checkpoint, check that every tensor fits, write a model file."""
    given, how = parse(COMMAND, argv)
    from dept.io import check_output, is_dept_file
    from dept.models.checkpoint import changed_preprocess, read_classes
    from dept.models.files import save_model
    from dept.models.foreign.read import read_foreign
    from dept.models.model import from_checkpoint
    from dept.runs.words import adapt_command, unknown_source

    check_output(given.out, keep=Path.exists)
    if is_dept_file(given.checkpoint):
        raise UsageError(f"{given.checkpoint} is a dept file already: there is nothing to convert.")
    names = None if given.classes is None else read_classes(given.classes)
    found = read_foreign(given.checkpoint, arch=given.arch, options=how.options())
    model = from_checkpoint(found, names or found.class_names())
    changes = {"mean": how.mean, "std": how.std, "resize": how.resize, "rule": how.rule}
    pre = changed_preprocess(model.card.preprocess, **changes, interpolation=how.interpolation)
    model.card = replace(model.card, preprocess=pre)
    path = save_model(model, given.out)
    for note in found.notes:
        say(f"Note: {with_flags(note, flag_names(COMMAND, argv))}")
    say(f"Architecture: {found.described()}")
    say(
        f"{len(model.classes)} classes; images {pre.rule} {pre.resize} -> crop {pre.size} ({pre.interpolation}), "
        f"mean {pre.mean}, std {pre.std}."
    )
    if found.preprocess is None and (how.mean is None or how.std is None):
        say(
            "How images were prepared is not in the file, so timm's way is assumed. Predictions depend on it: if yours "
            "was another, give --mean and --std, and --resize, --rule and --interpolation if they differ."
        )
    file = shlex.quote(str(path))
    show(f"Model: {path}\nNext:  dept evaluate {file} LABELLED\n       {adapt_command(path)}")
    show("\n".join(unknown_source(path)))
