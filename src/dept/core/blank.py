"""Prompts for a model that never saw any: the tokens of a blank image, which attention hardly notices.

Random tokens draw attention to themselves and change many predictions. The tokens that a blank image has on its way
through the same layers are what those layers are used to.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


@torch.no_grad()
def blank_prompts(backbone: nn.Module, stages: int, prompts: int, generator: torch.Generator) -> Tensor:
    """Patch tokens of a blank image where each stage begins, at random places: prompts (M, P, D).

    Places are drawn without repetition until all N are used.
    """
    entering = _stage_inputs(backbone, stages)  # M tensors (N, D)
    return torch.stack([tokens[_places(len(tokens), prompts, generator).to(tokens.device)] for tokens in entering])


def _stage_inputs(backbone: nn.Module, stages: int) -> list[Tensor]:
    """The patch tokens (N, D) that enter the first layer of each stage when the image is blank."""
    vit: Any = backbone
    layers = len(vit.blocks) // stages
    seen: list[Tensor] = []
    # Hooks, because timm's own forward then decides what a layer is given besides tokens.
    hooks = [
        vit.blocks[stage * layers].register_forward_pre_hook(lambda _, given: seen.append(given[0][0]))
        for stage in range(stages)
    ]
    weight, training = vit.patch_embed.proj.weight, vit.training
    try:
        # Normalised images have mean 0, so this is an even grey.
        vit.eval()(weight.new_zeros(1, weight.shape[1], *vit.patch_embed.img_size))
    finally:
        vit.train(training)
        for hook in hooks:
            hook.remove()
    return [tokens[vit.num_prefix_tokens :] for tokens in seen]


def _places(count: int, wanted: int, generator: torch.Generator) -> Tensor:
    rounds = [torch.randperm(count, generator=generator) for _ in range(-(-wanted // count))]
    return torch.cat(rounds)[:wanted]
