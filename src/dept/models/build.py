"""Building a timm model from its name and options, with the reasons why that failed as sentences."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import timm
import torch
from torch import Tensor, nn

from dept.core.blocks import pool_cls_and_mean
from dept.errors import DataError, UsageError
from dept.models.schema import check_buffers, check_options

Options = dict[str, Any]


def build(arch: str, *, norm_eps: float | None = None, cls_and_mean: bool = False, **keywords: Any) -> Any:
    """timm's model.

    Args:
        norm_eps: ε of its layer norms, which timm can only be told by a function.
        cls_and_mean: its features are CLS beside the mean of the patches, which timm has no word for.
    """
    model = timm.create_model(arch, **keywords)
    if norm_eps is not None:
        if not isinstance(norm_eps, float) or not 0 < norm_eps < 1:
            raise ValueError(f"norm_eps must be between 0 and 1, found {norm_eps!r}")
        for module in model.modules():
            if isinstance(module, nn.LayerNorm):
                module.eps = norm_eps
    if cls_and_mean:
        pool_cls_and_mean(model)
    return model


def timm_model(
    arch: str, options: Options, *, pretrained: bool = False, state: Mapping[str, Tensor] | None = None, **more: Any
) -> Any:
    """A model for a user: what timm cannot do is an error that says so.

    Args:
        pretrained: with timm's own weights.   state: with these instead, which timm fits to another image size.
    """
    try:
        check_options({name: value for name, value in options.items() if name != "num_classes"})
    except ValueError as error:
        raise UsageError(f"timm's {arch!r} cannot be built here: {error}.") from error
    overlay = None if state is None else {"state_dict": dict(state), "custom_load": False, **more}
    try:
        keywords = {**options, **more}
        return build(arch, pretrained=pretrained or state is not None, pretrained_cfg_overlay=overlay, **keywords)
    except Exception as error:  # timm and the hub raise many types; all mean "no such model here"
        check_known(arch, error)
        if isinstance(error, TypeError) or not (pretrained or state):
            raise UsageError(f"timm refused to build {arch!r} with the options {options}: {error}") from error
        if state is not None:
            raise DataError(f"The weights do not fit {arch!r}: {error}") from error
        where = "timm's hub (no network? give a local file as `weights`, or set `pretrained=False`)"
        raise DataError(f"The weights of {arch!r} could not be loaded from {where}: {error}") from error


def check_known(arch: str, error: Exception | None = None) -> None:
    """Refuse an architecture that timm does not have."""
    if arch.split(".")[0] not in timm.list_models():
        close = timm.list_models(f"*{arch.split('_')[0]}*")[:5]
        raise UsageError(f"timm knows no architecture {arch!r}. Close names: {', '.join(close)}.") from error


def skeleton(arch: str, options: Options) -> Any:
    """The model without its head and without memory (on the meta device): what a checkpoint is compared with."""
    check_known(arch)
    with torch.device("meta"):
        made = timm_model(arch, {**options, "num_classes": 0})
    try:
        check_buffers(made)
    except ValueError as error:
        raise DataError(f"timm's {arch!r} with {options} is not built: {error}.") from error
    return made


def shapes_of(module: nn.Module) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the tensors of a model."""
    return {name: tuple(tensor.shape) for name, tensor in module.state_dict().items()}


def feature_width(backbone: Any) -> int:
    """Numbers per image that a timm model without head gives out."""
    return int(getattr(backbone, "head_hidden_size", None) or backbone.num_features)
