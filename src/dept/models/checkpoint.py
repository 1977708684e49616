"""Checkpoints of other training scripts: their weights, their class names, their preprocessing."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors.torch import load_file
from torch import Tensor

from dept.data.views import Preprocess
from dept.errors import DataError, UsageError

# Wrappers that training scripts put around a state dict, and prefixes that they put before its names.
_NESTS = ("state_dict", "model", "model_state_dict", "state_dict_ema")
_PREFIXES = re.compile(r"(module\.)?(model\.)?(_orig_mod\.)?")


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
    return {_PREFIXES.sub("", name, count=1): tensor for name, tensor in loaded.items()}


def changed_preprocess(
    pre: Preprocess,
    *,
    mean: tuple[float, ...] | None,
    std: tuple[float, ...] | None,
    resize: int | None,
    rule: Literal["squash", "shorter", "none"],
) -> Preprocess:
    """The preprocessing that the checkpoint was trained with; None keeps timm's."""
    for name, values in (("mean", mean), ("std", std)):
        if values is not None and len(values) != pre.channels:
            raise UsageError(f"`{name}` needs {pre.channels} values for this model, found {len(values)}.")
    if not all(0 < value < math.inf for value in std or ()):
        raise UsageError(f"`std` must be above 0 and finite because images are divided by it, found {std}.")
    if not all(map(math.isfinite, mean or ())):
        raise UsageError(f"`mean` must be finite, found {mean}.")
    if resize is not None and resize < pre.size:
        raise UsageError(f"`resize` must be at least the crop of {pre.size}, found {resize}.")
    return replace(pre, rule=rule, mean=mean or pre.mean, std=std or pre.std, resize=resize or pre.resize)
