"""`dept convert CHECKPOINT --arch A --classes FILE`."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

from dept.cli.command import Command, Positional
from dept.cli.parse import parse
from dept.cli.parts import TimmOptions
from dept.cli.show import say, show


@dataclass(frozen=True)
class Checkpoint:
    """A classifier that was trained elsewhere."""

    checkpoint: Annotated[Path, Positional("CHECKPOINT")]
    """.pt, .pth or .safetensors with the weights of a timm classifier (loaded without running any code in it)"""
    arch: str
    """its timm architecture"""
    classes: Path
    """text file with one class name per line in the order of the logits, or a JSON list"""
    out: Path = Path("model.safetensors")
    """model file to write"""


@dataclass(frozen=True)
class Preprocessing(TimmOptions):
    """How it was trained."""

    mean: tuple[float, ...] | None = None
    """normalisation it was trained with (default: timm's for this architecture)"""
    std: tuple[float, ...] | None = None
    """normalisation it was trained with (default: timm's for this architecture)"""
    resize: int | None = None
    """side before the centre crop (default: size · 256 / 224)"""
    rule: Literal["squash", "shorter", "none"] = "squash"
    """squash: to a square; shorter: the shorter side, aspect kept; none: images already have the right size"""


COMMAND = Command(
    "convert",
    "Convert your own checkpoint into a model file.",
    {"Input and output": Checkpoint, "Model": Preprocessing},
)


def run(argv: list[str]) -> None:
    """Read the checkpoint, check that every tensor fits, write a model file."""
    given, how = parse(COMMAND, argv)
    from dept.io import check_output
    from dept.models.checkpoint import changed_preprocess, read_classes, read_state
    from dept.models.files import save_model
    from dept.models.model import from_checkpoint
    from dept.runs.words import adapt_command

    check_output(given.out, keep=Path.exists)
    classes = read_classes(given.classes)
    model = from_checkpoint(given.arch, classes, read_state(given.checkpoint), **how.options())
    changes = {"mean": how.mean, "std": how.std, "resize": how.resize, "rule": how.rule}
    pre = changed_preprocess(model.card.preprocess, **changes)
    model.card = replace(model.card, preprocess=pre)
    path = save_model(model, given.out)
    say(
        f"{len(classes)} classes; images {pre.rule} {pre.resize} -> crop {pre.size}, mean {pre.mean}, std {pre.std}. "
        "If the model was trained with another normalisation, give --mean and --std: predictions depend on it."
    )
    show(f"Model: {path}\nNext:  dept evaluate {shlex.quote(str(path))} LABELLED\n       {adapt_command(model, path)}")
