"""How other libraries call the tensors of a ViT, and what timm calls them.

A layout is known by an anchor, a tensor that every model of it has; what stands before the anchor is the prefix that a
training script put before all names (`model.`, `module.`, `net.backbone.`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from dept.errors import DataError

Tensors = dict[str, Tensor]
Rules = tuple[tuple[str, str | None], ...]
"""(pattern of a whole name, timm's name or None for a tensor that no prediction depends on)"""


class Layout(NamedTuple):
    """One way to name the tensors of a model."""

    title: str
    """as people call it"""
    anchor: str
    """name of a tensor that every such model has"""
    rules: Rules = ()
    finish: Callable[[Tensors], Tensors] = dict
    """what renaming cannot do"""


def _torchvision_rules() -> Rules:
    layer = r"encoder\.layers\.encoder_layer_(\d+)\."
    return (
        (r"class_token", "cls_token"),
        (r"conv_proj\.(weight|bias)", r"patch_embed.proj.\1"),
        (r"encoder\.pos_embedding", "pos_embed"),
        (r"encoder\.ln\.(weight|bias)", r"norm.\1"),
        (layer + r"ln_([12])\.(weight|bias)", r"blocks.\1.norm\2.\3"),
        (layer + r"self_attention\.in_proj_(weight|bias)", r"blocks.\1.attn.qkv.\2"),
        (layer + r"self_attention\.out_proj\.(weight|bias)", r"blocks.\1.attn.proj.\2"),
        (layer + r"mlp\.(?:0|linear_1)\.(weight|bias)", r"blocks.\1.mlp.fc1.\2"),
        (layer + r"mlp\.(?:3|linear_2)\.(weight|bias)", r"blocks.\1.mlp.fc2.\2"),
    )


def _vit_rules() -> Rules:
    """Of ViT, DeiT and DINOv2 in transformers, up to its version 4 and since."""
    layer, either = r"(?:encoder\.layer|layers)\.(\d+)\.", r"\.(weight|bias)"
    return (
        (r"embeddings\.cls_token", "cls_token"),
        (r"embeddings\.(?:distillation_token|register_tokens)", "reg_token"),
        (r"embeddings\.position_embeddings", "pos_embed"),
        (r"embeddings\.mask_token", None),  # of pretraining
        (r"embeddings\.patch_embeddings\.projection" + either, r"patch_embed.proj.\1"),
        (r"layernorm" + either, r"norm.\1"),
        (layer + r"attention\.(?:attention\.)?(q|k|v)(?:uery|ey|alue|_proj)" + either, r"blocks.\1.attn.\2.\3"),
        (layer + r"attention\.(?:output\.dense|o_proj|out_proj)" + either, r"blocks.\1.attn.proj.\2"),
        (layer + r"(?:layernorm_before|norm1)" + either, r"blocks.\1.norm1.\2"),
        (layer + r"(?:layernorm_after|norm2)" + either, r"blocks.\1.norm2.\2"),
        (layer + r"(?:intermediate\.dense|mlp\.fc1|mlp\.weights_in)" + either, r"blocks.\1.mlp.fc1.\2"),
        (layer + r"(?:output\.dense|mlp\.fc2|mlp\.weights_out)" + either, r"blocks.\1.mlp.fc2.\2"),
        (layer + r"layer_scale([12])\.lambda1", r"blocks.\1.ls\2.gamma"),
    )


def _clip_rules() -> Rules:
    """Of the vision models of CLIP and SigLIP in transformers."""
    layer, either = r"encoder\.layers\.(\d+)\.", r"\.(weight|bias)"
    return (
        (r"embeddings\.class_embedding", "cls_token"),
        (r"embeddings\.patch_embedding" + either, r"patch_embed.proj.\1"),
        (r"embeddings\.position_embedding\.weight", "pos_embed"),
        (r"embeddings\.position_ids", None),
        (r"pre_layrnorm" + either, r"norm_pre.\1"),  # (their spelling)
        (r"post_layernorm" + either, r"norm.\1"),
        (r"head\..*", None),  # SigLIP's pooling for text; its classifier averages patches
        (layer + r"layer_norm([12])" + either, r"blocks.\1.norm\2.\3"),
        (layer + r"self_attn\.(q|k|v)_proj" + either, r"blocks.\1.attn.\2.\3"),
        (layer + r"self_attn\.out_proj" + either, r"blocks.\1.attn.proj.\2"),
        (layer + r"mlp\.(fc[12])" + either, r"blocks.\1.mlp.\2.\3"),
    )


def _one_projection(tensors: Tensors) -> Tensors:
    """timm keeps queries, keys and values in one matrix, in this order."""
    joined = dict(tensors)
    for name in [name for name in tensors if ".attn.q." in name]:
        parts = [joined.pop(name.replace(".attn.q.", f".attn.{part}."), None) for part in "qkv"]
        if any(part is None for part in parts):
            raise DataError(f"The checkpoint is incomplete: beside {name} there is no key or no value projection.")
        joined[name.replace(".attn.q.", ".attn.qkv.")] = torch.cat([part for part in parts if part is not None])
    return joined


def _finish_vit(tensors: Tensors) -> Tensors:
    tensors, register = _one_projection(tensors), tensors.get("reg_token")
    if register is not None and "blocks.0.ls1.gamma" in tensors and {"cls_token", "pos_embed"} <= tensors.keys():
        # DINOv2's registers enter after the positions were added, so CLS takes its own along.
        first, rest = tensors["pos_embed"][:, :1], tensors["pos_embed"][:, 1:]
        tensors |= {"cls_token": tensors["cls_token"] + first, "pos_embed": rest}
    return tensors


def _finish_clip(tensors: Tensors) -> Tensors:
    """Their tokens and positions have no axis for the batch."""
    tensors = _one_projection(tensors)
    for name, width in (("cls_token", 3), ("pos_embed", 3)):
        if name in tensors:
            tensors[name] = tensors[name].reshape((1,) * (width - tensors[name].dim()) + tuple(tensors[name].shape))
    return tensors


def resized_positions(positions: Tensor, prefix: int, side: int) -> Tensor:
    """Positions (1, prefix + N, D) for side x side patches, as transformers computes them: bicubic, no antialiasing.

    DINOv2 was trained at 518 pixels, and its classifiers read images of 224.
    """
    first, grid = positions[:, :prefix], positions[:, prefix:]
    old = math.isqrt(grid.shape[1])
    picture = grid.reshape(1, old, old, -1).permute(0, 3, 1, 2)
    fitted = F.interpolate(picture, size=(side, side), mode="bicubic", align_corners=False)
    return torch.cat([first, fitted.permute(0, 2, 3, 1).flatten(1, 2)], dim=1)


TIMM_VIT = Layout("timm ViT", "patch_embed.proj.weight")
TORCHVISION_VIT = Layout("ViT of torchvision", "conv_proj.weight", _torchvision_rules())
VIT = Layout("ViT of transformers", "embeddings.patch_embeddings.projection.weight", _vit_rules(), _finish_vit)
CLIP = Layout("CLIP or SigLIP of transformers", "embeddings.patch_embedding.weight", _clip_rules(), _finish_clip)
RESNET = Layout("ResNet", "layer1.0.conv1.weight")
CONVNEXT = Layout("timm ConvNeXt", "stages.0.blocks.0.conv_dw.weight")
LAYOUTS = (TIMM_VIT, TORCHVISION_VIT, VIT, CLIP, RESNET, CONVNEXT)


WRAPPERS = ("module", "model", "_orig_mod", "net", "network", "backbone", "encoder")
"""what training scripts put before all names"""


def find_layout(names: Iterable[str]) -> tuple[Layout | None, str]:
    """The layout of a checkpoint, or None if it is not known, and the prefix of its names."""
    names = list(names)
    for layout in LAYOUTS:
        if (prefix := find_prefix(names, layout.anchor)) is not None:
            return layout, prefix
    prefix = ""
    for part in names[0].split("."):  # a layout of somebody else's: only what all names share
        if part not in WRAPPERS or not all(name.startswith(f"{prefix}{part}.") for name in names):
            break
        prefix += f"{part}."
    return None, prefix


def find_prefix(names: Iterable[str], anchor: str) -> str | None:
    """What stands before the anchor; None if it does not occur, an error if it occurs more than once."""
    found = sorted(name.removesuffix(anchor) for name in names if f".{name}".endswith(f".{anchor}"))
    if len(found) > 1:
        listed = ", ".join(repr(prefix) for prefix in found[:4])
        raise DataError(f"The checkpoint holds {len(found)} models, under {listed}. Save the one you want alone.")
    return found[0] if found else None


def split(tensors: Tensors, prefix: str) -> tuple[Tensors, Tensors]:
    """What is under the prefix, without it, and what is not."""
    inside = {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
    return inside, {name: value for name, value in tensors.items() if not name.startswith(prefix)}


def to_timm(layout: Layout, tensors: Tensors) -> Tensors:
    """The tensors by timm's names; those that no rule knows keep theirs."""
    renamed: Tensors = {}
    for name, tensor in tensors.items():
        new: str | None = name
        for pattern, target in layout.rules:
            if match := re.fullmatch(pattern, name):
                new = None if target is None else match.expand(target)
                break
        if new is not None:
            renamed[new] = tensor
    return layout.finish(renamed)
