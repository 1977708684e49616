"""What the metadata of our files may say. Checked before anything is built or allocated from it.

A file is input from outside: sizes in it are believed only as far as its own tensors have them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

import timm
from torch import nn

Shapes = Mapping[str, tuple[int, ...]]

# Keywords that decide what timm builds. None of them names a file, an address or a callable.
OPTIONS = {
    "img_size", "patch_size", "in_chans", "embed_dim", "depth", "num_heads", "mlp_ratio", "qkv_bias", "qk_norm",
    "proj_bias", "init_values", "class_token", "reg_tokens", "no_embed_class", "dynamic_img_size", "pre_norm",
    "final_norm", "fc_norm", "global_pool", "weight_init", "drop_rate", "pos_drop_rate", "proj_drop_rate",
    "attn_drop_rate", "drop_path_rate", "channels", "layers", "widths", "depths", "dims", "num_features", "stem_width",
    "stem_type", "base_width", "cardinality", "output_stride", "window_size", "head_hidden_size",
    "act_layer",  # a word of timm's table of activations
    "norm_eps", "cls_and_mean",  # ours, see `models.build`
    # of Eva
    "num_reg_tokens", "num_kv_heads", "qkv_fused", "swiglu_mlp", "swiglu_align_to", "scale_mlp", "scale_attn_inner",
    "attn_type", "attn_only_layer_scale", "use_abs_pos_emb", "use_rot_pos_emb", "rope_type", "rope_grid_offset",
    "rope_grid_indexing", "rope_temperature", "rope_rotate_half", "ref_feat_shape", "use_post_norm", "use_fc_norm",
    "use_pre_transformer_norm", "use_post_transformer_norm", "attn_pool_num_heads", "attn_pool_mlp_ratio",
}  # fmt: skip
LARGEST = 65_536
"""of any size in the metadata"""
LARGEST_BUFFERS = 2**26
"""numbers that timm may compute beside the weights, such as rotations and attention masks for the image size"""
_ARCH = re.compile(r"[A-Za-z0-9_]+(\.[A-Za-z0-9_]+)?")


def check_arch(arch: object) -> None:
    """An architecture that timm has itself: no hub, no folder, no file."""
    if not isinstance(arch, str) or not _ARCH.fullmatch(arch) or arch.split(".")[0] not in timm.list_models():
        raise ValueError(f"arch must be the name of a timm model, found {arch!r}")


def check_options(options: object) -> None:
    """Keywords for timm: known names, plain values of sensible size."""
    if not isinstance(options, dict):
        raise ValueError(f"options must be an object, found {type(options).__name__}")
    unknown = sorted(map(str, options.keys() - OPTIONS))
    if unknown:
        raise ValueError(f"the option {unknown[0]!r} is not supported")
    for name, value in options.items():
        values = value if isinstance(value, list | tuple) else [value]
        if len(values) > 64 or not all(_plain(one) for one in values):
            raise ValueError(f"the option {name!r} must be a plain value up to {LARGEST}, found {str(value)[:60]}")


def check_model(meta: Mapping[str, Any], shapes: Shapes) -> None:
    """The metadata of a model file, against the shapes of its tensors."""
    check_arch(meta["arch"])
    check_options(meta["options"])
    check_layers(meta["options"], len(shapes))
    _check_classes(meta["classes"], shapes)
    _check_prompts(meta, shapes)
    _check_prior(meta.get("prior", []), len(meta["classes"]))
    for name in ("history", "preprocess", "augment"):
        if not isinstance(meta[name], dict):
            raise ValueError(f"{name} must be an object, found {type(meta[name]).__name__}")
    task = meta.get("auxiliary_task", "")
    if not isinstance(task, str) or len(task) > 100:
        raise ValueError(f"auxiliary_task must be the name of a task, found {str(task)[:60]}")
    sizes = [*(meta["projection"] or {}).values(), meta.get("auxiliary") or 1]
    widest = max((side for shape in shapes.values() for side in shape), default=0)
    if not all(_count(size) and size <= widest for size in sizes):
        raise ValueError(f"the sizes of projection and auxiliary heads must be those of the tensors, found {sizes}")


def check_layers(options: Mapping[str, Any], tensors: int) -> None:
    """Every layer has a tensor: building more of them than the file has tensors would take for ever."""
    for name in ("depth", "depths", "layers"):
        value = options.get(name, 0)
        counts = value if isinstance(value, list | tuple) else [value]
        layers = sum(count for count in counts if isinstance(count, int))
        if layers > tensors:
            raise ValueError(f"{name} is {value}, but the file has {tensors} tensors")


def check_buffers(skeleton: nn.Module) -> None:
    """Of a model without memory (on the meta device): what timm computes itself, and no file holds, stays small."""
    numbers = sum(buffer.numel() for buffer in skeleton.buffers())
    if numbers > LARGEST_BUFFERS:
        raise ValueError(
            f"this architecture at this image size has tables of {numbers:,} numbers beside its weights, more than "
            f"the {LARGEST_BUFFERS:,} that are allowed"
        )


def _check_classes(classes: object, shapes: Shapes) -> None:
    if not isinstance(classes, list) or not all(isinstance(name, str) for name in classes):
        raise ValueError("classes must be a list of names")
    rows = shapes.get("head.weight", (0,))[0]
    if len(classes) != rows:
        raise ValueError(f"there are {len(classes)} class names for a head of {rows} outputs")


def _check_prior(prior: object, classes: int) -> None:
    """Shares of the classes among the source images, if the file has them."""
    shares = prior if isinstance(prior, list) else [None]
    plain = all(isinstance(share, int | float) and 0 <= share <= 1 for share in shares)
    if shares and not (plain and len(shares) == classes and abs(sum(shares) - 1) < 1e-3):
        raise ValueError(f"prior must be {classes} shares that sum to 1, found {str(prior)[:60]}")


def _check_prompts(meta: Mapping[str, Any], shapes: Shapes) -> None:
    stages, prompts, held = meta["stages"], meta["prompts"], shapes.get("prompts", (0, 0))
    if isinstance(stages, bool) or isinstance(prompts, bool) or (stages, prompts) != tuple(held[:2]):
        raise ValueError(f"there are {stages} x {prompts} prompts, but tensors of {held[0]} x {held[1]}")
    domains = meta.get("domains")
    if domains is not None:
        own, shared = (domains[f"{kind}_prompts"] for kind in ("domain", "shared"))
        if not (
            _count(own) and _count(shared) and own + shared == prompts and 1 < len(domains["names"]) <= len(shapes)
        ):
            raise ValueError("the prompts of the source domains do not add up to those of the model")


def _plain(value: object) -> bool:
    """A flag, a short word, or a finite number of sensible size."""
    if isinstance(value, str):
        return (len(value) <= 64 and value.isidentifier()) or value == ""
    return value is None or (isinstance(value, int | float) and math.isfinite(value) and abs(value) <= LARGEST)


def _count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value <= LARGEST
