"""`dept convert CHECKPOINT --arch A --classes FILE`."""

from __future__ import annotations

import json
import math
import shlex
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
import tyro
from safetensors.torch import load_file
from torch import Tensor

from dept.cli.parse import parse, timm_options
from dept.cli.show import say
from dept.errors import DataError, UsageError
from dept.io import check_output
from dept.models.files import save_model
from dept.models.model import Model, from_checkpoint
from dept.runs.words import adapt_command

# Wrappers that training scripts put around a state dict, and prefixes that they put before its names.
_NESTS = ("state_dict", "model", "model_state_dict", "state_dict_ema")
_PREFIXES = ("module.", "model.", "_orig_mod.")


@dataclass(frozen=True)
class Files:
    """A user's classifier and what must be known about it."""

    checkpoint: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="CHECKPOINT")]
    """.pt, .pth or .safetensors with the weights of a timm classifier (loaded without running any code in it)"""
    arch: str
    """its timm architecture"""
    classes: Path
    """text file with one class name per line in the order of the logits, or a JSON list"""
    out: Path = Path("model.safetensors")
    """model file to write"""
    timm: str = "{}"
    """further keywords for timm as JSON, e.g. '{"img_size": 128}'"""
    mean: tuple[float, ...] | None = None
    """normalisation it was trained with (default: timm's for this architecture)"""
    std: tuple[float, ...] | None = None
    """normalisation it was trained with (default: timm's for this architecture)"""
    resize: int | None = None
    """side before the centre crop (default: size · 256 / 224)"""
    rule: Literal["squash", "shorter", "none"] = "squash"
    """squash: to a square; shorter: the shorter side, aspect kept; none: images already have the right size"""


def run(argv: list[str]) -> int:
    """Read the checkpoint, check that every tensor fits, write a model file."""
    files: Files = parse("convert", "Bring your own checkpoint.", argv, files=Files).files
    check_output(files.out, keep=Path.exists)
    classes = read_classes(files.classes)
    model = from_checkpoint(files.arch, classes, read_state(files.checkpoint), **timm_options(files.timm))
    _set_preprocess(model, files)
    path = save_model(model, files.out)
    pre = model.card.preprocess
    say(
        f"{len(classes)} classes; images {pre.rule} {pre.resize} -> crop {pre.size}, mean {pre.mean}, std {pre.std}. "
        "If the model was trained with another normalisation, give --mean and --std: predictions depend on it."
    )
    print(f"Model: {path}\nNext:  dept evaluate {shlex.quote(str(path))} LABELLED\n       {adapt_command(model, path)}")
    return 0


def read_classes(path: Path) -> list[str]:
    """Class names of a text or JSON file."""
    if not path.is_file():
        raise DataError(f"The class file {path} does not exist. It holds one class name per line.")
    try:
        text = path.read_text(encoding="utf-8")
        names = json.loads(text) if text.lstrip().startswith("[") else [line.strip() for line in text.splitlines()]
    except ValueError as error:  # of the encoding, or of the JSON
        raise DataError(
            f"The class file {path} cannot be read ({error}). "
            "It holds one class name per line, or a JSON list, in UTF-8."
        ) from error
    names = [str(name) for name in names if str(name)]
    if len(names) < 2 or len(set(names)) != len(names):
        raise DataError(f"{path} must hold at least two different class names, found {len(names)}.")
    return names


def read_state(path: Path) -> dict[str, Tensor]:
    """The state dict of a checkpoint, unwrapped and without the usual prefixes. No code in the file is run."""
    if not path.is_file():
        raise DataError(f"The checkpoint {path} does not exist.")
    try:
        if path.suffix == ".safetensors":
            loaded: Any = load_file(path)
        else:
            loaded = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch and safetensors raise many types for files that are something else
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise DataError(
            f"{path} cannot be read as plain weights ({reason}). "
            "Save the state dict alone: torch.save(model.state_dict(), PATH)."
        ) from error
    for nest in _NESTS:
        if isinstance(loaded, dict) and isinstance(loaded.get(nest), dict):
            loaded = loaded[nest]
    if not isinstance(loaded, dict) or not all(isinstance(value, Tensor) for value in loaded.values()):
        raise DataError(f"{path} holds a {type(loaded).__name__}, not a state dict of tensors.")
    return {_stripped(name): tensor for name, tensor in loaded.items()}


def _stripped(name: str) -> str:
    for prefix in _PREFIXES:
        name = name.removeprefix(prefix)
    return name


def _set_preprocess(model: Model, files: Files) -> None:
    pre = model.card.preprocess
    for key, value in (("mean", files.mean), ("std", files.std)):
        if value is not None and len(value) != pre.channels:
            raise UsageError(f"--{key} needs {pre.channels} numbers for this model, found {len(value)}.")
    if not all(0 < value < math.inf for value in files.std or ()):
        raise UsageError(f"--std must be above 0 and finite: images are divided by it. Found {files.std}.")
    if not all(map(math.isfinite, files.mean or ())):
        raise UsageError(f"--mean must be finite, found {files.mean}.")
    pre = replace(pre, rule=files.rule, mean=files.mean or pre.mean, std=files.std or pre.std)
    if files.resize is not None:
        if files.resize < pre.size:
            raise UsageError(f"--resize {files.resize} is smaller than the crop of {pre.size}.")
        pre = replace(pre, resize=files.resize)
    model.card = replace(model.card, preprocess=pre)
