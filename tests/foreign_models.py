"""Tiny models as transformers saves them, written tensor by tensor."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

D, LAYERS, HIDDEN, PATCH, SIZE, HEADS = 64, 2, 96, 8, 32, 4
NAMES = {"0": "cat", "1": "dog", "2": "hen"}
PATCHES = (SIZE // PATCH) ** 2


def noise(*shape: int, scale: float = 0.2) -> Tensor:
    return scale * torch.randn(*shape)


def linear(prefix: str, out: int, into: int) -> dict[str, Tensor]:
    return {f"{prefix}.weight": noise(out, into), f"{prefix}.bias": noise(out)}


def norm(prefix: str) -> dict[str, Tensor]:
    return {f"{prefix}.weight": 1 + noise(D), f"{prefix}.bias": noise(D)}


def vit_tensors(root: str = "vit", *, distilled: bool = False, classes: int = 3) -> dict[str, Tensor]:
    """ViT and DeiT."""
    tensors = {f"{root}.embeddings.cls_token": noise(1, 1, D)}
    if distilled:
        tensors[f"{root}.embeddings.distillation_token"] = noise(1, 1, D)
    tensors[f"{root}.embeddings.position_embeddings"] = noise(1, PATCHES + 1 + distilled, D)
    tensors[f"{root}.embeddings.patch_embeddings.projection.weight"] = noise(D, 3, PATCH, PATCH)
    tensors[f"{root}.embeddings.patch_embeddings.projection.bias"] = noise(D)
    for index in range(LAYERS):
        layer = f"{root}.encoder.layer.{index}"
        for part in ("query", "key", "value"):
            tensors |= linear(f"{layer}.attention.attention.{part}", D, D)
        tensors |= linear(f"{layer}.attention.output.dense", D, D)
        tensors |= linear(f"{layer}.intermediate.dense", HIDDEN, D) | linear(f"{layer}.output.dense", D, HIDDEN)
        tensors |= norm(f"{layer}.layernorm_before") | norm(f"{layer}.layernorm_after")
    return tensors | norm(f"{root}.layernorm") | linear("classifier", classes, D)


def clip_tensors(*, siglip: bool) -> dict[str, Tensor]:
    """The vision models of CLIP and SigLIP with a classifier."""
    root = "vision_model"
    tensors = {f"{root}.embeddings.patch_embedding.weight": noise(D, 3, PATCH, PATCH)}
    if siglip:
        tensors[f"{root}.embeddings.patch_embedding.bias"] = noise(D)
        tensors |= {f"{root}.head.probe": noise(1, 1, D)} | norm(f"{root}.head.layernorm")
        tensors[f"{root}.head.attention.in_proj_weight"] = noise(3 * D, D)
    else:
        tensors |= {f"{root}.embeddings.class_embedding": noise(D)} | norm(f"{root}.pre_layrnorm")
    tensors[f"{root}.embeddings.position_embedding.weight"] = noise(PATCHES + (not siglip), D)
    for index in range(LAYERS):
        layer = f"{root}.encoder.layers.{index}"
        for part in ("q_proj", "k_proj", "v_proj", "out_proj"):
            tensors |= linear(f"{layer}.self_attn.{part}", D, D)
        tensors |= linear(f"{layer}.mlp.fc1", HIDDEN, D) | linear(f"{layer}.mlp.fc2", D, HIDDEN)
        tensors |= norm(f"{layer}.layer_norm1") | norm(f"{layer}.layer_norm2")
    return tensors | norm(f"{root}.post_layernorm") | linear("classifier", 3, D)


def dinov2_tensors(*, registers: int = 0) -> dict[str, Tensor]:
    tensors = {}
    for name, tensor in vit_tensors("dinov2").items():
        name = name.replace("layernorm_before", "norm1").replace("layernorm_after", "norm2")
        name = name.replace("intermediate.dense", "mlp.fc1")
        tensors[name if "attention" in name else name.replace(".output.dense", ".mlp.fc2")] = tensor
    for index in range(LAYERS):
        for number in (1, 2):
            tensors[f"dinov2.encoder.layer.{index}.layer_scale{number}.lambda1"] = 1 + noise(D)
    if registers:
        tensors["dinov2.embeddings.register_tokens"] = noise(1, registers, D)
    return tensors | {"dinov2.embeddings.mask_token": noise(1, D), "classifier.weight": noise(3, 2 * D)}


CONFIG = {
    "hidden_size": D, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "intermediate_size": HIDDEN,
    "image_size": SIZE, "patch_size": PATCH, "num_channels": 3,
}  # fmt: skip
PROCESSOR = {
    "do_resize": True, "size": {"height": 40, "width": 40}, "resample": 3, "do_center_crop": True,
    "crop_size": {"height": 32, "width": 32}, "do_normalize": True, "image_mean": [0.4, 0.5, 0.6],
    "image_std": [0.2, 0.25, 0.3], "image_processor_type": "DeiTImageProcessor", "rescale_factor": 1 / 255,
}  # fmt: skip


def folder(
    path: Path, tensors: dict[str, Tensor], config: dict[str, Any], processor: dict[str, Any] | None = PROCESSOR
) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    save_file(tensors, path / "model.safetensors")
    (path / "config.json").write_text(json.dumps(config))
    if processor is not None:
        (path / "preprocessor_config.json").write_text(json.dumps(processor))
    return path


def config_of(kind: str, **changes: Any) -> dict[str, Any]:
    return {"model_type": kind, "id2label": NAMES, **CONFIG, **changes}
