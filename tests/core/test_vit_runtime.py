"""How the forward is run must not change what it computes: caching, checkpointing, compiling, shared embeddings."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor

from dept.core.adapter import Adapter
from dept.models.model import Model
from support import tiny_model, tiny_resnet


@pytest.fixture
def model() -> Model:
    torch.manual_seed(0)
    return tiny_model(5, stages=2, prompts=3).eval()


@pytest.fixture
def images(model: Model) -> Tensor:
    pre = model.card.preprocess
    return torch.randn(3, pre.channels, pre.size, pre.size, generator=torch.Generator().manual_seed(1))


def gradients(model: Model, images: Tensor) -> list[Tensor]:
    output = model.read(images, aggregated=True)
    loss = output.logits.square().sum() + sum(tokens.sin().sum() for tokens in output.prompts)
    assert model.prompts is not None
    return list(torch.autograd.grad(loss, [model.prompts, model.head.weight]))


def test_checkpointing_gives_the_same_gradients(model: Model, images: Tensor) -> None:
    plain = gradients(model, images)
    model.configure(checkpointing=True)
    for ours, expected in zip(gradients(model, images), plain, strict=True):
        torch.testing.assert_close(ours, expected)


def test_a_plain_model_is_recomputed_block_by_block(images: Tensor) -> None:
    found, saved = [], []
    for checkpointing in (False, True):
        model = tiny_model(stages=0)
        model.configure(checkpointing=checkpointing)
        sizes: list[int] = []
        with torch.autograd.graph.saved_tensors_hooks(lambda t, sizes=sizes: sizes.append(t.numel()) or t, lambda t: t):
            loss = model(images).square().sum()
        found.append(torch.autograd.grad(loss, list(model.backbone.blocks.parameters())))
        saved.append(sum(sizes))
    for ours, expected in zip(*found, strict=True):
        torch.testing.assert_close(ours, expected)
    assert saved[1] < saved[0] / 2


def test_only_plain_transformers_are_recomputed() -> None:
    with pytest.raises(ValueError, match="this is a ResNet"):
        tiny_resnet().configure(checkpointing=True)


def test_cached_prefixes_notice_every_change(model: Model, images: Tensor) -> None:
    """Without gradients the projections of prompts are kept; with them they never are: both must always agree."""
    assert model.prompts is not None

    def agrees() -> None:
        with torch.no_grad():
            kept = model(images)
        torch.testing.assert_close(kept, model(images).detach())

    agrees()
    assert model._prefixes  # the second call without gradients reads from here
    with torch.no_grad():
        model.prompts.add_(0.5)
    agrees()
    with torch.no_grad():
        model.backbone.blocks[0].attn.qkv.weight.mul_(1.5)
    agrees()
    other = Adapter({"prompts": torch.randn_like(model.prompts)})
    with torch.no_grad():
        kept = model(images, adapter=other)
    torch.testing.assert_close(kept, model(images, adapter=other).detach())
    agrees()


def test_the_cache_is_used(model: Model, images: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    from dept.core import trimming, vit

    calls: list[int] = []
    original = trimming.project_prompts
    for module in (trimming, vit):
        monkeypatch.setattr(module, "project_prompts", lambda *a: calls.append(1) or original(*a))
    with torch.no_grad():
        model(images)
        first = len(calls)
        model(images)
    # stages of two layers: the second layer projects joined tokens each time, the first only once
    assert first == 2 * model.stages and len(calls) - first == model.stages


def test_embedded_tokens_stand_for_images(model: Model, images: Tensor) -> None:
    torch.testing.assert_close(model.read(model.embed(images)).logits, model.read(images).logits, rtol=0, atol=0)


def test_a_plain_model_refuses_tokens(images: Tensor) -> None:
    plain = tiny_model(5, stages=0, prompts=0).eval()
    with pytest.raises(ValueError, match="give it images"):
        plain.read(plain.embed(images))


def test_compiled_forward_agrees(model: Model, images: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = model.read(images, aggregated=True)
    # The real backend needs a C++ compiler and half a minute; tracing is what can break on our side.
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    model.configure(compile=True)
    compiled = model.read(images, aggregated=True)
    torch.testing.assert_close(compiled.logits, expected.logits)
    torch.testing.assert_close(compiled.prompts[0], expected.prompts[0])


def test_bf16_keeps_outputs_in_fp32_and_close(model: Model, images: Tensor) -> None:
    expected = model.read(images, aggregated=True)
    model.configure(amp=True)
    output = model.read(images, aggregated=True)
    assert output.logits.dtype == output.features.dtype == output.prompts[0].dtype == torch.float32
    assert not torch.equal(output.features, expected.features)
    torch.testing.assert_close(output.logits, expected.logits, rtol=0.1, atol=0.1)
