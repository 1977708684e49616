"""The parts of timm's pre-norm transformer blocks: `Block` of its plain ViT, and `EvaBlock` of its Eva class.

Both compute x + scale(attn(norm1(x))) and then x + scale(mlp(norm2(x))); they keep the same things in other places. Eva
(EVA-02, DINOv3, Perception Encoder, RoPE-ViT) also turns queries and keys of a patch by its position: rotary
embeddings, RoPE. CLS and register tokens have no position and are not turned, and neither are prompts.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from timm.layers import use_fused_attn
from timm.layers.attention import AttentionRope
from timm.layers.pos_embed_sincos import apply_rot_embed_cat
from timm.models.eva import Eva, EvaAttention, EvaBlock
from timm.models.vision_transformer import Attention, Block, VisionTransformer
from torch import Tensor, nn

TRANSFORMERS = (VisionTransformer, Eva)
_BLOCKS = {VisionTransformer: (Block, (Attention,)), Eva: (EvaBlock, (EvaAttention, AttentionRope))}


def is_transformer(backbone: nn.Module) -> bool:
    """Whether the layers of this backbone can be run one by one; subclasses may do something else in between."""
    return type(backbone) in TRANSFORMERS


def is_block(block: nn.Module) -> bool:
    """Whether this is exactly one of the two blocks whose parts are known here."""
    return type(block) in (Block, EvaBlock)


def check_promptable(backbone: nn.Module) -> list[nn.Module]:
    """The transformer blocks of a ViT; a ValueError for anything prompts cannot enter."""
    name = type(backbone).__name__
    if not is_transformer(backbone):
        raise ValueError(
            f"{name} cannot be prompted: prompts are extra tokens and need timm's VisionTransformer or Eva "
            "(ViT, DeiT, DINOv2, DINOv3, EVA-02, Perception Encoder). Use prompts=0 for other models."
        )
    block_type, attention_types = _BLOCKS[type(backbone)]
    blocks = list(backbone.blocks)  # type: ignore[arg-type]
    for block in blocks:
        attn = getattr(block, "attn", block)
        if type(block) is not block_type or type(attn) not in attention_types or getattr(attn, "gate", None):
            kind = f"{type(block).__name__} with {type(attn).__name__}"
            raise ValueError(f"{name} built from {kind} cannot be prompted; use prompts=0 for this model.")
    if isinstance(backbone, Eva) and backbone.patch_drop is not None:
        raise ValueError("Eva that drops patches in training cannot be prompted; use patch_drop_rate=0 or prompts=0.")
    return blocks


def can_be_prompted(backbone: nn.Module) -> bool:
    """Whether prompts can enter this backbone (see `check_promptable`)."""
    try:
        check_promptable(backbone)
    except ValueError:
        return False
    return True


def pool_cls_and_mean(backbone: nn.Module) -> None:
    """Make the features CLS beside the mean of the patches, (B, 2 D): what DINOv2's classifier reads.

    timm pools one or the other, so its `pool` is replaced on this model.
    """
    vit: Any = backbone
    if not is_transformer(vit) or vit.cls_token is None or not isinstance(vit.fc_norm, nn.Identity):
        raise ValueError("cls_and_mean needs a VisionTransformer or Eva with a CLS token and no norm after the pooling")
    vit.pool = partial(_cls_and_mean, vit.num_prefix_tokens)
    vit.global_pool, vit.head_hidden_size = "cls_and_mean", 2 * vit.embed_dim


def _cls_and_mean(prefix: int, tokens: Tensor) -> Tensor:
    """(B, prefix + N, D) -> (B, 2 D)."""
    return torch.cat([tokens[:, 0], tokens[:, prefix:].mean(dim=1)], dim=-1)


def embed(vit: Any, images: Tensor) -> tuple[Tensor, Tensor | None]:
    """The tokens (B, N, D) that enter the first block, and the rotations of patches, or None where there are none.

    Rotations are (patches, 2 d), sines and cosines for heads of width d; if learned (layers, heads, patches, 2 d).
    """
    tokens, rope = vit.patch_embed(images), None
    if isinstance(vit, Eva):
        tokens, rope = vit._pos_embed(tokens)
    else:
        tokens = vit.patch_drop(vit._pos_embed(tokens))
    return vit.norm_pre(tokens), rope


def rotations(vit: Any, rope: Tensor | None, prompts: int) -> list[Tensor | None]:
    """What each layer turns the tokens after the prefix by: patches by `rope`, then `prompts` tokens by nothing."""
    layers = len(vit.blocks)
    if rope is None:
        return [None] * layers
    if prompts:
        still = torch.zeros_like(rope[..., :1, :])
        still[..., still.shape[-1] // 2 :] = 1.0  # sines are 0, cosines 1: x is multiplied by one
        rope = torch.cat([rope, still.expand(*still.shape[:-2], prompts, -1)], dim=-2)
    return list(rope) if vit.rope_mixed else [rope] * layers


def project(attn: Any, x: Tensor, part: str, rope: Tensor | None = None) -> Tensor:
    """Queries, keys or values (B, heads, N, D / heads) of the tokens x (B, N, D), for `part` "q", "k" or "v".

    `rope` turns the tokens after the prefix; None for tokens without a position.
    """
    flat = F.linear(x, *_weights(attn, part))
    heads = flat.view(*flat.shape[:2], -1, attn.head_dim).transpose(1, 2)
    if part != "v":
        heads = attn.q_norm(heads) if part == "q" else attn.k_norm(heads)
        heads = _turned(attn, heads, rope)
    groups = 1 if part == "q" else getattr(attn, "num_kv_groups", 1)  # only newer timm releases share keys
    return heads if groups == 1 else heads.repeat_interleave(groups, dim=1)


def attend(attn: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """softmax(q kᵀ / √d) v, heads side by side: q (B, heads, R, d), k and v (B, heads, N, d) -> (B, R, D)."""
    if attn.fused_attn:
        dropout = attn.attn_drop.p if attn.training else 0.0
        mixed = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout)
    else:
        mixed = attn.attn_drop((q * q.shape[-1] ** -0.5 @ k.transpose(-2, -1)).softmax(dim=-1)) @ v
    return mixed.transpose(1, 2).flatten(2)


def fuse_attention(backbone: nn.Module, *, amp: bool) -> None:
    """One kernel for attention, as timm has it, except in bf16 on a CPU.

    PyTorch's CPU kernel does not multiply in bf16: it takes about twice the time of two products and a softmax, and in
    the backward more (docs/speed.md). Those keep the attention weights, (B, heads, N, N) per layer, for the backward.
    """
    parameter = next(backbone.parameters(), None)
    plain = amp and parameter is not None and parameter.device.type == "cpu"
    module: Any
    for module in backbone.modules():
        if hasattr(module, "fused_attn"):
            module.fused_attn = not plain and use_fused_attn()


def _weights(attn: Any, part: str) -> tuple[Tensor, Tensor | None]:
    """Weight and bias of one of the three projections, which may be kept as one."""
    if attn.qkv is None:
        own = getattr(attn, f"{part}_proj")
        return own.weight, own.bias
    index, width = "qkv".index(part), attn.qkv.out_features // 3
    rows = slice(index * width, (index + 1) * width)
    bias = attn.qkv.bias[rows] if attn.qkv.bias is not None else getattr(attn, f"{part}_bias", None)
    return attn.qkv.weight[rows], bias


def _turned(attn: Any, heads: Tensor, rope: Tensor | None) -> Tensor:
    """Queries or keys (B, heads, N, d), those after the prefix turned by the first of the rotations."""
    if rope is None:
        return heads
    prefix = attn.num_prefix_tokens
    still, patches = heads[:, :, :prefix], heads[:, :, prefix:]
    turned = apply_rot_embed_cat(patches, rope[..., : patches.shape[2], :], half=getattr(attn, "rotate_half", False))
    return torch.cat([still, turned.type_as(heads)], dim=2)


def call(module: nn.Module, x: Tensor, rope: Tensor | None) -> Tensor:
    """timm's own block, or the attention in it, over all tokens x (B, N, D); only Eva's know of rotations."""
    out: Tensor = module(x) if rope is None else module(x, rope=rope)
    return out


def scaled(block: Any, half: int, x: Tensor) -> Tensor:
    """LayerScale, where the block has it, and stochastic depth of its first (attention) or second (MLP) half."""
    if isinstance(block, EvaBlock):
        gamma = getattr(block, f"gamma_{half}")
        x = x if gamma is None else gamma * x
    else:
        x = getattr(block, f"ls{half}")(x)
    out: Tensor = getattr(block, f"drop_path{half}")(x)
    return out
