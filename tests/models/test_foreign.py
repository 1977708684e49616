"""Models of other libraries against forwards that are written out here, one image, layer and head at a time."""

from __future__ import annotations

import argparse
import math
import pickle
import zipfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor
from torchvision.models.vision_transformer import VisionTransformer as TorchvisionViT

from dept.data.views import Preprocess
from dept.errors import DataError, UsageError
from dept.models.checkpoint import read_state
from dept.models.files import load_model, save_model
from dept.models.foreign.read import from_state, read_foreign
from dept.models.foreign.shapes import recognise
from dept.models.model import Model, create_model, from_checkpoint
from foreign_models import (
    CONFIG,
    HEADS,
    HIDDEN,
    LAYERS,
    NAMES,
    PATCH,
    PROCESSOR,
    SIZE,
    D,
    clip_tensors,
    config_of,
    dinov2_tensors,
    folder,
    noise,
    vit_tensors,
)
from support import scramble


def images() -> Tensor:
    return torch.randn(3, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(3))


# ---- tensors by the names of transformers, and its forward pass ----


def apply(tensors: dict[str, Tensor], name: str, x: Tensor) -> Tensor:
    return x @ tensors[f"{name}.weight"].T + tensors[f"{name}.bias"]


def normalised(tensors: dict[str, Tensor], name: str, x: Tensor, eps: float) -> Tensor:
    mean = x.mean(dim=-1, keepdim=True)
    variance = ((x - mean) ** 2).mean(dim=-1, keepdim=True)
    return (x - mean) / torch.sqrt(variance + eps) * tensors[f"{name}.weight"] + tensors[f"{name}.bias"]


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Over tokens (N, D), head by head and query by query."""
    mixed, width = torch.zeros_like(q), D // HEADS
    for head in range(HEADS):
        own = slice(head * width, (head + 1) * width)
        for row in range(len(q)):
            scores = torch.stack([q[row, own] @ k[other, own] / math.sqrt(width) for other in range(len(k))])
            mixed[row, own] = scores.softmax(dim=0) @ v[:, own]
    return mixed


def patches_of(weight: Tensor, bias: Tensor | None, image: Tensor) -> Tensor:
    rows = []
    for top in range(0, SIZE, PATCH):
        for left in range(0, SIZE, PATCH):
            cut = image[:, top : top + PATCH, left : left + PATCH].flatten()
            rows.append(weight.flatten(1) @ cut + (0 if bias is None else bias))
    return torch.stack(rows)


def vit_logits(tensors: dict[str, Tensor], image: Tensor, *, root: str, eps: float) -> Tensor:
    """ViTForImageClassification and DeiTForImageClassification: the classifier reads CLS."""
    stem = f"{root}.embeddings"
    cut = patches_of(*(tensors[f"{stem}.patch_embeddings.projection.{n}"] for n in ("weight", "bias")), image)
    extra = [tensors[f"{stem}.{n}"][0] for n in ("cls_token", "distillation_token") if f"{stem}.{n}" in tensors]
    x = torch.cat([*extra, cut]) + tensors[f"{stem}.position_embeddings"][0]
    for index in range(LAYERS):
        layer = f"{root}.encoder.layer.{index}"
        y = normalised(tensors, f"{layer}.layernorm_before", x, eps)
        q, k, v = (apply(tensors, f"{layer}.attention.attention.{part}", y) for part in ("query", "key", "value"))
        x = x + apply(tensors, f"{layer}.attention.output.dense", attention(q, k, v))
        y = F.gelu(
            apply(tensors, f"{layer}.intermediate.dense", normalised(tensors, f"{layer}.layernorm_after", x, eps))
        )
        x = x + apply(tensors, f"{layer}.output.dense", y)
    return apply(tensors, "classifier", normalised(tensors, f"{root}.layernorm", x, eps)[0])


def clip_logits(
    tensors: dict[str, Tensor], image: Tensor, *, siglip: bool, eps: float, act: Callable[[Tensor], Tensor]
) -> Tensor:
    """The classifier reads the mean of the patches: SigLIP's after the last norm, CLIP's before it."""
    stem, root = "vision_model.embeddings", "vision_model"
    x = patches_of(tensors[f"{stem}.patch_embedding.weight"], tensors.get(f"{stem}.patch_embedding.bias"), image)
    if not siglip:
        x = torch.cat([tensors[f"{stem}.class_embedding"][None], x])
    x = x + tensors[f"{stem}.position_embedding.weight"]
    if not siglip:
        x = normalised(tensors, f"{root}.pre_layrnorm", x, eps)
    for index in range(LAYERS):
        layer = f"{root}.encoder.layers.{index}"
        y = normalised(tensors, f"{layer}.layer_norm1", x, eps)
        q, k, v = (apply(tensors, f"{layer}.self_attn.{part}_proj", y) for part in "qkv")
        x = x + apply(tensors, f"{layer}.self_attn.out_proj", attention(q, k, v))
        y = act(apply(tensors, f"{layer}.mlp.fc1", normalised(tensors, f"{layer}.layer_norm2", x, eps)))
        x = x + apply(tensors, f"{layer}.mlp.fc2", y)
    x = normalised(tensors, f"{root}.post_layernorm", x, eps) if siglip else x[1:]
    return apply(tensors, "classifier", x.mean(dim=0))


def quick_gelu(x: Tensor) -> Tensor:
    return x / (1 + torch.exp(-1.702 * x))


def tanh_gelu(x: Tensor) -> Tensor:
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def converted(path: Path, **given: Any) -> Model:
    found = read_foreign(path, **given)
    return from_checkpoint(found, found.classes or "abc")


def check_logits(model: Model, expected: Callable[[Tensor], Tensor], tmp_path: Path) -> None:
    """Equal logits, before and after the model file."""
    batch = images()
    with torch.no_grad():
        theirs = torch.stack([expected(image) for image in batch])
        assert float(theirs.std()) > 0.1
        torch.testing.assert_close(model(batch), theirs, rtol=0, atol=1e-5)
        loaded = load_model(save_model(model, tmp_path / "converted.safetensors"))
        assert torch.equal(loaded(batch), model(batch))


# ---- transformers ----


@pytest.mark.parametrize("eps", [1e-12, 0.5])
def test_vit(tmp_path: Path, eps: float) -> None:
    """A large ε shows that it is followed."""
    tensors = vit_tensors()
    model = converted(folder(tmp_path / "vit", tensors, config_of("vit", layer_norm_eps=eps)))
    check_logits(model, lambda image: vit_logits(tensors, image, root="vit", eps=eps), tmp_path)
    assert model.classes == ("cat", "dog", "hen")
    pre = model.card.preprocess
    assert (pre.size, pre.resize, pre.rule, pre.interpolation) == (32, 40, "squash", "bicubic")
    assert (pre.mean, pre.std) == ((0.4, 0.5, 0.6), (0.2, 0.25, 0.3))


def test_the_newer_names_of_transformers(tmp_path: Path) -> None:
    tensors, renamed = vit_tensors(), {}
    changes = {"encoder.layer": "layers", "attention.output.dense": "attention.o_proj"}
    changes |= {"intermediate.dense": "mlp.fc1", "output.dense": "mlp.fc2"}
    changes |= {f"attention.attention.{part}": f"attention.{part[0]}_proj" for part in ("query", "key", "value")}
    for name, tensor in tensors.items():
        for old, new in changes.items():
            name = name.replace(old, new)
        renamed[name] = tensor
    assert "vit.layers.0.attention.o_proj.weight" in renamed and "vit.layers.0.mlp.fc2.bias" in renamed
    model = converted(folder(tmp_path / "vit", renamed, config_of("vit")))
    check_logits(model, lambda image: vit_logits(tensors, image, root="vit", eps=1e-12), tmp_path)


def test_deit_keeps_its_second_token(tmp_path: Path) -> None:
    tensors = vit_tensors("deit", distilled=True)
    model = converted(folder(tmp_path / "deit", tensors, config_of("deit")))
    check_logits(model, lambda image: vit_logits(tensors, image, root="deit", eps=1e-12), tmp_path)
    assert model.card.options["reg_tokens"] == 1


@pytest.mark.parametrize(
    ("kind", "eps", "act"),
    [("clip", 1e-5, quick_gelu), ("siglip", 1e-6, tanh_gelu), ("clip_vision_model", 1e-5, quick_gelu)],
)
def test_clip_and_siglip(tmp_path: Path, kind: str, eps: float, act: Callable[[Tensor], Tensor]) -> None:
    tensors = clip_tensors(siglip=kind == "siglip")
    nested = {"model_type": kind, "id2label": NAMES, "vision_config": {**CONFIG, "model_type": f"{kind}_vision_model"}}
    config = config_of(kind) if kind.endswith("model") else nested
    model = converted(folder(tmp_path / kind, tensors, config))
    check_logits(model, lambda i: clip_logits(tensors, i, siglip=kind == "siglip", eps=eps, act=act), tmp_path)


def test_half_precision_is_read_as_float32(tmp_path: Path) -> None:
    tensors = {name: tensor.bfloat16() for name, tensor in vit_tensors().items()}
    model = converted(folder(tmp_path / "vit", tensors, config_of("vit")))
    rounded = {name: tensor.float() for name, tensor in tensors.items()}
    check_logits(model, lambda image: vit_logits(rounded, image, root="vit", eps=1e-12), tmp_path)


@pytest.mark.parametrize("registers", [0, 4])
def test_dinov2_reads_cls_beside_the_mean_of_the_patches(tmp_path: Path, registers: int) -> None:
    tensors = dinov2_tensors(registers=registers)
    kind = "dinov2_with_registers" if registers else "dinov2"
    path = folder(tmp_path / kind, tensors, config_of(kind))
    model = converted(path)
    features, logits = dinov2_logits(tensors, images(), registers)
    check_logits(model, lambda image: dinov2_logits(tensors, image[None], registers)[1][0], tmp_path)
    assert any("leaves out the registers" in note for note in read_foreign(path).notes) == bool(registers)
    with torch.no_grad():
        torch.testing.assert_close(model.read(images()).features, features, rtol=0, atol=1e-5)
        kept = create_model(None, ("cat", "dog", "hen"), weights=path)
        torch.testing.assert_close(kept.eval()(images()), logits, rtol=0, atol=1e-5)
    fresh = create_model(None, ("cat", "dog"), weights=path, stages=2, prompts=2)
    assert fresh.head.weight.shape == (2, 2 * D) and fresh.prompts is not None and fresh.prompts.shape == (2, 2, D)
    assert fresh.card.preprocess.mean == (0.4, 0.5, 0.6)
    bare = {name: tensor for name, tensor in tensors.items() if not name.startswith("classifier.")}
    plain = create_model(None, ("cat", "dog"), weights=folder(tmp_path / "bare", bare, config_of(kind)))
    assert plain.head.weight.shape == (2, D)


def test_dinov2_is_fitted_to_the_size_of_its_images(tmp_path: Path) -> None:
    """As its released classifiers: positions for larger images than the processor makes."""
    tensors = dinov2_tensors()
    larger = {**tensors, "dinov2.embeddings.position_embeddings": noise(1, 1 + 6 * 6, D)}
    model = converted(folder(tmp_path / "large", larger, config_of("dinov2", image_size=6 * PATCH)))
    assert model.card.preprocess.size == SIZE == model.card.options["img_size"]
    grid = larger["dinov2.embeddings.position_embeddings"][0, 1:].T.reshape(1, D, 6, 6)
    fitted = F.interpolate(grid, size=(4, 4), mode="bicubic").reshape(D, 16).T[None]
    first = larger["dinov2.embeddings.position_embeddings"][:, :1]
    small = {**larger, "dinov2.embeddings.position_embeddings": torch.cat([first, fitted], dim=1)}
    check_logits(model, lambda image: dinov2_logits(small, image[None], 0)[1][0], tmp_path)


def dinov2_logits(tensors: dict[str, Tensor], batch: Tensor, registers: int) -> tuple[Tensor, Tensor]:
    """Features and logits, through torch's own attention; registers enter after the positions."""
    root, stem = "dinov2", "dinov2.embeddings"
    convolved = F.conv2d(
        batch, *(tensors[f"{stem}.patch_embeddings.projection.{n}"] for n in ("weight", "bias")), stride=PATCH
    )
    x = convolved.flatten(2).transpose(1, 2)
    x = torch.cat([tensors[f"{stem}.cls_token"].expand(len(batch), -1, -1), x], dim=1)
    x = x + tensors[f"{stem}.position_embeddings"]
    if registers:
        extra = tensors[f"{stem}.register_tokens"].expand(len(batch), -1, -1)
        x = torch.cat([x[:, :1], extra, x[:, 1:]], dim=1)
    for index in range(LAYERS):
        layer = f"{root}.encoder.layer.{index}"
        y = normalised(tensors, f"{layer}.norm1", x, 1e-6)
        parts = (apply(tensors, f"{layer}.attention.attention.{part}", y) for part in ("query", "key", "value"))
        q, k, v = (part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in parts)
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        y = apply(tensors, f"{layer}.attention.output.dense", mixed)
        x = x + tensors[f"{layer}.layer_scale1.lambda1"] * y
        y = F.gelu(apply(tensors, f"{layer}.mlp.fc1", normalised(tensors, f"{layer}.norm2", x, 1e-6)))
        x = x + tensors[f"{layer}.layer_scale2.lambda1"] * apply(tensors, f"{layer}.mlp.fc2", y)
    x = normalised(tensors, f"{root}.layernorm", x, 1e-6)
    features = torch.cat([x[:, 0], x[:, 1 + registers :].mean(dim=1)], dim=1)
    return features, apply(tensors, "classifier", features)


def test_heads_that_transformers_does_not_know_are_refused(tmp_path: Path) -> None:
    """What they read is in the code of whoever wrote them: CLS, a pooler, a mean."""
    for tensors, kind in ((vit_tensors(), "vit"), (clip_tensors(siglip=True), "siglip_vision_model")):
        own = {name.replace("classifier.", "my_head."): tensor for name, tensor in tensors.items()}
        with pytest.raises(DataError, match="no linear layer called classifier"):
            converted(folder(tmp_path / kind, own, config_of(kind)))
    pooled = {**vit_tensors(), "vit.pooler.dense.weight": noise(D, D), "vit.pooler.dense.bias": noise(D)}
    with pytest.raises(DataError, match=r"Tensors: 2 unknown \(pooler.dense.bias, pooler.dense.weight\)\."):
        converted(folder(tmp_path / "pooled", pooled, config_of("vit")))
    bare = {name: tensor for name, tensor in pooled.items() if not name.startswith("classifier.")}
    assert create_model(None, 2, weights=folder(tmp_path / "bare", bare, config_of("vit"))).classes == ("0", "1")
    two = {**vit_tensors("deit", distilled=True), "cls_classifier.weight": noise(3, D), "cls_classifier.bias": noise(3)}
    two["distillation_classifier.weight"] = two.pop("classifier.weight")
    with pytest.raises(DataError, match="2 linear layers that classify"):
        converted(folder(tmp_path / "teacher", two, config_of("deit")))


def test_prefixes_before_transformers(tmp_path: Path) -> None:
    tensors = clip_tensors(siglip=False)
    state = {f"model.net.{name}": tensor for name, tensor in tensors.items()}
    found = from_state(state, config=config_of("clip_vision_model"))
    assert found.options["final_norm"] is False and found.layout == "transformers clip"
    logits = lambda i: clip_logits(tensors, i, siglip=False, eps=1e-5, act=quick_gelu)  # noqa: E731
    check_logits(from_checkpoint(found, "abc"), logits, tmp_path)


def test_a_file_without_settings_is_read_by_the_usual_ones(tmp_path: Path) -> None:
    save_file(vit_tensors(), tmp_path / "model.safetensors")
    found = read_foreign(tmp_path / "model.safetensors")
    assert found.options["num_heads"] == 1 and found.options["norm_eps"] == 1e-12  # 64 / 64
    assert found.classes is None and found.preprocess is None
    assert found.notes == ("There is no config.json beside the weights; the usual settings of vit are assumed.",)


def test_pickled_weights_in_a_folder(tmp_path: Path) -> None:
    tensors = vit_tensors()
    path = folder(tmp_path / "vit", tensors, config_of("vit"))
    (path / "model.safetensors").unlink()
    torch.save(tensors, path / "pytorch_model.bin")
    check_logits(converted(path), lambda image: vit_logits(tensors, image, root="vit", eps=1e-12), tmp_path)


def test_classes_that_share_a_name_get_their_numbers(tmp_path: Path) -> None:
    config = config_of("vit", id2label={"0": "crane", "1": "dog", "2": "crane"})
    found = read_foreign(folder(tmp_path / "vit", vit_tensors(), config))
    assert found.classes == ("crane (0)", "dog", "crane (2)") and "same name" in found.notes[0]


def test_classes_without_names_are_noted(tmp_path: Path) -> None:
    """What transformers writes if nobody names them."""
    config = config_of("vit", id2label={str(number): f"LABEL_{number}" for number in range(3)})
    found = read_foreign(folder(tmp_path / "vit", vit_tensors(), config))
    assert found.classes == ("LABEL_0", "LABEL_1", "LABEL_2") and "Give the names as `classes`" in found.notes[0]


@pytest.mark.parametrize(
    ("processor", "expected"),
    [
        ({"size": 32, "feature_extractor_type": "ViTFeatureExtractor"}, (32, 32, "squash", "bilinear")),
        ({"size": 36, "crop_size": 32, "do_center_crop": True, "feature_extractor_type": "CLIPFeatureExtractor"},
         (32, 36, "shorter", "bilinear")),
        ({"size": {"shortest_edge": 36}, "crop_size": {"height": 32, "width": 32}, "do_center_crop": True,
          "resample": 3}, (32, 36, "shorter", "bicubic")),
        ({"size": {"height": 32, "width": 32}, "do_resize": False}, (32, 32, "none", "bilinear")),
        ({"size": {"height": 32, "width": 32}, "resample": 1}, (32, 32, "squash", "bicubic")),
    ],
)  # fmt: skip
def test_preprocessing(tmp_path: Path, processor: dict[str, Any], expected: tuple[Any, ...]) -> None:
    found = read_foreign(folder(tmp_path / "vit", vit_tensors(), config_of("vit"), processor))
    pre = found.preprocess
    assert (pre.size, pre.resize, pre.rule, pre.interpolation) == expected
    assert len(found.notes) == (processor.get("resample") == 1)


def test_images_that_are_not_normalised(tmp_path: Path) -> None:
    processor = {**PROCESSOR, "do_normalize": False}
    pre = read_foreign(folder(tmp_path / "vit", vit_tensors(), config_of("vit"), processor)).preprocess
    assert (pre.mean, pre.std) == ((0.0, 0.0, 0.0), (1.0, 1.0, 1.0))


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"model_type": "beit"}, "a model of type 'beit'; those of clip, .* are read"),
        ({"model_type": ["vit"]}, "cannot be followed"),
        ({"hidden_size": 128}, "hidden_size = 128, but the tensors have 64"),
        ({"num_hidden_layers": 12}, "num_hidden_layers = 12, but the tensors have 2"),
        ({"image_size": 224}, "image_size = 224, but the tensors have 32"),
        ({"patch_size": 16}, "patch_size = 16, but the tensors have 8"),
        ({"num_attention_heads": 10**9}, "num_attention_heads in config.json must be a whole number"),
        ({"num_attention_heads": "four"}, "num_attention_heads in config.json must be a whole number"),
        ({"num_attention_heads": 7}, "timm refused to build"),
        ({"hidden_act": "mish"}, "names the activation 'mish'"),
        ({"hidden_act": {}}, "cannot be followed"),
        ({"layer_norm_eps": -1.0}, "layer_norm_eps in config.json must be between 0 and 1"),
        ({"id2label": {"0": "a", "2": "b"}}, "id2label in config.json must name every class from 0 to 1"),
        ({"id2label": ["a", "b"]}, "id2label in config.json must be an object"),
        ({"id2label": {"0": "a", "1": "b"}}, "3 outputs, but there are 2 class names"),
        ({"vision_config": [1]}, "vision_config in config.json must be an object"),
    ],
)  # fmt: skip
def test_configs_that_contradict_the_tensors_are_refused(tmp_path: Path, config: dict[str, Any], said: str) -> None:
    with pytest.raises((DataError, UsageError), match=said):
        converted(folder(tmp_path / "vit", vit_tensors(), config_of("vit", **config)))


@pytest.mark.parametrize(
    ("processor", "said"),
    [
        ({"size": {"height": 32, "width": 64}}, "Images of size .* are not supported"),
        ({"size": 10**9}, "squares of up to 8192"),
        ({"size": "large"}, "Images of size large"),
        ({"crop_size": {"height": 48, "width": 48}}, "prepared for 48 x 48 pixels.*positions are for 32 x 32"),
        ({"image_mean": [0.5]}, "mean and std must have 1 or 3 values"),
        ({"image_mean": "0.5"}, "image_mean beside the weights must be a list of numbers"),
        ({"image_std": [0.0, 1.0, 1.0]}, "std above 0"),
        ({"rescale_factor": 1.0}, "does not divide pixels by 255"),
        ({"do_rescale": False}, "does not divide pixels by 255"),
    ],
)  # fmt: skip
def test_preprocessing_that_cannot_be_followed_is_refused(tmp_path: Path, processor: dict[str, Any], said: str) -> None:
    with pytest.raises(DataError, match=said):
        converted(folder(tmp_path / "vit", vit_tensors(), config_of("vit"), {**PROCESSOR, **processor}))


JUNK: tuple[Any, ...] = (None, True, -1, 10**12, float("nan"), "x", [], {"height": -1})


def test_junk_in_the_settings_is_a_sentence_or_harmless() -> None:
    tensors = vit_tensors()
    for name in {**config_of("vit"), "hidden_act": 0, "layer_norm_eps": 0, "vision_config": 0}:
        for value in JUNK:
            with suppress(DataError, UsageError):
                from_state(tensors, config=config_of("vit", **{name: value}), processor=PROCESSOR)
    for name in (*PROCESSOR, "do_rescale"):
        for value in JUNK:
            with suppress(DataError, UsageError):
                from_state(tensors, config=config_of("vit"), processor={**PROCESSOR, name: value})
    state, small = timm_vit().state_dict(), {"architecture": "vit_base_patch16_224", "model_args": {"depth": LAYERS}}
    for name in ("architecture", "model_args", "pretrained_cfg", "label_names", "input_size", "mean", "crop_pct"):
        for value in JUNK:
            for config in ({name: value}, {"pretrained_cfg": {name: value}}):
                with suppress(DataError, UsageError):
                    from_state(state, config=small | config)


def test_a_processor_for_another_size_than_the_positions(tmp_path: Path) -> None:
    """The architecture's name says the size where the options do not."""
    with torch.device("meta"):
        shapes = timm.create_model("vit_tiny_patch16_224", num_classes=3).state_dict()
    found = from_state({name: torch.zeros(tensor.shape) for name, tensor in shapes.items()})
    found = replace(found, preprocess=Preprocess(384, 384))
    assert found.options == {}
    with pytest.raises(DataError, match=r"prepared for 384 x 384 pixels.*positions are for 224 x 224"):
        from_checkpoint(found, "abc")


def test_training_resamples_positions_to_the_size_of_the_images(tmp_path: Path) -> None:
    processor = {**PROCESSOR, "size": {"height": 48, "width": 48}, "crop_size": 48}
    path = folder(tmp_path / "vit", vit_tensors(), config_of("vit"), processor)
    model = create_model(None, ("cat", "dog", "hen"), weights=path)
    assert model.card.preprocess.size == 48 and model(torch.randn(1, 3, 48, 48)).shape == (1, 3)
    assert torch.equal(model.head.weight, vit_head(path)), "the same classes by name: the head is kept"
    other = create_model(None, ("cat", "dog", "cow"), weights=path, img_size=64)
    assert other.card.preprocess.size == 64 and not torch.equal(other.head.weight, vit_head(path))


def vit_head(path: Path) -> Tensor:
    return read_state(path / "model.safetensors")["classifier.weight"]


def test_an_architecture_needs_weights_or_a_name() -> None:
    with pytest.raises(UsageError, match="`arch` must be given where there are no `weights`"):
        create_model(None, 3)


def test_folders_that_cannot_be_read(tmp_path: Path) -> None:
    path = folder(tmp_path / "vit", vit_tensors(), config_of("vit"))
    (path / "config.json").write_text("{")
    with pytest.raises(DataError, match=r"config\.json is not readable JSON"):
        read_foreign(path)
    (path / "model.safetensors").unlink()
    with pytest.raises(DataError, match=r"a folder without model.safetensors or pytorch_model.bin"):
        read_foreign(path)
    (path / "model.safetensors.index.json").write_text("{}")
    with pytest.raises(DataError, match="split into several files"):
        read_foreign(path)
    with pytest.raises(UsageError, match=r"a ViT of transformers, which shows its architecture. Leave out `arch`"):
        from_state(vit_tensors(), arch="vit_base_patch16_224")


# ---- torchvision ----


def torchvision_vit() -> TorchvisionViT:
    model = TorchvisionViT(SIZE, PATCH, LAYERS, 1, D, HIDDEN, num_classes=3).eval()
    scramble(model)
    return model


@pytest.mark.parametrize("old_names", [False, True])
def test_torchvision(tmp_path: Path, old_names: bool) -> None:
    theirs = torchvision_vit()
    state = dict(theirs.state_dict())
    if old_names:
        state = {n.replace("mlp.0.", "mlp.linear_1.").replace("mlp.3.", "mlp.linear_2."): t for n, t in state.items()}
    torch.save(state, tmp_path / "vit.pth")
    model = converted(tmp_path / "vit.pth")
    with torch.no_grad():
        torch.testing.assert_close(model(images()), theirs(images()), rtol=0, atol=1e-5)
    pre = model.card.preprocess
    assert (pre.rule, pre.size, pre.resize) == ("shorter", 32, 37) and pre.mean == (0.485, 0.456, 0.406)


# ---- timm, and what training scripts put around it ----


def timm_vit(arch: str = "vit_base_patch16_224", **options: Any) -> torch.nn.Module:
    small = {"img_size": SIZE, "patch_size": PATCH, "embed_dim": 128, "depth": LAYERS, "num_heads": 2}
    model = timm.create_model(arch, num_classes=3, **{**small, **options}).eval()
    scramble(model)
    return model


@pytest.mark.parametrize(
    "prefix", ["", "model.", "module.", "_orig_mod.", "module.model.", "net.backbone.", "student.vit."]
)
def test_timm_with_any_prefix(prefix: str) -> None:
    theirs = timm_vit()
    state = {f"{prefix}{name}": tensor for name, tensor in theirs.state_dict().items()}
    model = from_checkpoint(from_state(state), "abc")
    with torch.no_grad():
        assert torch.equal(model(images()), theirs(images()))


@pytest.mark.parametrize("head", ["head", "net.head", "head.1", "model.classifier", "net.fc"])
def test_a_head_of_its_own(head: str) -> None:
    """AutoGluon and most scripts keep the head beside a timm backbone, or replace it by a sequence with dropout."""
    theirs = timm_vit()
    state = theirs.state_dict()
    own = {f"net.backbone.{name}": tensor for name, tensor in state.items() if not name.startswith("head.")}
    own |= {f"{head}.weight": state["head.weight"], f"{head}.bias": state["head.bias"]}
    own |= {"criterion.weight": torch.ones(3)}
    found = from_state(own)
    assert found.notes == (
        f"The head is {head}.weight. It is taken to read what timm's model gives out.",
        "Left out, as no part of the model: criterion.weight.",
    )
    with torch.no_grad():
        assert torch.equal(from_checkpoint(found, "abc")(images()), theirs(images()))


def test_a_head_without_bias_and_a_lightning_checkpoint(tmp_path: Path) -> None:
    theirs = timm_vit()
    state = {f"model.{n}": t for n, t in theirs.state_dict().items() if n != "head.bias"}
    state["val_accuracy.total"] = torch.tensor(3)
    torch.save({"state_dict": state, "epoch": 3, "pytorch-lightning_version": "2.0"}, tmp_path / "last.ckpt")
    model = converted(tmp_path / "last.ckpt")
    with torch.no_grad():
        assert torch.allclose(model(images()), theirs(images()) - theirs.head.bias, atol=1e-6)


VARIANTS: dict[str, dict[str, Any]] = {
    "deit3": {"no_embed_class": True, "init_values": 1e-6},
    "registers": {"reg_tokens": 4, "no_embed_class": True, "init_values": 1e-5},
    "average": {"global_pool": "avg"},
    "no class token": {"global_pool": "avg", "class_token": False},
    "query norm": {"qk_norm": True, "qkv_bias": False},
    "grey": {"in_chans": 1},
    "narrow MLP": {"mlp_ratio": 2.6},
}


@pytest.mark.parametrize("options", VARIANTS.values(), ids=VARIANTS)
def test_variants_of_vits_are_recognised_from_their_tensors(options: dict[str, Any]) -> None:
    theirs = timm_vit(**options)
    model = from_checkpoint(from_state(theirs.state_dict()), "abc")
    batch = images()[:, : options.get("in_chans", 3)]
    with torch.no_grad():
        assert torch.equal(model(batch), theirs(batch))
    assert model.card.preprocess.channels == options.get("in_chans", 3)


def test_a_packed_swiglu_is_recognised() -> None:
    theirs = timm_vit("vit_giant_patch14_dinov2", embed_dim=128)
    model = from_checkpoint(from_state(theirs.state_dict()), "abc")
    with torch.no_grad():
        assert torch.equal(model(images()), theirs(images()))


@pytest.mark.parametrize(
    "arch",
    ["vit_tiny_patch16_224", "vit_small_patch16_224", "vit_base_patch16_384", "vit_base_patch32_224",
     "vit_large_patch16_224", "vit_huge_patch14_224"],
)  # fmt: skip
def test_usual_vits_get_their_names(arch: str) -> None:
    with torch.device("meta"):
        shapes = {name: tuple(t.shape) for name, t in timm.create_model(arch).state_dict().items()}
    assert recognise(shapes, {}) == (arch, {})


@pytest.mark.parametrize("arch", ["resnet18", "resnet50", "resnext50_32x4d", "wide_resnet50_2", "convnext_tiny"])
def test_usual_convolutional_networks_get_their_names(arch: str) -> None:
    with torch.device("meta"):
        shapes = {name: tuple(t.shape) for name, t in timm.create_model(arch).state_dict().items()}
    assert recognise(shapes, {}) == (arch, {})


def test_a_torchvision_resnet_is_timms() -> None:
    from torchvision.models import resnet18

    theirs = resnet18(num_classes=3).eval()
    state = {f"module.{name}": tensor for name, tensor in theirs.state_dict().items()}
    model = from_checkpoint(from_state(state), "abc")
    batch = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        torch.testing.assert_close(model(batch), theirs(batch), rtol=0, atol=1e-5)


def test_what_shapes_do_not_show_is_asked_for() -> None:
    eva = timm_vit("eva02_tiny_patch14_224").state_dict()
    with pytest.raises(DataError, match=r"timm's Eva models.*how positions are rotated. Give its timm name as `arch`"):
        from_state(eva)
    options = {"img_size": SIZE, "patch_size": PATCH, "embed_dim": 128, "depth": LAYERS, "num_heads": 2}
    model = from_checkpoint(from_state(eva, arch="eva02_tiny_patch14_224", options=options), "abc")
    assert model.classes == ("a", "b", "c")
    clip = timm_vit("vit_base_patch16_clip_224").state_dict()
    with pytest.raises(DataError, match=r"CLIP or SigLIP.*which activation.*`arch`"):
        from_state(clip)
    with pytest.raises(DataError, match=r"heads is not in the weights, and width 80 .*option of `timm`"):
        from_state(timm_vit(embed_dim=80).state_dict())
    found = from_state(timm_vit(embed_dim=80).state_dict(), options={"num_heads": 2})
    assert found.options["num_heads"] == 2
    with pytest.raises(DataError, match=r"not recognised from the tensors \(1 in all, first a.weight \(2, 2\)\)"):
        from_state({"a.weight": torch.zeros(2, 2)})
    with pytest.raises(DataError, match="a model of torchvision, of which only ViTs and ResNets"):
        from_state({"features.0.0.weight": torch.zeros(96, 3, 4, 4)})
    with pytest.raises(DataError, match="fits none of resnet18"):
        from_state(timm.create_model("resnet26").state_dict())
    with pytest.raises(DataError, match="17 places and the model 5 tokens"):
        from_state(
            {**timm_vit().state_dict(), "reg_token": torch.zeros(1, 4, 128)} | {"pos_embed": torch.zeros(1, 17, 128)}
        )
    with pytest.raises(DataError, match="holds no tensors"):
        from_state({})


def test_two_models_or_two_heads_are_told_apart_by_the_user() -> None:
    state = timm_vit().state_dict()
    both = {f"{name}.{key}": tensor for name in ("student", "teacher") for key, tensor in state.items()}
    with pytest.raises(DataError, match=r"2 models, under 'student.', 'teacher.'. Save the one you want alone"):
        from_state(both)
    two = {**state, "head_dist.weight": state["head.weight"], "head_dist.bias": state["head.bias"]}
    with pytest.raises(DataError, match=r"2 linear layers that classify, head.weight, head_dist.weight"):
        from_checkpoint(from_state(two), "abc")
    deep = {**state, "head.0.weight": torch.ones(128), "head.1.weight": state["head.weight"]}
    del deep["head.weight"], deep["head.bias"]
    with pytest.raises(DataError, match=r"more than one linear layer: there is head.0.weight too"):
        from_checkpoint(from_state(deep), "abc")
    bare = {name: tensor for name, tensor in state.items() if not name.startswith("head.")}
    with pytest.raises(DataError, match=r"has no classifier.*trains a new head"):
        from_checkpoint(from_state(bare), "abc")
    wide = {**bare, "head.weight": torch.zeros(3, 100)}
    with pytest.raises(DataError, match="reads 100 features, but the model gives out 128"):
        from_checkpoint(from_state(wide), "abc")


def test_tensors_that_do_not_fit_are_named() -> None:
    state = timm_vit().state_dict()
    for change, said in (
        ({"blocks.1.norm1.weight": torch.zeros(3)}, r"1 of another shape \(blocks.1.norm1.weight is \(3,\)"),
        ({"blocks.1.extra": torch.zeros(3)}, r"1 unknown \(blocks.1.extra\)\. If it is another architecture, .*`arch`"),
        ({"norm.weight": torch.ones(128, dtype=torch.int8)}, r"norm.weight is \(128,\) of torch.int8, not"),
        ({"norm.weight": torch.full((128,), math.nan)}, r"not finite \(in norm.weight\)"),
    ):
        with pytest.raises(DataError, match=said):
            from_checkpoint(from_state({**state, **change}), "abc")
    del state["blocks.1.attn.proj.bias"]
    with pytest.raises(DataError, match=r"1 missing \(blocks.1.attn.proj.bias\)"):
        from_checkpoint(from_state(state), "abc")


def test_a_folder_of_timm(tmp_path: Path) -> None:
    theirs = timm_vit()
    config = {
        "architecture": "vit_base_patch16_224", "num_classes": 3, "model_args":
        {"img_size": SIZE, "patch_size": PATCH, "embed_dim": 128, "depth": LAYERS, "num_heads": 2},
        "pretrained_cfg": {"input_size": [3, 32, 32], "crop_pct": 0.9, "interpolation": "bicubic",
                           "mean": [0.1, 0.2, 0.3], "std": [0.5, 0.5, 0.5], "label_names": ["x", "y", "z"]},
    }  # fmt: skip
    model = converted(folder(tmp_path / "timm", theirs.state_dict(), config, None))
    with torch.no_grad():
        assert torch.equal(model(images()), theirs(images()))
    pre = model.card.preprocess
    assert (pre.rule, pre.resize, pre.interpolation, pre.mean) == ("shorter", 35, "bicubic", (0.1, 0.2, 0.3))
    assert model.classes == ("x", "y", "z")
    for change, said in (
        ({"architecture": "local-dir:/etc"}, "name of a timm model"),
        ({"model_args": {"checkpoint_path": "x"}}, "'checkpoint_path' is not supported"),
        ({"model_args": ["x"]}, "cannot be followed"),
        ({"pretrained_cfg": {"crop_pct": 0}}, "crop_pct in config.json must be"),
        ({"pretrained_cfg": "x"}, "pretrained_cfg in config.json must be an object"),
        ({"label_names": "xyz"}, "label_names in config.json must be a list"),
    ):
        with pytest.raises(DataError, match=said):
            read_foreign(folder(tmp_path / "timm", theirs.state_dict(), {**config, **change}, None))


def test_images_are_prepared_as_timm_does_it_if_nothing_says_how() -> None:
    """crop_pct 0.9 and bicubic for this architecture: 224 of 248 pixels of the shorter side."""
    model = from_checkpoint(from_state(timm.create_model("vit_tiny_patch16_224", num_classes=3).state_dict()), "abc")
    pre = model.card.preprocess
    assert (pre.size, pre.resize, pre.rule, pre.interpolation) == (224, 248, "shorter", "bicubic")
    assert pre.mean == (0.5, 0.5, 0.5)


# ---- files that mean harm ----


def test_only_plain_tensors_of_their_own_size_are_read(tmp_path: Path) -> None:
    path = tmp_path / "x.pth"
    for tensor in (
        torch.zeros(1).expand(10**12),
        torch.quantize_per_tensor(torch.ones(4), 0.1, 0, torch.quint8),
        torch.ones(3, 3).to_sparse(),
        torch.ones(3, device="meta"),
    ):
        torch.save({"norm.weight": tensor}, path)
        with pytest.raises(DataError, match=r"norm.weight in the checkpoint is not a plain tensor|cannot be read"):
            read_state(path)
    torch.save({"student": {}, "teacher": {}}, path)
    with pytest.raises(DataError, match="holds entries student, teacher, not a state dict of tensors"):
        read_state(path)


def test_why_a_file_cannot_be_read(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    """In words of its own: torch's advice is to load the file without its checks."""
    torch.save(argparse.Namespace(state_dict={}), tmp_path / "namespace.ckpt")
    torch.jit.save(torch.jit.script(torch.nn.Linear(2, 2)), tmp_path / "scripted.pt")
    for protocol in (2, 4):  # torch warns of the second
        (tmp_path / f"pickle{protocol}.pth").write_bytes(pickle.dumps(print, protocol))
    (tmp_path / "page.pth").write_text("<html>404</html>")
    (tmp_path / "page.safetensors").write_text("<html>404</html>")
    (tmp_path / "empty.pth").touch()
    recwarn.clear()  # of TorchScript itself
    for name, said in {
        "namespace.ckpt": r"it also holds argparse.Namespace, and .* Save the state dict alone: torch.save\(",
        "pickle2.pth": r"it also holds print, and loading that could run code",
        "pickle4.pth": "it is damaged, or torch.save did not write it. Fetch or save it again.",
        "scripted.pt": "it is a TorchScript archive. Save the state dict alone",
        "page.pth": "it is damaged, or torch.save did not write it.",
        "page.safetensors": "it is not a safetensors file .* Fetch or save it again.",
        "empty.pth": "the file is empty. Fetch or save it again.",
    }.items():
        with pytest.raises(DataError, match=f"{name} cannot be read as plain weights: {said}") as told:
            read_state(tmp_path / name)
        assert "weights_only" not in str(told.value)
    assert not recwarn.list


def test_a_compressed_archive_is_not_unpacked(tmp_path: Path) -> None:
    torch.save({"norm.weight": torch.zeros(10**6)}, tmp_path / "x.pth")
    with zipfile.ZipFile(tmp_path / "x.pth") as plain, zipfile.ZipFile(tmp_path / "bomb.pth", "w") as bomb:
        for entry in plain.infolist():
            bomb.writestr(entry.filename, plain.read(entry), zipfile.ZIP_DEFLATED)
    assert (tmp_path / "bomb.pth").stat().st_size < 10**5
    with pytest.raises(DataError, match="a compressed archive"):
        read_state(tmp_path / "bomb.pth")


def test_sizes_are_those_of_the_tensors(tmp_path: Path) -> None:
    """A config that asks for a huge model is compared with the tensors on a device without memory."""
    cases = (({"depth": 60_000}, "depth is 60000, but the file has"), ({"embed_dim": 60_000}, "not .60000,"))
    for options, said in cases:
        config = {"architecture": "vit_base_patch16_224", "model_args": options}
        with pytest.raises(DataError, match=said):
            converted(folder(tmp_path / "timm", timm_vit().state_dict(), config, None))
