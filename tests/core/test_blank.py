"""Prompts that begin as tokens of a blank image."""

from __future__ import annotations

import torch

from dept.core.blank import blank_prompts
from support import scramble, tiny_model


def test_prompts_are_the_tokens_of_a_blank_image() -> None:
    """Against a slow forward: what enters the first layer of each stage, at places of which none comes twice."""
    model = tiny_model(stages=0)
    scramble(model)
    vit = model.backbone
    with torch.no_grad():
        x = vit.norm_pre(vit._pos_embed(vit.patch_embed(torch.zeros(1, 3, 32, 32))))
        entering = [x[0, 1:]]
        for block in vit.blocks[:2]:
            x = block(x)
        entering.append(x[0, 1:])
    prompts = blank_prompts(vit, 2, 16, torch.Generator().manual_seed(0))  # 16 patches: all of them
    for made, tokens in zip(prompts, entering, strict=True):
        order = made.sum(dim=1).argsort()
        assert torch.allclose(made[order], tokens[tokens.sum(dim=1).argsort()], atol=1e-6)


def test_more_prompts_than_patches_repeat_them() -> None:
    model = tiny_model(stages=0)
    scramble(model)
    prompts = blank_prompts(model.backbone, 1, 40, torch.Generator().manual_seed(0))
    assert prompts.shape == (1, 40, 32) and len(prompts[0].unique(dim=0)) == 16


def test_the_model_is_left_as_it_was() -> None:
    model = tiny_model(stages=0).train()
    blank_prompts(model.backbone, 2, 3, torch.Generator())
    assert model.backbone.training and not any(len(block._forward_pre_hooks) for block in model.backbone.blocks)


def test_blank_prompts_change_less_than_random_ones() -> None:
    """On a random model too: blank tokens are alike and like others, random ones are neither."""
    model = tiny_model(stages=0)
    scramble(model)
    images = torch.randn(16, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        plain = model(images)
        blank = model.with_prompts(2, 8, seed=0)
        away = (blank(images) - plain).abs().mean()
        assert blank.prompts is not None
        blank.prompts.copy_(torch.randn(2, 8, 32, generator=torch.Generator().manual_seed(2)))
        assert away < (blank(images) - plain).abs().mean()
