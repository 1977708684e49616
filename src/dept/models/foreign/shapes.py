"""Which timm architecture a checkpoint is, from the names and shapes of its tensors.

What shapes do not show (the number of heads, the activation, rotations) comes from the settings beside the weights,
from a rule that all usual models follow, or is asked for.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

import timm

from dept.errors import DataError
from dept.models.build import Options, shapes_of, skeleton

Shapes = Mapping[str, tuple[int, ...]]

HEAD_WIDTH = 64
"""of nearly all ViTs; the number of heads is the width divided by it"""
SIXTEEN_HEADS = (1152, 1280, 1408, 1664)
"""widths of the usual ViTs (So400m, H, g, G) that have 16 heads and not width / 64"""
SIZES = {(192, 12, 3): "tiny", (384, 12, 6): "small", (768, 12, 12): "base", (1024, 24, 16): "large",
         (1280, 32, 16): "huge"}  # fmt: skip
"""(width, layers, heads) -> as timm calls it"""
SWIGLU = "vit_giant_patch14_dinov2"
"""the architecture whose MLP is a packed SwiGLU"""
CONVOLUTIONAL = {
    "layer1.0.conv1.weight": (
        "resnet18", "resnet34", "resnet50", "resnet101", "resnet152", "wide_resnet50_2", "wide_resnet101_2",
        "resnext50_32x4d", "resnext101_32x8d", "resnext101_64x4d",
    ),
    "stages.0.blocks.0.conv_dw.weight": ("convnext_tiny", "convnext_small", "convnext_base", "convnext_large"),
}  # fmt: skip
"""anchor -> the usual networks that have it, all of which differ in their shapes"""
ASK = "Give its timm name as `arch`."
_EVA = re.compile(r"rope\.freqs|blocks\.0\.(gamma_1|attn\.q_bias|attn\.q_proj\.weight|mlp\.fc1_[gx]\.weight)")
_VIT = "blocks.0.attn.qkv.weight"


def recognise(shapes: Shapes, known: Options) -> tuple[str, Options]:
    """Architecture and options of a model whose tensors have timm's names.

    Args:
        known: options that come from elsewhere: settings beside the weights, or the user.
    """
    for anchor, names in CONVOLUTIONAL.items():
        if anchor in shapes:
            return _matching(shapes, names, known), dict(known)
    if any(_EVA.fullmatch(name) for name in shapes):
        raise DataError(
            "The checkpoint is one of timm's Eva models (EVA-02, DINOv3, Perception Encoder, RoPE-ViT). Their weights "
            f"do not say how positions are rotated. {ASK}"
        )
    if any(name.startswith("features.0.") for name in shapes):
        raise DataError("The checkpoint looks like a model of torchvision, of which only ViTs and ResNets can be read.")
    if _VIT not in shapes or "patch_embed.proj.weight" not in shapes:
        raise DataError(f"The architecture is not recognised from the tensors ({_first(shapes)}). {ASK}")
    options = vit_options(shapes, known) | known
    return _name(options, packed=_is_packed(shapes))


def _first(shapes: Shapes) -> str:
    name, shape = next(iter(shapes.items()))
    return f"{len(shapes)} in all, first {name} {shape}"


def _matching(shapes: Shapes, names: tuple[str, ...], known: Options) -> str:
    for name in names:
        own = shapes_of(skeleton(name, known))
        if all(shapes.get(one) == shape for one, shape in own.items()):
            return name
    raise DataError(f"The checkpoint fits none of {', '.join(names)}. {ASK}")


def vit_options(shapes: Shapes, known: Options) -> Options:
    """What timm's VisionTransformer must be told to have tensors of these shapes."""
    width, channels, patch, other = shapes["patch_embed.proj.weight"]
    if patch != other:
        raise DataError(f"Patches of {patch} x {other} pixels are not supported; they must be square.")
    layers = 1 + max(int(match[1]) for name in shapes if (match := re.match(r"blocks\.(\d+)\.", name)))
    options: Options = {"embed_dim": width, "depth": layers, "patch_size": patch, "in_chans": channels}
    hidden = shapes.get("blocks.0.mlp.fc1.weight", (4 * width,))[0]
    options["mlp_ratio"] = _ratio(hidden, width)
    options |= _tokens(shapes, patch)
    options["num_heads"] = known.get("num_heads") or _heads(width)
    options["qkv_bias"] = "blocks.0.attn.qkv.bias" in shapes
    options["qk_norm"] = "blocks.0.attn.q_norm.weight" in shapes
    options["init_values"] = 1e-5 if "blocks.0.ls1.gamma" in shapes else None
    options["pre_norm"] = "norm_pre.weight" in shapes
    return options | _pooling(shapes, known)


def _tokens(shapes: Shapes, patch: int) -> Options:
    """Tokens before the patches, and the side of the image, from the number of positions."""
    has_class, registers = "cls_token" in shapes, shapes.get("reg_token", (1, 0, 0))[1]
    if "pos_embed" not in shapes:
        raise DataError(f"The checkpoint has no position embedding, so the size of its images is not known. {ASK}")
    positions = shapes["pos_embed"][-2]
    prefix = registers + has_class
    for counted in (prefix, 0):  # positions of the prefix are among them, or not
        side = math.isqrt(max(positions - counted, 0))
        if side and side**2 == positions - counted:
            tokens = {"class_token": has_class, "reg_tokens": registers, "img_size": side * patch}
            return tokens | {"no_embed_class": bool(prefix) and counted == 0}
    raise DataError(
        f"The position embedding has {positions} places and the model {prefix} tokens beside the patches: that is no "
        f"square image. Only square images are supported."
    )


def _heads(width: int) -> int:
    if width in SIXTEEN_HEADS:
        return 16
    if width % HEAD_WIDTH:
        raise DataError(
            f"The number of attention heads is not in the weights, and width {width} is no multiple of {HEAD_WIDTH}. "
            'Give it as an option of `timm`: {"num_heads": N}.'
        )
    return width // HEAD_WIDTH


def _pooling(shapes: Shapes, known: Options) -> Options:
    """How tokens become features: CLS after a norm, or the mean of the patches before one."""
    if "global_pool" in known:
        return {}
    if "fc_norm.weight" in shapes:
        return {"global_pool": "avg", "fc_norm": True}
    # CLIP and SigLIP are trained with two kinds of GELU, and their shapes are the same.
    if "attn_pool.latent" in shapes or "norm_pre.weight" in shapes or "cls_token" not in shapes:
        raise DataError(
            "The checkpoint is a CLIP or SigLIP vision model by timm's names. Its weights do not say which "
            f"activation and which pooling it was trained with. {ASK}"
        )
    return {"global_pool": "token"}


def _is_packed(shapes: Shapes) -> bool:
    """Whether the MLP is a SwiGLU, whose second layer reads half of what the first gives out."""
    first, second = (shapes.get(f"blocks.0.mlp.{name}.weight", (0, 0)) for name in ("fc1", "fc2"))
    return 0 < 2 * second[1] == first[0]


def _ratio(hidden: int, width: int) -> float:
    """The ratio from which timm computes `hidden` again: it rounds down."""
    ratio = hidden / width
    return ratio if int(width * ratio) == hidden else math.nextafter(ratio, math.inf)


def _name(options: Options, *, packed: bool) -> tuple[str, Options]:
    """timm's name for a ViT, and the options that differ from it."""
    size = SIZES.get((options["embed_dim"], options["depth"], options["num_heads"]))
    named = f"vit_{size}_patch{options['patch_size']}_{options['img_size']}"
    if packed:
        return SWIGLU, options
    if named not in timm.list_models():
        return "vit_base_patch16_224", _without(options, PLAIN)
    inside = {name: options[name] for name in ("embed_dim", "depth", "num_heads", "patch_size", "img_size")}
    return named, _without(options, PLAIN | inside)


PLAIN: dict[str, Any] = {
    "in_chans": 3, "mlp_ratio": 4.0, "qkv_bias": True, "qk_norm": False, "init_values": None, "pre_norm": False,
    "class_token": True, "reg_tokens": 0, "no_embed_class": False, "global_pool": "token",
}  # fmt: skip
"""options of an ordinary ViT, which need not be said"""


def _without(options: Options, said: Mapping[str, Any]) -> Options:
    return {name: value for name, value in options.items() if name not in said or said[name] != value}
