"""Attention maps against the slow formula, and against what the model itself computes."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from dept.core.attention import attention_weights, most_focused, prompt_attention
from dept.models.model import Model
from support import scramble, tiny_model


def slow_weights(block: torch.nn.Module, x: Tensor) -> Tensor:
    """softmax(q kᵀ / √d), one image, head, query and key at a time, in double precision."""
    attn, normed = block.attn, block.norm1(x)
    heads, width = attn.num_heads, x.shape[-1] // attn.num_heads
    qkv = (normed @ attn.qkv.weight.T + attn.qkv.bias).double()
    q, k = qkv[..., : x.shape[-1]], qkv[..., x.shape[-1] : 2 * x.shape[-1]]
    out = torch.zeros(len(x), heads, x.shape[1], x.shape[1], dtype=torch.float64)
    for b in range(len(x)):
        for h in range(heads):
            own = slice(h * width, (h + 1) * width)
            for i in range(x.shape[1]):
                scores = [float(q[b, i, own] @ k[b, j, own]) / math.sqrt(width) for j in range(x.shape[1])]
                top = max(scores)
                powers = [math.exp(score - top) for score in scores]
                out[b, h, i] = torch.tensor([power / sum(powers) for power in powers])
    return out


@torch.no_grad()
def test_weights_equal_the_slow_formula() -> None:
    model = tiny_model()
    scramble(model)
    block, x = model.backbone.blocks[1], torch.randn(2, 7, 32)
    torch.testing.assert_close(attention_weights(block, x).double(), slow_weights(block, x), atol=1e-5, rtol=1e-4)


@torch.no_grad()
def test_weights_mix_values_into_the_output_of_timm() -> None:
    model = tiny_model()
    scramble(model)
    block, x = model.backbone.blocks[0], torch.randn(2, 9, 32)
    weights, normed = attention_weights(block, x), block.norm1(x)
    values = (normed @ block.attn.qkv.weight.T + block.attn.qkv.bias)[..., 64:].view(2, 9, 2, 16).transpose(1, 2)
    mixed = block.attn.proj((weights @ values).transpose(1, 2).flatten(2))
    torch.testing.assert_close(mixed, block.attn(normed), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("stages", [1, 2, 4])
@torch.no_grad()
def test_stages_see_the_tokens_of_the_model(stages: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tokens that leave the last stage here give the features of `model.read`."""
    model = tiny_model(stages=stages)
    scramble(model, scale=0.15)
    images, left = torch.randn(2, 3, 32, 32), []
    model.backbone.blocks[-1].register_forward_hook(lambda module, inputs, output: left.append(output))
    found = prompt_attention(model, images)
    features = model.backbone.norm(left[0])[:, 0]
    torch.testing.assert_close(features, model.read(images).features, atol=1e-4, rtol=1e-4)
    assert len(found) == stages
    for one in found:
        assert one.weights.shape == (2, 2, 17 + 3, 17 + 3) and one.prompt_maps.shape == (2, 3, 16)
        torch.testing.assert_close(one.weights.sum(dim=-1), torch.ones(2, 2, 20))
        shares = one.shares()
        assert shares["patches"] + shares["prefix"] + shares["prompts"] == pytest.approx(1, abs=1e-5)


def test_a_plain_model_has_no_prompts_to_look(model: Model) -> None:
    assert prompt_attention(tiny_model(stages=0, prompts=0), torch.randn(1, 3, 32, 32)) == []


def test_the_most_focused_prompt_has_the_sharpest_map() -> None:
    maps = torch.full((2, 3, 4), 0.25)
    maps[:, 1] = torch.tensor([0.97, 0.01, 0.01, 0.01])
    assert most_focused(maps) == 1
