"""Checkpoints of other training scripts: their weights, their class names, their preprocessing."""

from __future__ import annotations

import json
import math
import re
import warnings
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors.torch import load_file
from timm.data import ImageNetInfo
from torch import Tensor

from dept.data.views import Preprocess
from dept.errors import DataError, UsageError

# Wrappers that training scripts put around a state dict.
_NESTS = ("state_dict", "model", "model_state_dict", "state_dict_ema")


def read_classes(path: Path) -> list[str]:
    """Class names of a text or JSON file; `imagenet` stands for the thousand names of ImageNet."""
    if path == Path("imagenet") and not path.exists():
        return list(ImageNetInfo().label_names())
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
    """The tensors of a checkpoint by name, as float32 where they are floats. No code in the file is run."""
    if not path.is_file():
        raise DataError(f"The checkpoint {path} does not exist.")
    _check_archive(path)
    try:
        loaded = _loaded(path)
    except Exception as error:  # torch and safetensors raise many types for files that are something else
        raise DataError(f"{path} cannot be read as plain weights: {_reason(path, error)}") from error
    for nest in _NESTS:
        if isinstance(loaded, dict) and isinstance(loaded.get(nest), dict):
            loaded = loaded[nest]
    if not isinstance(loaded, dict) or not all(isinstance(value, Tensor) for value in loaded.values()):
        held = f"entries {', '.join(map(str, list(loaded)[:5]))}" if isinstance(loaded, dict) else type(loaded).__name__
        raise DataError(f"{path} holds {held}, not a state dict of tensors. Save the state dict alone.")
    return {str(name): _plain(str(name), tensor) for name, tensor in loaded.items()}


def _loaded(path: Path) -> Any:
    if path.suffix == ".safetensors":
        return load_file(path)
    with warnings.catch_warnings(action="ignore"):  # about how the file was pickled
        return torch.load(path, map_location="cpu", weights_only=True)


def _reason(path: Path, error: Exception) -> str:
    """Why a file was refused, and what to do. (torch advises to load it without its checks, so its words stay here.)"""
    again = "Fetch or save it again."
    if not path.stat().st_size:
        return f"the file is empty. {again}"
    if path.suffix == ".safetensors":
        return f"it is not a safetensors file ({error}). {again}"
    if "TorchScript" in str(error):
        held = "it is a TorchScript archive"
    elif found := re.search(r"GLOBAL ([\w.]+)", str(error)):
        held = f"it also holds {found[1]}, and loading that could run code"
    else:
        return f"it is damaged, or torch.save did not write it. {again}"
    return f"{held}. Save the state dict alone: torch.save(model.state_dict(), PATH)."


def _check_archive(path: Path) -> None:
    """Refuse a compressed archive: torch writes none, and a small one could fill the memory."""
    if not zipfile.is_zipfile(path):
        return
    try:
        with zipfile.ZipFile(path) as archive:
            grown = sum(entry.file_size for entry in archive.infolist())
    except (zipfile.BadZipFile, ValueError) as error:
        raise DataError(f"{path} cannot be read as plain weights: it is a damaged archive ({error}).") from error
    if grown > path.stat().st_size:
        raise DataError(f"{path} is a compressed archive, which torch.save does not write. Save the weights again.")


def _plain(name: str, tensor: Tensor) -> Tensor:
    """A dense tensor with memory of its own size, floats as float32."""
    dense = tensor.layout == torch.strided and tensor.device.type == "cpu" and not tensor.is_quantized
    if not dense or tensor.numel() * tensor.element_size() > tensor.untyped_storage().nbytes():
        raise DataError(f"{name} in the checkpoint is not a plain tensor; quantised and sparse ones are not read.")
    return tensor.detach().float() if tensor.is_floating_point() else tensor.detach()


def changed_preprocess(
    pre: Preprocess,
    *,
    mean: tuple[float, ...] | None,
    std: tuple[float, ...] | None,
    resize: int | None,
    rule: Literal["squash", "shorter", "none"] | None,
    interpolation: Literal["bilinear", "bicubic"] | None = None,
) -> Preprocess:
    """The preprocessing that the checkpoint was trained with; None keeps what is known of it."""
    for name, values in (("mean", mean), ("std", std)):
        if values is not None and len(values) != pre.channels:
            raise UsageError(f"`{name}` needs {pre.channels} values for this model, found {len(values)}.")
    if not all(0 < value < math.inf for value in std or ()):
        raise UsageError(f"`std` must be above 0 and finite because images are divided by it, found {std}.")
    if not all(map(math.isfinite, mean or ())):
        raise UsageError(f"`mean` must be finite, found {mean}.")
    if resize is not None and resize < pre.size:
        raise UsageError(f"`resize` must be at least the crop of {pre.size}, found {resize}.")
    given: dict[str, Any] = {"mean": mean, "std": std, "resize": resize, "rule": rule, "interpolation": interpolation}
    return replace(pre, **{name: value for name, value in given.items() if value is not None})
