"""AdaptedModel: a timm backbone whose prompts and head are arguments of the forward.

Prompts need a ViT whose blocks `core.blocks` knows and `core.trimming` runs. Without prompts any timm classifier works.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.compiler import is_compiling
from torch.func import functional_call
from torch.utils.checkpoint import checkpoint

from dept.core.adapter import Adapter
from dept.core.blocks import call, check_promptable, embed, fuse_attention, is_transformer, rotations
from dept.core.collective import all_rows, own_rows
from dept.core.domains import Domains
from dept.core.projection import ProjectionHead
from dept.core.trimming import Prefix, is_sliceable, project_prompts, run_stage, whole_block
from dept.core.whole_batch import whole_batch


class Output(NamedTuple):
    """What a forward gives out: features (B, D), logits (B, C), per stage the aggregated prompts (B, P, D).

    Features that begin with CLS may be wider (`core.blocks.pool_cls_and_mean`).
    In a run of several processes the prompts are those of the process's own rows: they are large, and what is made of
    them is a mean over the samples (`collective.mean_over_rows`).
    """

    features: Tensor
    logits: Tensor
    prompts: tuple[Tensor, ...] = ()


class Embedded(NamedTuple):
    """Images after the patch embedding, tokens (B, N, D): computed once, read by several adapters.

    `rope` holds the rotations of the patches (see `core.blocks.embed`), which are the same for every image.
    """

    tokens: Tensor
    rope: Tensor | None = None

    def own_rows(self) -> Embedded:
        """Those of the images that this process runs."""
        return self._replace(tokens=own_rows(self.tokens))


class AdaptedModel(nn.Module):
    """A frozen-able timm `backbone` without head, `prompts` (M, P, D) and a linear `head`.

    With no prompts it runs timm's own path, for any timm classifier, and its logits equal timm's bit for bit.
    `projections` (M heads, or none) and `auxiliary` (the head of a second task, or None) serve training
    losses only, `domains` (or None) tells what the prompts were averaged from; inference never uses them and
    adapters never hold them.
    """

    prompts: nn.Parameter | None

    def __init__(self, backbone: nn.Module, head: nn.Linear, *, stages: int = 0, prompts: int = 0) -> None:
        super().__init__()
        self.backbone = backbone
        self.head = head
        if head.bias is None:  # zeros change no logit, and methods, adapters and files count on a bias
            head.bias = nn.Parameter(torch.zeros_like(head.weight[:, 0]))
        self.projections = nn.ModuleList()
        self.auxiliary: nn.Linear | None = None
        self.auxiliary_task = ""
        self.domains: Domains | None = None
        self.fresh_head = False  # whether the head is random and nobody has trained it; not stored with a model
        self.checkpointing = False
        self.amp = False
        self._prefixes: dict[int, tuple[list[Tensor], list[tuple[int, int]], Prefix]] = {}
        self.stages = stages if prompts else 0
        if self.stages:
            blocks = check_promptable(backbone)
            if len(blocks) % stages:
                raise ValueError(
                    f"stages={stages} does not divide the {len(blocks)} layers of this backbone; "
                    f"choose one of {[m for m in range(1, len(blocks) + 1) if len(blocks) % m == 0]}."
                )
            self.prompts = nn.Parameter(fresh_prompts(stages, prompts, self.token_width))
        else:
            self.register_parameter("prompts", None)

    @property
    def token_width(self) -> int:
        """D, the width of tokens and prompts; that of the features where there are no tokens."""
        vit: Any = self.backbone
        return int(vit.embed_dim) if is_transformer(vit) else self.head.in_features

    @property
    def prompts_per_stage(self) -> int:
        """P, or 0 for a plain model."""
        return 0 if self.prompts is None else int(self.prompts.shape[1])

    @property
    def adapter(self) -> Adapter:
        """The prompts and head in use (shared storage, not a copy)."""
        return Adapter({name: self.get_parameter(name) for name in adapter_names(self)})

    def forward(self, images: Tensor, adapter: Adapter | None = None) -> Tensor:
        """Logits (B, C) of normalised images (B, channels, H, W); `adapter` replaces tensors for this call."""
        return self.read(images, adapter=adapter).logits

    def read(self, images: Tensor | Embedded, *, adapter: Adapter | None = None, aggregated: bool = False) -> Output:
        """Features, logits and, if `aggregated`, the aggregated prompts of every stage.

        Args:
            images: (B, channels, H, W), normalised; or what `embed` made of them.
            adapter: tensors by `state_dict` name that replace the model's own. Prompts may be (B, M, P, D)
                and heads (B, C, D), (B, C): one adapter per sample (see `Adapter.gather`).
        """
        if adapter is not None and any(name.startswith("backbone.") for name in adapter.tensors):
            named = {f"model.{name}": tensor for name, tensor in adapter.tensors.items()}
            output: Output = functional_call(_Reader(self), named, (images, aggregated), strict=False)
            return output
        tensors = {} if adapter is None else adapter.tensors
        prompts = tensors.get("prompts", self.prompts)
        weight, bias = tensors.get("head.weight", self.head.weight), tensors.get("head.bias", self.head.bias)
        count = (images.tokens if isinstance(images, Embedded) else images).shape[0]  # not len: exports keep it open
        own = images.own_rows() if isinstance(images, Embedded) else own_rows(images)
        if prompts is not None and prompts.dim() == 4:
            prompts = own_rows(prompts)
        # bf16, if asked for, is for the backbone only: head, losses, bank and EMA stay in fp32.
        bf16 = torch.autocast(self.head.weight.device.type, dtype=torch.bfloat16, enabled=self.amp)
        with bf16, whole_batch(self.backbone, count):
            features, stages = self._features(own, prompts, aggregated)
        if self.amp:
            features, stages = features.float(), tuple(tokens.float() for tokens in stages)
        features = all_rows(features, count)
        return Output(features, _classify(features, weight, bias), stages)

    def configure(self, *, amp: bool = False, compile: bool = False, checkpointing: bool = False) -> None:
        """How the backbone is run: bf16 autocast, torch.compile, activations recomputed stage by stage.

        Without prompts they are recomputed block by block, which needs the blocks of a ViT.
        """
        if checkpointing and not is_transformer(self.backbone):
            name = type(self.backbone).__name__
            raise ValueError(f"checkpointing needs the blocks of timm's VisionTransformer or Eva; this is a {name}.")
        self.amp, self.checkpointing = amp, checkpointing
        fuse_attention(self.backbone, amp=amp)
        if compile:
            self._features = torch.compile(self._features)  # type: ignore[method-assign]

    def embed(self, images: Tensor) -> Embedded:
        """The tokens that enter the first block; ViTs only."""
        assert is_transformer(self.backbone)
        return Embedded(*embed(self.backbone, images))

    def _features(
        self, images: Tensor | Embedded, prompts: Tensor | None, read: bool
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        if prompts is None:
            if isinstance(images, Embedded):
                raise ValueError("A model without prompts runs timm's own forward: give it images, not tokens.")
            return self._plain_features(images), ()
        vit: Any = self.backbone
        x, rope = images if isinstance(images, Embedded) else self.embed(images)
        ropes = rotations(vit, rope, prompts.shape[-2])
        # Leading tokens that the pooling reads: 1 for CLS, all for average and attention pooling.
        plain, pooled = x.shape[1], 1 if vit.global_pool == "token" else None
        per_stage = prompts.unbind(-3) if prompts.dim() == 4 else prompts.unsqueeze(1).unbind(0)
        layers = len(vit.blocks) // len(per_stage)
        collected: list[Tensor] = []
        for stage, fresh in enumerate(per_stage):  # fresh: (1 or B, P, D)
            last_stage = stage == len(per_stage) - 1
            # [DePT Eq. stages] the prompts of the stage before are dropped (`x[:, :plain]` below), fresh ones enter.
            own = slice(stage * layers, (stage + 1) * layers)
            blocks = list(vit.blocks[own])
            recompute = self.checkpointing and torch.is_grad_enabled()
            # Recomputing stops at the last tensor that the backward needs; a sliced MLP would hide that point.
            queries = pooled if last_stage else None
            run = partial(run_stage, blocks, ropes[own], read=read, queries=queries, sliced=not recompute)
            prefix = self._prefix(stage, blocks[0], fresh, prompts)
            if recompute:
                x = checkpoint(run, x[:, :plain], fresh, prefix, use_reentrant=False)
            else:
                x = run(x[:, :plain], fresh, prefix)
            if read:
                tail = x[:, -fresh.shape[-2] :]
                # As in the released code: only the last stage's prompts pass the final LayerNorm.
                collected.append(vit.norm(tail) if last_stage else tail)
        features = vit.pool(vit.norm(x[:, : pooled or plain]))
        return vit.head_drop(vit.fc_norm(features)), tuple(collected)

    def _plain_features(self, images: Tensor) -> Tensor:
        """timm's own forward; in training, with what saves memory.

        That is, blocks that are recomputed, or, if only a part of a ViT is tuned (LayerNorms), sliced MLPs.
        """
        vit: Any = self.backbone
        sliced = is_transformer(vit) and all(map(is_sliceable, vit.blocks))
        if torch.is_grad_enabled() and (self.checkpointing or sliced):
            x, rope = self.embed(images)
            for block, turn in zip(vit.blocks, rotations(vit, rope, 0), strict=True):
                if self.checkpointing:
                    x = checkpoint(call, block, x, turn, use_reentrant=False)
                else:
                    x = whole_block(block, x, turn)
            features: Tensor = vit.forward_head(vit.norm(x), pre_logits=True)
        else:
            features = vit(images)
        return features

    def _prefix(self, stage: int, block: Any, prompts: Tensor, owner: Tensor) -> Prefix:
        """Projections of a stage's prompts in its first layer; kept from call to call while nothing changes.

        Kept with the tensors they come from and their versions, so that any in-place change (an EMA step, an
        optimiser step) or another adapter makes the entry stale. `owner` is the tensor that `prompts` is a view of.
        """
        if torch.is_grad_enabled() or self.amp or owner.dim() == 4 or owner.is_inference() or is_compiling():
            return project_prompts(block, prompts)
        inputs = [owner, *block.norm1.parameters(), *block.attn.parameters()]
        # `model.to(…)` swaps the storage below a parameter without a new version: hence the address.
        versions = [(tensor._version, tensor.data_ptr()) for tensor in inputs]
        kept = self._prefixes.get(stage)
        if kept is None or kept[1] != versions or any(a is not b for a, b in zip(kept[0], inputs, strict=True)):
            kept = (inputs, versions, project_prompts(block, prompts))
            self._prefixes[stage] = kept
        return kept[2]

    def add_projections(self, *, hidden: int, bottleneck: int, out: int) -> None:
        """Give the model fresh projection heads, one per stage (one for a model without prompts)."""
        sizes = {"hidden": hidden, "bottleneck": bottleneck, "out": out}
        width = self.token_width
        heads = [ProjectionHead(width, **sizes) for _ in range(max(1, self.stages))]
        self.projections = nn.ModuleList(heads).to(self.head.weight.device)

    def add_auxiliary(self, outputs: int, task: str) -> None:
        """Give the model a fresh linear head for a second task on its features, such as rotation."""
        self.auxiliary = nn.Linear(self.head.in_features, outputs).to(self.head.weight.device)
        self.auxiliary_task = task


class _Reader(nn.Module):
    """Lets `functional_call` reach `read` instead of `forward`."""

    def __init__(self, model: AdaptedModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor | Embedded, aggregated: bool) -> Output:
        return self.model.read(images, aggregated=aggregated)


def adapter_names(model: AdaptedModel) -> list[str]:
    """Names of the tensors that a prompt adapter holds: prompts (if any) and head."""
    return ([] if model.prompts is None else ["prompts"]) + ["head.weight", "head.bias"]


def fresh_prompts(stages: int, prompts: int, width: int) -> Tensor:
    """Prompts (M, P, D), Xavier-uniform on (1, P, D) tensors as released: U(±sqrt(6 / (D (P + 1))))."""
    bound = math.sqrt(6.0 / (width * (prompts + 1)))
    return torch.empty(stages, prompts, width).uniform_(-bound, bound)


def dimensions(backbone: nn.Module) -> tuple[int, int, int, int]:
    """Layers, width D, tokens N (without prompts) and inputs per patch of a ViT: what its FLOPs depend on."""
    vit: Any = backbone
    embed = vit.patch_embed
    return len(vit.blocks), vit.embed_dim, embed.num_patches + vit.num_prefix_tokens, embed.proj.weight[0].numel()


def _classify(features: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    if weight.dim() == 2:
        return F.linear(features, weight, bias)
    return torch.einsum("bd,bcd->bc", features, weight) + bias  # one head per sample
