"""What is tuned: names of parameters by group, and how many they are."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from timm.layers import RmsNorm
from torch import nn

GROUPS = ("prompts", "head", "norm", "backbone", "encoder", "all")
TRAINING_ONLY = ("projections.", "auxiliary.", "domains.")
"""prefixes of parameters that serve training losses and are never part of an adapter"""
_BLOCK = re.compile(r"backbone\.blocks\.(\d+)\.")
_TOP = ("backbone.norm.", "backbone.fc_norm.", "backbone.layer4.")
_NORMS = (nn.LayerNorm, RmsNorm, nn.GroupNorm, nn.modules.batchnorm._BatchNorm)


def select(model: nn.Module, *groups: str) -> list[str]:
    """Names of the model's parameters in any of the groups, in `named_parameters` order, without repeats.

    prompts   the prompt tokens          head      the linear classifier
    norm      affine parameters of every normalisation layer of the backbone
    backbone  the timm model          encoder   backbone and prompts (everything but the head)
    all       everything but projection heads, auxiliary heads and prompts of single source domains, which are
              never part of an adapter
    """
    unknown = [group for group in groups if group not in GROUPS]
    if unknown:
        raise ValueError(f"Unknown parameter group {unknown[0]!r}; choose from {', '.join(GROUPS)}.")
    norm = {
        f"{prefix}.{name}"
        for prefix, module in model.named_modules()
        if isinstance(module, _NORMS)
        for name, _ in module.named_parameters(recurse=False)
    }
    names = [name for name, _ in model.named_parameters() if not name.startswith(TRAINING_ONLY)]
    chosen = {
        "prompts": {name for name in names if name == "prompts"},
        "head": {name for name in names if name.startswith("head.")},
        "norm": {name for name in names if name in norm},
        "backbone": {name for name in names if name.startswith("backbone.")},
        "encoder": {name for name in names if not name.startswith("head.")},
        "all": set(names),
    }
    wanted = set().union(*(chosen[group] for group in groups))
    return [name for name in names if name in wanted]


def early_norms(names: Sequence[str]) -> list[str]:
    """Names without those of the last quarter of the blocks (of `layer4` in a ResNet) and of the final norm."""
    numbers = [int(match[1]) if (match := _BLOCK.match(name)) else -1 for name in names]
    first_late = (max(numbers, default=-1) + 1) * 3 // 4
    early = [name for name, number in zip(names, numbers, strict=True) if number < first_late or number < 0]
    return [name for name in early if not name.startswith(_TOP)]


def freeze_except(model: nn.Module, names: Iterable[str]) -> None:
    """Let gradients reach the named parameters (and those that serve training only) alone."""
    wanted = set(names)
    for name, parameter in model.named_parameters():
        if not name.startswith(TRAINING_ONLY):
            parameter.requires_grad_(name in wanted)


def count(model: nn.Module, names: Iterable[str]) -> int:
    """Number of scalar parameters among the names."""
    parameters = dict(model.named_parameters())
    return sum(parameters[name].numel() for name in names)
