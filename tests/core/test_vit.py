"""The prompted forward against a plain reference: tokens joined, timm's own blocks, prompts replaced per stage."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor

from dept.core.adapter import Adapter, pick
from dept.core.select import freeze_except, select
from dept.core.vit import AdaptedModel, fresh_prompts
from dept.models.model import Model, create_model
from support import scramble, tiny_model

SMALL = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "num_heads": 2}

# name, timm architecture, options
PLAIN: list[tuple[str, str, dict[str, Any]]] = [
    ("vit", "vit_tiny_patch16_224", {**SMALL, "depth": 3}),
    ("vit-grey", "vit_tiny_patch16_224", {**SMALL, "depth": 2, "in_chans": 1}),
    ("deit", "deit_tiny_patch16_224", {**SMALL, "depth": 2}),
    ("deit3", "deit3_small_patch16_224", {**SMALL, "depth": 2}),
    ("average-pool", "vit_relpos_base_patch16_rpn_224", {**SMALL, "depth": 2}),
    ("vit-avg", "vit_tiny_patch16_224", {**SMALL, "depth": 2, "global_pool": "avg"}),
    ("resnet", "resnet10t", {}),
    ("convnext", "convnext_atto", {"depths": (1, 1, 1, 1), "dims": (8, 16, 16, 32)}),
    ("swin", "swin_tiny_patch4_window7_224",
     {"img_size": 56, "embed_dim": 16, "depths": (1, 1), "num_heads": (2, 2)}),
]  # fmt: skip

# Architectures that prompts can enter, by what is special about them.
PROMPTED: dict[str, tuple[str, dict[str, Any]]] = {
    "cls": ("vit_tiny_patch16_224", {}),
    "deit3": ("deit3_small_patch16_224", {}),  # LayerScale, position embedding without CLS
    "registers": ("vit_small_patch14_reg4_dinov2", {}),  # CLS + 4 registers, LayerScale
    "average": ("vit_tiny_patch16_224", {"global_pool": "avg"}),
    "average-no-cls": ("vit_tiny_patch16_224", {"global_pool": "avg", "class_token": False}),
    "qk-norm": ("vit_tiny_patch16_224", {"qk_norm": True}),
    "pre-norm": ("vit_base_patch16_clip_224", {}),
}


def pixels_of(model: Model, count: int = 2) -> Tensor:
    pre = model.card.preprocess
    generator = torch.Generator().manual_seed(7)
    return torch.randn(count, pre.channels, pre.size, pre.size, generator=generator)


def build(kind: str, *, stages: int, prompts: int = 3, depth: int = 4, double: bool = True) -> Model:
    arch, options = PROMPTED[kind]
    model = create_model(arch, 5, stages=stages, prompts=prompts, **{**SMALL, "depth": depth, **options}).eval()
    scramble(model)
    return model.double() if double else model


def reference(model: Model, images: Tensor, prompts: Tensor) -> tuple[Tensor, Tensor, list[Tensor]]:
    """The paper's forward, written plainly: [prefix, prompts, patches] through timm's blocks."""
    vit = model.backbone
    tokens = vit.norm_pre(vit._pos_embed(vit.patch_embed(images)))
    prefix, count = vit.num_prefix_tokens, prompts.shape[1]
    depth, collected = len(vit.blocks) // len(prompts), []
    for stage, fresh in enumerate(prompts):
        fresh = fresh.unsqueeze(0).expand(len(images), -1, -1)
        sequence = torch.cat([tokens[:, :prefix], fresh, tokens[:, prefix:]], dim=1)
        for block in vit.blocks[stage * depth : (stage + 1) * depth]:
            sequence = block(sequence)
        if stage == len(prompts) - 1:
            sequence = vit.norm(sequence)
        collected.append(sequence[:, prefix : prefix + count])
        tokens = torch.cat([sequence[:, :prefix], sequence[:, prefix + count :]], dim=1)
    pooled = tokens[:, 0] if vit.global_pool == "token" else tokens[:, prefix:].mean(dim=1)
    features = vit.fc_norm(pooled)
    return features, features @ model.head.weight.T + model.head.bias, collected


# ---- without prompts: timm, bit for bit ----


@pytest.mark.parametrize(("arch", "options"), [row[1:] for row in PLAIN], ids=[row[0] for row in PLAIN])
def test_plain_logits_equal_timm_bit_for_bit(arch: str, options: dict[str, Any], tmp_path: Path) -> None:
    theirs = timm.create_model(arch, pretrained=False, **options).eval()
    scramble(theirs, scale=0.1)
    save_file({k: v.contiguous() for k, v in theirs.state_dict().items()}, tmp_path / "w.safetensors")
    ours = create_model(arch, 1000, weights=tmp_path / "w.safetensors", **options).eval()
    images = pixels_of(ours)
    with torch.no_grad():
        expected = theirs(images)
        assert float(expected.std()) > 0
        assert torch.equal(ours(images), expected)
        output = ours.read(images, aggregated=True)
        assert torch.equal(output.logits, expected) and output.prompts == ()


def test_registers_and_layer_scale_features_equal_timm() -> None:
    options = {**SMALL, "depth": 2}
    ours = create_model("vit_small_patch14_reg4_dinov2", 5, **options).eval()
    scramble(ours)
    theirs = timm.create_model("vit_small_patch14_reg4_dinov2", num_classes=0, **options).eval()
    theirs.load_state_dict(ours.backbone.state_dict())
    images = pixels_of(ours)
    with torch.no_grad():
        assert torch.equal(ours.read(images).features, theirs(images))


def test_zero_stages_or_zero_prompts_is_plain() -> None:
    for model in (tiny_model(stages=0, prompts=3), tiny_model(stages=2, prompts=0)):
        assert model.prompts is None and model.stages == 0 and model.prompts_per_stage == 0
        assert set(model.adapter.tensors) == {"head.weight", "head.bias"}


def test_zero_valued_prompts_are_not_nothing() -> None:
    model = build("cls", stages=2)
    images = pixels_of(model).double()
    with torch.no_grad():
        model.prompts.zero_()
        plain = model.head(model.backbone(images))
        assert not torch.allclose(model(images), plain, atol=1e-6)


# ---- with prompts: the plain reference ----


def check_against_reference(model: Model, images: Tensor, aggregated: bool) -> None:
    """Values and gradients with respect to every parameter, through a loss that reads everything."""
    features, logits, collected = reference(model, images, model.prompts)
    output = model.read(images, aggregated=aggregated)
    assert torch.allclose(output.features, features, atol=1e-9)
    assert torch.allclose(output.logits, logits, atol=1e-9)
    assert len(output.prompts) == (len(collected) if aggregated else 0)
    ours, theirs = output.logits.square().sum(), logits.square().sum()
    for mine, expected in zip(output.prompts, collected, strict=False):
        assert torch.allclose(mine, expected, atol=1e-9)
        weights = torch.linspace(-1, 1, mine.numel(), dtype=mine.dtype).view_as(mine)
        ours, theirs = ours + (weights * mine).sum(), theirs + (weights * expected).sum()
    names, parameters = zip(*((n, p) for n, p in model.named_parameters() if p.requires_grad), strict=True)
    gradients = torch.autograd.grad(ours, parameters, allow_unused=True)
    expected_gradients = torch.autograd.grad(theirs, parameters, allow_unused=True)
    for name, mine, expected in zip(names, gradients, expected_gradients, strict=True):
        if expected is None:
            assert mine is None or not mine.any(), name
        else:
            scale = float(expected.abs().max()) + 1e-12
            assert mine is not None and torch.allclose(mine, expected, atol=1e-9 * max(1.0, scale)), name


@pytest.mark.parametrize("aggregated", [False, True])
@pytest.mark.parametrize("stages", [1, 2, 4])
def test_prompted_forward_equals_the_reference(stages: int, aggregated: bool) -> None:
    model = build("cls", stages=stages)
    check_against_reference(model, pixels_of(model).double(), aggregated)


@pytest.mark.parametrize("aggregated", [False, True])
def test_a_prompt_set_per_layer_of_twelve(aggregated: bool) -> None:
    model = build("cls", stages=12, depth=12, prompts=2)
    check_against_reference(model, pixels_of(model).double(), aggregated)


@pytest.mark.parametrize("aggregated", [False, True])
@pytest.mark.parametrize("kind", [kind for kind in PROMPTED if kind != "cls"])
def test_other_vits_equal_the_reference(kind: str, aggregated: bool) -> None:
    model = build(kind, stages=2)
    check_against_reference(model, pixels_of(model).double(), aggregated)


@pytest.mark.parametrize("groups", [("prompts", "head"), ("norm",), ("prompts", "norm", "head")])
@pytest.mark.parametrize("kind", ["cls", "registers"])
def test_gradients_of_a_partly_frozen_model_equal_the_reference(kind: str, groups: tuple[str, ...]) -> None:
    """Frozen layers are run by leaner code; the gradients that pass through them must not change."""
    model = build(kind, stages=2)
    freeze_except(model, select(model, *groups))
    for aggregated in (False, True):
        check_against_reference(model, pixels_of(model).double(), aggregated)


# Models that Tent and others tune in part, though prompts cannot enter some of them.
TUNED = {
    "cls": ("vit_tiny_patch16_224", {}),
    "average": ("vit_tiny_patch16_224", {"global_pool": "avg"}),
    "registers": ("vit_small_patch14_reg4_dinov2", {}),
    "parallel": ("vit_small_patch16_18x2_224", {}),
    "post-norm": ("vit_base_patch16_rpn_224", {}),
    "swiglu": ("vit_giant_patch14_reg4_dinov2", {}),
    "relpos": ("vit_relpos_small_patch16_224", {}),
}


@pytest.mark.parametrize("kind", TUNED)
def test_norm_gradients_of_a_plain_model_equal_timms(kind: str) -> None:
    arch, options = TUNED[kind]
    model = create_model(arch, 5, **{**SMALL, "depth": 2, **options}).eval().double()
    scramble(model)
    names = select(model, "norm")
    freeze_except(model, names)
    images, parameters = pixels_of(model).double(), [model.get_parameter(name) for name in names]
    ours = model(images)
    expected = model.head(model.backbone(images))  # timm's own forward
    assert torch.allclose(ours, expected, atol=1e-9)
    gradients = (torch.autograd.grad(logits.square().sum(), parameters) for logits in (ours, expected))
    for name, mine, theirs in zip(names, *gradients, strict=True):
        assert torch.allclose(mine, theirs, atol=1e-9 * max(1.0, float(theirs.abs().max()))), name


def test_single_precision_and_batch_of_one() -> None:
    model = build("cls", stages=2, double=False)
    scramble(model, scale=0.1)
    images = pixels_of(model, 1)
    with torch.no_grad():
        features, logits, collected = reference(model, images, model.prompts)
        output = model.read(images, aggregated=True)
    assert torch.allclose(output.features, features, atol=1e-5) and torch.allclose(output.logits, logits, atol=1e-5)
    for mine, expected in zip(output.prompts, collected, strict=True):
        assert torch.allclose(mine, expected, atol=1e-5)


def test_the_order_of_tokens_does_not_matter() -> None:
    """[P, CLS, E], the released code's order, against ours."""
    model = build("cls", stages=1, depth=2)
    vit, images = model.backbone, pixels_of(model).double()
    with torch.no_grad():
        tokens = vit._pos_embed(vit.patch_embed(images))
        sequence = torch.cat([model.prompts[0].expand(2, -1, -1), tokens], dim=1)
        logits = model.head(vit.norm(vit.blocks(sequence))[:, 3])
        assert torch.allclose(model(images), logits, atol=1e-9)


def test_average_pooling_pools_patches_only() -> None:
    """Token features at the output, seen through hooks, are averaged without CLS and without prompts."""
    model = build("average", stages=1, depth=2)
    images = pixels_of(model).double()
    with torch.no_grad():
        vit = model.backbone
        tokens = vit._pos_embed(vit.patch_embed(images))
        sequence = torch.cat([tokens[:, :1], model.prompts[0].expand(2, -1, -1), tokens[:, 1:]], dim=1)
        out = vit.norm(vit.blocks(sequence))
        assert torch.allclose(model.read(images).features, vit.fc_norm(out[:, 4:].mean(1)), atol=1e-9)
        assert not torch.allclose(model.read(images).features, vit.fc_norm(out[:, 1:].mean(1)), atol=1e-4)


def test_stage_two_prompts_do_not_reach_stage_one() -> None:
    model = build("cls", stages=2)
    images = pixels_of(model).double()
    with torch.no_grad():
        before = model.read(images, aggregated=True)
        model.prompts[1] *= -1.0  # (a constant shift would vanish in the LayerNorm)
        after = model.read(images, aggregated=True)
    assert torch.equal(before.prompts[0], after.prompts[0])
    assert not torch.allclose(before.prompts[1], after.prompts[1])
    assert not torch.allclose(before.logits, after.logits)


def test_shapes() -> None:
    model = tiny_model(stages=4, prompts=5)
    output = model.read(torch.randn(2, 3, 32, 32), aggregated=True)
    assert output.features.shape == (2, 32) and output.logits.shape == (2, 3)
    assert [tokens.shape for tokens in output.prompts] == [(2, 5, 32)] * 4


# ---- adapters ----


def random_adapter(model: Model, seed: int) -> Adapter:
    generator = torch.Generator().manual_seed(seed)
    shapes = {name: tensor.shape for name, tensor in model.adapter.tensors.items()}
    return Adapter({n: torch.randn(s, generator=generator, dtype=torch.float64) for n, s in shapes.items()})


@pytest.mark.parametrize("stages", [1, 4])
def test_one_adapter_per_sample_equals_separate_forwards(stages: int) -> None:
    model = build("cls", stages=stages)
    images = pixels_of(model, 4).double()
    adapters = [random_adapter(model, seed) for seed in range(3)]
    owners = torch.tensor([2, 0, 2, 1])
    with torch.no_grad():
        mixed = model.read(images, adapter=Adapter.stack(adapters).gather(owners), aggregated=True)
        for row, owner in enumerate(owners.tolist()):
            alone = model.read(images[row : row + 1], adapter=adapters[owner], aggregated=True)
            assert torch.allclose(mixed.logits[row], alone.logits[0], atol=1e-9)
            for one, other in zip(mixed.prompts, alone.prompts, strict=True):
                assert torch.allclose(one[row], other[0], atol=1e-9)


def test_an_adapter_replaces_for_one_call_only() -> None:
    model = build("cls", stages=2)
    images, adapter = pixels_of(model).double(), random_adapter(model, 1)
    with torch.no_grad():
        own, replaced = model(images), model(images, adapter=adapter)
        assert torch.equal(model(images), own) and not torch.allclose(own, replaced)
        adapter.copy_to(model)
        assert torch.allclose(model(images), replaced, atol=1e-9)


def test_an_adapter_of_backbone_tensors_equals_in_place() -> None:
    model = build("cls", stages=2)
    images = pixels_of(model).double()
    names = ["prompts", "head.bias", "backbone.norm.weight", "backbone.blocks.1.attn.qkv.weight", "backbone.cls_token"]
    adapter = Adapter({n: t.detach() + 0.1 for n, t in pick(model, names).items()})
    with torch.no_grad():
        own = model(images)
        called = model.read(images, adapter=adapter, aggregated=True)
        assert torch.equal(model(images), own)
        adapter.copy_to(model)
        placed = model.read(images, aggregated=True)
    assert torch.allclose(called.logits, placed.logits, atol=1e-9) and not torch.allclose(own, placed.logits)
    assert torch.allclose(called.prompts[1], placed.prompts[1], atol=1e-9)


def test_the_models_own_adapter_shares_storage() -> None:
    model = tiny_model()
    assert set(model.adapter.tensors) == {"prompts", "head.weight", "head.bias"}
    assert model.adapter.tensors["prompts"] is model.prompts


def test_fresh_projections_one_per_stage() -> None:
    prompted, plain = tiny_model(stages=4), tiny_model(stages=0)
    for model in (prompted, plain):
        model.add_projections(hidden=8, bottleneck=4, out=8)
    assert len(prompted.projections) == 4 and len(plain.projections) == 1


# ---- initialisation and refusals ----


def test_prompt_initialisation_bound() -> None:
    bound = math.sqrt(6 / (768 * 51))
    prompts = fresh_prompts(4, 50, 768)
    assert math.isclose(bound, 0.012377, abs_tol=1e-6)
    assert prompts.shape == (4, 50, 768) and 0.999 * bound < float(prompts.abs().max()) <= bound
    assert abs(float(prompts.mean())) < 1e-4 and math.isclose(float(prompts.std()), bound / math.sqrt(3), rel_tol=0.01)


@pytest.mark.parametrize("arch", ["resnet10t", "swin_tiny_patch4_window7_224", "vit_relpos_small_patch16_224"])
def test_what_is_not_a_plain_vit_is_refused(arch: str) -> None:
    with torch.device("meta"), pytest.raises(ValueError, match=r"cannot be prompted.*prompts=0"):
        create_model(arch, 3, stages=2, prompts=3)


def test_a_vit_of_other_blocks_is_refused() -> None:
    with torch.device("meta"), pytest.raises(ValueError, match=r"ParallelScalingBlock.*cannot be prompted"):
        backbone = timm.create_model("vit_tiny_patch16_224", num_classes=0, block_fn=_parallel_block())
        AdaptedModel(backbone, torch.nn.Linear(192, 3), stages=1, prompts=2)


def _parallel_block() -> Any:
    from timm.models.vision_transformer import ParallelScalingBlock

    return ParallelScalingBlock


def test_stages_that_do_not_divide_the_depth_are_refused() -> None:
    with pytest.raises(ValueError, match=r"stages=3 does not divide the 4 layers.*\[1, 2, 4\]"):
        tiny_model(stages=3)


def test_prompts_reach_the_gradient_through_dropout_free_eval_and_train_alike() -> None:
    model = tiny_model()
    images = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        assert torch.equal(model.eval()(images), model.train()(images))


def test_a_head_without_bias() -> None:
    inner = tiny_model(stages=0).backbone
    model = AdaptedModel(inner, torch.nn.Linear(32, 3, bias=False), stages=2, prompts=2)
    images = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        output = model.read(images)
        assert torch.allclose(output.logits, F.linear(output.features, model.head.weight))
    assert set(model.adapter.tensors) == {"prompts", "head.weight", "head.bias"}  # of zeros, to be tuned


# ---- shortcuts that must not show ----


def test_embedded_images_give_the_same_outputs() -> None:
    for kind in ("cls", "registers", "pre-norm"):
        model = build(kind, stages=2)
        images = pixels_of(model).double()
        direct, tokens = model.read(images, aggregated=True), model.read(model.embed(images), aggregated=True)
        assert torch.equal(direct.logits, tokens.logits) and torch.equal(direct.prompts[0], tokens.prompts[0])
    with pytest.raises(ValueError, match="give it images, not tokens"):
        tiny_model(stages=0).read(model.embed(images))


def test_recomputing_activations_changes_no_gradient() -> None:
    model = build("cls", stages=2)
    images = pixels_of(model).double()
    gradients = []
    for checkpointing in (False, True):
        model.configure(checkpointing=checkpointing)
        output = model.read(images, aggregated=True)
        loss = output.logits.square().sum() + sum(tokens.square().sum() for tokens in output.prompts)
        gradients.append(torch.autograd.grad(loss, [*model.parameters()], allow_unused=True))
    for plain, recomputed in zip(*gradients, strict=True):
        assert (plain is None) == (recomputed is None)
        assert plain is None or torch.allclose(plain, recomputed, atol=1e-9)


def test_bf16_is_close_and_comes_back_as_fp32() -> None:
    model = tiny_model()
    images = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        exact = model.read(images, aggregated=True)
        model.configure(amp=True)
        rough = model.read(images, aggregated=True)
    for one, two in zip(
        (exact.features, exact.logits, *exact.prompts), (rough.features, rough.logits, *rough.prompts), strict=True
    ):
        assert two.dtype == torch.float32
        assert torch.allclose(one, two, atol=0.05 * float(one.abs().max())) and not torch.equal(one, two)


def fused(model: Model) -> set[bool]:
    return {module.fused_attn for module in model.backbone.modules() if hasattr(module, "fused_attn")}


def test_attention_is_one_kernel_but_in_bf16_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    model, calls = tiny_model(), []
    kernel = F.scaled_dot_product_attention
    monkeypatch.setattr(F, "scaled_dot_product_attention", lambda *q, **k: calls.append(1) or kernel(*q, **k))
    images = torch.randn(2, 3, 32, 32)
    for amp, expected in ((False, len(model.backbone.blocks)), (True, 0), (False, len(model.backbone.blocks))):
        calls.clear()
        model.configure(amp=amp)
        model(images)
        assert len(calls) == expected and fused(model) == {not amp}


def test_attention_in_two_products_equals_the_kernel() -> None:
    model = tiny_model().double()
    images = torch.randn(3, 3, 32, 32, dtype=torch.float64)
    found = []
    for module_fused in (True, False):
        for module in model.backbone.modules():
            if hasattr(module, "fused_attn"):
                module.fused_attn = module_fused
        output = model.read(images, aggregated=True)
        loss = output.logits.square().sum() + sum(tokens.square().sum() for tokens in output.prompts)
        found.append(
            (output.logits, *torch.autograd.grad(loss, [model.prompts, model.backbone.blocks[0].attn.qkv.weight]))
        )
    for one, two in zip(*found, strict=True):
        assert torch.allclose(one, two, atol=1e-10)


def without_cache(model: Model, images: Tensor, adapter: Adapter | None = None) -> Tensor:
    """The same forward with gradients on, which keeps nothing from call to call."""
    return model.read(images, adapter=adapter).logits.detach()


def _in_place(model: Model) -> None:
    with torch.no_grad():
        model.prompts.mul_(-1.0)


def _optimiser_step(model: Model) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    model(pixels_of(model).to(model.head.weight)).square().sum().backward()
    optimizer.step()


def _load_state(model: Model) -> None:
    model.load_state_dict({name: -tensor for name, tensor in model.state_dict().items()})


def _average(model: Model) -> None:
    Adapter({"prompts": model.prompts.detach()}).ema_({"prompts": -model.prompts.detach()}, 0.3)


def _backbone(model: Model) -> None:
    with torch.no_grad():
        model.backbone.blocks[0].norm1.weight.mul_(-1.0)
        model.backbone.blocks[2].attn.qkv.bias.add_(1.0)


def _other_precision(model: Model) -> None:
    model.float()


def _new_parameter(model: Model) -> None:
    model.prompts = torch.nn.Parameter(-model.prompts.detach())


@pytest.mark.parametrize(
    "change", [_in_place, _optimiser_step, _load_state, _average, _backbone, _other_precision, _new_parameter]
)
def test_what_is_kept_between_calls_is_never_stale(change: Any) -> None:
    model = build("cls", stages=2)
    images = pixels_of(model).double()
    with torch.no_grad():
        first = model(images)
        assert torch.equal(model(images), first)
    change(model)
    images = images.to(model.head.weight)
    with torch.no_grad():
        again = model(images)
    assert torch.allclose(again, without_cache(model, images), atol=1e-4 if again.dtype == torch.float32 else 1e-9)
    assert again.dtype == torch.float32 or not torch.allclose(again, first, atol=1e-6)


def test_alternating_adapters_do_not_mix() -> None:
    model = build("cls", stages=2)
    images = pixels_of(model).double()
    backbone = Adapter({"backbone.blocks.0.norm1.weight": -model.backbone.blocks[0].norm1.weight.detach()})
    adapters = [None, random_adapter(model, 1), random_adapter(model, 2), backbone, None, random_adapter(model, 1)]
    for adapter in adapters:
        expected = without_cache(model, images, adapter)
        with torch.no_grad():
            assert torch.allclose(model(images, adapter=adapter), expected, atol=1e-9)
    with torch.inference_mode():
        inferred = model(images)
    assert torch.allclose(inferred.clone(), without_cache(model, images), atol=1e-9)
    model(images).sum().backward()  # nothing kept in inference mode reaches a graph
