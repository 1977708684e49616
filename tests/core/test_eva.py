"""Prompts in timm's Eva class against timm's own blocks, with the prompts as further tokens without a position."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from torch import Tensor

from dept.core.adapter import Adapter
from dept.core.attention import prompt_attention
from dept.core.blocks import project, rotations
from dept.core.domains import early_features
from dept.core.select import freeze_except, select
from dept.core.vit import AdaptedModel
from dept.models.files import load_model, save_model
from dept.models.foreign.read import from_state
from dept.models.model import Model, create_model, from_checkpoint
from support import scramble

SMALL = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "num_heads": 2, "depth": 4}

# Families of timm's Eva, by what is special about them.
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "eva": ("eva_giant_patch14_224", {}),  # no rotation
    "eva02-tiny": ("eva02_tiny_patch14_224", {}),  # packed SwiGLU, fused q k v with biases of q and v, mean of patches
    "eva02-base": ("eva02_base_patch14_224", {}),  # SwiGLU with a norm, q k v apart
    "eva02-clip": ("eva02_base_patch16_clip_224", {}),  # norm inside the attention, CLS
    "dinov3": ("vit_small_patch16_dinov3", {}),  # half rotation, four registers, LayerScale, no bias, mean of patches
    "dinov3-cls": ("vit_small_patch16_dinov3_qkvb", {"global_pool": "token"}),
    "dinov3-plus": ("vit_small_plus_patch16_dinov3", {}),  # aligned SwiGLU
    "pe-core": ("vit_pe_core_tiny_patch16_384", {}),  # attention pooling, norm before the blocks
    "pe-spatial": ("vit_pe_spatial_tiny_patch16_512", {}),  # no norm after the blocks
    "rope-axial": ("vit_small_patch16_rope_224", {}),
    "rope-mixed": ("vit_small_patch16_rope_mixed_224", {}),  # learned rotations of every layer and head
    "rope-mixed-ape": ("vit_small_patch16_rope_mixed_ape_224", {}),  # and positions that are added
    "rope-gap": ("vit_medium_patch16_rope_reg1_gap_256", {}),  # one register, no CLS
    "no-embed-class": ("eva02_tiny_patch14_224", {"no_embed_class": True, "num_reg_tokens": 2}),
    "max": ("eva02_tiny_patch14_224", {"global_pool": "avgmax"}),
    "sapiens2": ("vit_base_patch16_sapiens2", {"num_kv_heads": 1}),  # keys shared by heads, their norm, RMS norms
}


def build(kind: str, *, stages: int = 2, prompts: int = 3, **changes: Any) -> Model:
    arch, options = FAMILIES[kind]
    model = create_model(arch, 5, stages=stages, prompts=prompts, **{**SMALL, **options, **changes}).eval()
    scramble(model)
    return model.double()


def images_of(count: int = 2) -> Tensor:
    return torch.randn(count, 3, 32, 32, generator=torch.Generator().manual_seed(7), dtype=torch.float64)


@contextmanager
def longer_prefix(vit: Any, count: int) -> Iterator[None]:
    """timm's attention turns what comes after its prefix; prompts that stand there belong to the prefix."""
    for block in vit.blocks:
        block.attn.num_prefix_tokens += count
    try:
        yield
    finally:
        for block in vit.blocks:
            block.attn.num_prefix_tokens -= count


def reference(model: Model, images: Tensor) -> tuple[Tensor, Tensor, list[Tensor]]:
    """[prefix, prompts, patches] through timm's own blocks, untrimmed."""
    vit: Any = model.backbone
    tokens, rope = vit._pos_embed(vit.patch_embed(images))
    tokens = vit.norm_pre(tokens)
    prefix, count, depth, collected = vit.num_prefix_tokens, model.prompts.shape[1], len(vit.blocks), []
    for index, block in enumerate(vit.blocks):
        stage, layer = divmod(index, depth // model.stages)
        if layer == 0:
            fresh = model.prompts[stage].unsqueeze(0).expand(len(images), -1, -1)
            tokens = torch.cat([tokens[:, :prefix], fresh, tokens[:, prefix:]], dim=1)
        with longer_prefix(vit, count):
            tokens = block(tokens, rope=rope[index] if rope is not None and vit.rope_mixed else rope)
        if layer == depth // model.stages - 1:
            last = index == depth - 1
            collected.append((vit.norm(tokens) if last else tokens)[:, prefix : prefix + count])
            tokens = torch.cat([tokens[:, :prefix], tokens[:, prefix + count :]], dim=1)
    features = vit.fc_norm(vit.pool(vit.norm(tokens)))
    return features, features @ model.head.weight.T + model.head.bias, collected


@pytest.mark.parametrize("kind", FAMILIES)
def test_plain_logits_equal_timm_bit_for_bit(kind: str) -> None:
    arch, options = FAMILIES[kind]
    theirs = timm.create_model(arch, num_classes=3, **{**SMALL, **options}).eval()
    scramble(theirs, scale=0.1)
    ours = from_checkpoint(from_state(theirs.state_dict(), arch=arch, options={**SMALL, **options}), "abc")
    images = images_of().float()
    with torch.no_grad():
        assert torch.equal(ours(images), theirs(images)) and float(theirs(images).std()) > 0


def check_against_reference(model: Model, aggregated: bool) -> None:
    """Values, and gradients of every parameter, through a loss that reads everything."""
    images = images_of()
    features, logits, collected = reference(model, images)
    output = model.read(images, aggregated=aggregated)
    assert torch.allclose(output.features, features, atol=1e-9) and torch.allclose(output.logits, logits, atol=1e-9)
    ours, theirs = output.logits.square().sum(), logits.square().sum()
    assert len(output.prompts) == (len(collected) if aggregated else 0)
    for mine, expected in zip(output.prompts, collected, strict=False):
        assert torch.allclose(mine, expected, atol=1e-9)
        weights = torch.linspace(-1, 1, mine.numel(), dtype=mine.dtype).view_as(mine)
        ours, theirs = ours + (weights * mine).sum(), theirs + (weights * expected).sum()
    named = {n: p for n, p in model.named_parameters() if p.requires_grad}
    gradients = (torch.autograd.grad(loss, [*named.values()], allow_unused=True) for loss in (ours, theirs))
    for name, mine, expected in zip(named, *gradients, strict=True):
        if expected is None:
            assert mine is None or not mine.any(), name
        else:
            assert mine is not None and torch.allclose(
                mine, expected, atol=1e-9 * max(1.0, float(expected.abs().max()))
            ), name


@pytest.mark.parametrize("aggregated", [False, True])
@pytest.mark.parametrize("kind", FAMILIES)
def test_the_prompted_forward_equals_the_reference(kind: str, aggregated: bool) -> None:
    check_against_reference(build(kind), aggregated)


@pytest.mark.parametrize("stages", [1, 4])
@pytest.mark.parametrize("kind", ["dinov3", "rope-mixed"])
def test_any_number_of_stages(kind: str, stages: int) -> None:
    check_against_reference(build(kind, stages=stages), aggregated=True)


@pytest.mark.parametrize("groups", [("prompts", "head"), ("norm",)])
@pytest.mark.parametrize("kind", ["dinov3", "eva02-tiny", "rope-mixed"])
def test_a_partly_frozen_model_equals_the_reference(kind: str, groups: tuple[str, ...]) -> None:
    """Frozen MLPs are run in slices; the gradients that pass through them must not change."""
    model = build(kind)
    freeze_except(model, select(model, *groups))
    check_against_reference(model, aggregated=True)


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("kind", ["eva", "dinov3", "rope-mixed", "sapiens2"])
def test_norm_gradients_of_a_plain_model_equal_timms(kind: str, checkpointing: bool) -> None:
    model = build(kind, stages=0, prompts=0)
    model.configure(checkpointing=checkpointing)
    names = select(model, "norm")
    assert len(names) >= 4 * 2
    freeze_except(model, names)
    images, parameters = images_of(), [model.get_parameter(name) for name in names]
    ours, theirs = model(images), model.head(model.backbone(images))
    assert torch.allclose(ours, theirs, atol=1e-9)
    gradients = (torch.autograd.grad(logits.square().sum(), parameters) for logits in (ours, theirs))
    for name, mine, expected in zip(names, *gradients, strict=True):
        assert torch.allclose(mine, expected, atol=1e-9 * max(1.0, float(expected.abs().max()))), name


def test_recomputed_stages_give_the_same_gradients() -> None:
    """Learned rotations reach the recomputed stages without being an argument of theirs."""
    model, found = build("rope-mixed"), []
    for checkpointing in (False, True):
        model.configure(checkpointing=checkpointing)
        output = model.read(images_of(), aggregated=True)
        loss = output.logits.square().sum() + sum(tokens.square().sum() for tokens in output.prompts)
        found.append(torch.autograd.grad(loss, [*model.parameters()], allow_unused=True))
    assert any(name.endswith("rope.freqs") for name, _ in model.named_parameters())
    for plain, recomputed in zip(*found, strict=True):
        assert (plain is None) == (recomputed is None)
        assert plain is None or torch.allclose(plain, recomputed, atol=1e-9)


def test_patches_are_turned_and_prompts_are_not() -> None:
    """Exchanging two patches changes the logits, exchanging two prompts does not."""
    model = build("rope-axial")
    images = images_of()
    swapped = images.clone()
    swapped[:, :, :8, :8], swapped[:, :, 24:, 24:] = images[:, :, 24:, 24:], images[:, :, :8, :8]
    with torch.no_grad():
        logits, moved = model(images), model(swapped)
        model.prompts.copy_(model.prompts.flip(1))
        assert torch.allclose(model(images), logits, atol=1e-9) and not torch.allclose(moved, logits, atol=1e-3)


def test_what_is_kept_between_calls_follows_every_projection() -> None:
    """Separate projections and norms of queries and keys are part of what makes a kept projection stale."""
    for kind, name in (("eva02-base", "q_proj.bias"), ("eva02-tiny", "v_bias"), ("sapiens2", "k_norm.weight")):
        model, images = build(kind), images_of()
        with torch.no_grad():
            before = model(images)
            model.backbone.blocks[0].attn.get_parameter(name).add_(0.5)
            after = model(images)
        assert not torch.allclose(before, after, atol=1e-6), name
        assert torch.allclose(after, model(images).detach(), atol=1e-9), name  # with gradients nothing is kept


def test_embedded_images_and_adapters_per_sample() -> None:
    model, images = build("rope-mixed"), images_of(3)
    shapes = {name: tensor.shape for name, tensor in model.adapter.tensors.items()}
    adapters = [Adapter({n: torch.randn(s, dtype=torch.float64) for n, s in shapes.items()}) for _ in range(2)]
    with torch.no_grad():
        assert torch.equal(model(images), model.read(model.embed(images)).logits)
        mixed = model(images, adapter=Adapter.stack(adapters).gather(torch.tensor([1, 0, 1])))
        for row, owner in enumerate((1, 0, 1)):
            assert torch.allclose(mixed[row], model(images[row : row + 1], adapter=adapters[owner])[0], atol=1e-9)


@pytest.mark.parametrize("kind", ["dinov3-cls", "rope-mixed", "sapiens2"])
@torch.no_grad()
def test_attention_maps_mix_values_into_the_output_of_timm(kind: str) -> None:
    model, images = build(kind), images_of()
    vit: Any = model.backbone
    seen: list[Tensor] = []
    block = vit.blocks[-1]
    for module in (block.norm1, block.attn):
        module.register_forward_hook(lambda module, inputs, output: seen.append(output))
    weights = prompt_attention(model, images)[-1].weights
    normed, mixed = seen[-2:]
    values = project(block.attn, normed, "v")
    ours = block.attn.proj((weights @ values).transpose(1, 2).flatten(2))
    assert torch.allclose(ours, mixed, atol=1e-9)
    assert early_features(vit, images).shape == (2, 32)


def test_the_identity_rotation_is_exact() -> None:
    model = build("dinov3", stages=1)
    vit: Any = model.backbone
    _, rope = model.embed(images_of())
    turns = rotations(vit, rope, 3)
    assert len(turns) == 4 and turns[0].shape == (16 + 3, 2 * 16)
    x = torch.randn(2, 5 + 16 + 3, 32, dtype=torch.float64)
    turned, plain = project(vit.blocks[0].attn, x, "k", turns[0]), project(vit.blocks[0].attn, x, "k")
    assert torch.equal(turned[:, :, :5], plain[:, :, :5]) and torch.equal(turned[:, :, -3:], plain[:, :, -3:])
    assert not torch.allclose(turned[:, :, 5:-3], plain[:, :, 5:-3])


def test_a_model_file_keeps_an_eva_model(tmp_path: Path) -> None:
    model = build("pe-core").float()
    loaded = load_model(save_model(model, tmp_path / "model.safetensors"))
    images = images_of().float()
    with torch.no_grad():
        assert torch.equal(loaded(images), model(images))


def test_what_prompts_cannot_enter_is_refused() -> None:
    with pytest.raises(ValueError, match=r"EvaBlockPostNorm with EvaAttention cannot be prompted; use prompts=0"):
        create_model("eva02_enormous_patch14_clip_224", 3, stages=2, prompts=2, **SMALL)
    dropping = timm.create_model("eva02_tiny_patch14_224", num_classes=0, patch_drop_rate=0.5, **SMALL)
    with pytest.raises(ValueError, match=r"drops patches in training cannot be prompted; use patch_drop_rate=0"):
        AdaptedModel(dropping, torch.nn.Linear(32, 3), stages=1, prompts=2)


@pytest.mark.parametrize("kind", ["dinov3", "rope-mixed", "sapiens2"])
@torch.no_grad()
def test_bf16_is_close_and_comes_back_as_fp32(kind: str) -> None:
    model = create_model(FAMILIES[kind][0], 5, stages=2, prompts=3, **{**SMALL, **FAMILIES[kind][1]}).eval()
    images = images_of().float()
    exact = model.read(images, aggregated=True)
    model.configure(amp=True)
    rough = model.read(images, aggregated=True)
    assert rough.features.dtype == rough.prompts[0].dtype == torch.float32
    assert torch.allclose(exact.features, rough.features, atol=0.05 * float(exact.features.abs().max()))
    assert not torch.equal(exact.features, rough.features)


@pytest.mark.parametrize("kind", ["eva02-tiny", "dinov3", "rope-mixed"])
def test_blank_prompts_are_tokens_of_this_class_too(kind: str) -> None:
    plain = build(kind, stages=0, prompts=0)
    prompted = plain.with_prompts(2, 4)
    assert prompted.prompts is not None and prompted.prompts.isfinite().all()
    tokens, _ = plain.embed(torch.zeros(1, 3, 32, 32, dtype=torch.float64))
    distances = torch.cdist(prompted.prompts[0].double(), tokens[0])
    assert distances.min(dim=1).values.max() < 1e-5  # at the first stage, the tokens of a blank image
