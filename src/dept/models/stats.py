"""Source statistics of a model: one small file that lets a method compare the target with a source it cannot see.

`stats.safetensors` holds, over test views of labelled source images (ĥ is `bounded_features` of the feature h):
    feature_mean (D,)                        mean of h
    moment1, moment2, moment3 (D,)           mean and central moments of ĥ   (CFA)
    class_means (C, D), class_counts (C,)    mean of ĥ per class; zeros where a class has no image   (CFA)
    fisher.<name>                            squared gradients of the norm layers' parameters   (EATA)
and for a model that was trained with the contrastive task (z = projection of h), for TTT++:
    feature_covariance (D, D), projection_mean (K,), projection_covariance (K, K)
    feature_noise, projection_noise (2,)     mean distances of covariances and of means between batches
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dept.core.adapter import Adapter
from dept.core.losses import bounded_features, cross_entropy
from dept.core.moments import PAIRS, Moments
from dept.core.select import select
from dept.core.vit import AdaptedModel
from dept.data.images import ImageSet, list_hash
from dept.data.loader import Batch, Runtime, TestPasses, Views
from dept.errors import DataError, UsageError
from dept.io import intact, read_meta, read_tensors, tensors_hash, write_tensors
from dept.models.files import adapter_meta
from dept.models.hub import located
from dept.models.model import Model, fingerprint

OF_PROJECTION = ("feature_covariance", "feature_noise", "projection_mean", "projection_covariance", "projection_noise")
MOMENT_BATCH = 256  # as published; what batches differ by depends on their size
FISHER_BATCH = 64  # gradients are batch means, so the Fisher weights shrink as the batch grows: fixed, as published


def compute_stats(
    model: Model, images: ImageSet, runtime: Runtime, *, fisher_images: int = 2000, seed: int = 0
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and metadata of a model's source statistics; the model is not changed.

    Args:
        images: labelled source images.
        fisher_images: how many of them, drawn by `seed`, the Fisher weights are computed on (without labels).
    """
    if images.labels is None:
        raise DataError(f"The images of {images.root} have no labels; source statistics are per class.")
    if fisher_images < 1:
        raise UsageError(f"`fisher_images` must be at least 1, found {fisher_images}.")
    model.to(runtime.device).eval()
    views = Views(model.card.preprocess)
    tensors = feature_statistics(model, TestPasses(images, views, runtime)(), torch.tensor(images.labels))
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed)).tolist()
    if model.auxiliary_task == "contrastive":
        size = max(1, min(MOMENT_BATCH, len(images) // 2))
        tensors |= alignment_statistics(
            model, TestPasses(images.take(order), views, Runtime(runtime.device, runtime.workers, size))()
        )
    drawn = images.take(order[:fisher_images])  # a folder comes sorted by class: draw, do not slice
    fisher = fisher_diagonal(model, TestPasses(drawn, views, Runtime(runtime.device, runtime.workers, FISHER_BATCH))())
    meta = adapter_meta(
        model,
        kind="stats",
        backbone_sha256=fingerprint(model),
        head_sha256=tensors_hash(model.head.state_dict()),  # Fisher weights depend on the head too
        **({"auxiliary_sha256": _auxiliary_sha256(model)} if model.auxiliary is not None else {}),
        images=len(images),
        list_sha256=list_hash(images),
        fisher_images=len(drawn),
        seed=seed,
    )
    return tensors | {f"fisher.{name}": value for name, value in fisher.items()}, meta


@torch.no_grad()
def feature_statistics(model: AdaptedModel, passes: Iterable[Batch], labels: Tensor) -> dict[str, Tensor]:
    """Moments of the features and class means, in one pass. labels (n,) are indexed by `Batch.index`."""
    classes, width = model.head.weight.shape
    # |ĥ| < 1, so raw power sums in float64 give central moments to full float32 precision without a second pass.
    powers = torch.zeros(3, width, dtype=torch.float64)
    plain, per_class = powers.new_zeros(width), powers.new_zeros(classes, width)
    counts = powers.new_zeros(classes)
    for batch in passes:
        features = model.read(batch.views[0]).features
        bounded, own = bounded_features(features).cpu().double(), labels[batch.index.cpu()]
        plain += features.cpu().double().sum(dim=0)
        powers += torch.stack([bounded.pow(order).sum(dim=0) for order in (1, 2, 3)])
        per_class.index_add_(0, own, bounded)
        counts.index_add_(0, own, torch.ones_like(own, dtype=counts.dtype))
    first, second, third = powers / counts.sum()
    result = {
        "feature_mean": plain / counts.sum(),
        "moment1": first,
        "moment2": second - first**2,
        "moment3": third - 3 * first * second + 2 * first**3,
        "class_means": per_class / counts.clamp_min(1)[:, None],
        "class_counts": counts,
    }
    return {name: tensor.float() for name, tensor in result.items()}


@torch.no_grad()
def alignment_statistics(model: AdaptedModel, passes: Iterable[Batch]) -> dict[str, Tensor]:
    """Mean and covariance of features and of projections, and what batches differ by   [TTT++ Eq. L_f]"""
    assert model.auxiliary is not None
    totals = {kind: Moments() for kind in PAIRS}
    for batch in passes:
        features = model.read(batch.views[0]).features
        for kind, points in zip(PAIRS, (features, model.auxiliary(features)), strict=True):
            totals[kind].add(points.cpu().double())
    result: dict[str, Tensor] = {}
    for kind, moments in totals.items():
        mean, cov = moments.overall()
        result |= {f"{kind}_mean": mean, f"{kind}_covariance": cov, f"{kind}_noise": moments.noise()}
    return {name: tensor.float() for name, tensor in result.items()}


def fisher_diagonal(model: AdaptedModel, passes: Iterable[Batch]) -> dict[str, Tensor]:
    """Squared gradient of the cross-entropy to the model's own prediction, averaged over batches   [EATA F]

    Over the affine parameters of the norm layers, by name.
    """
    source = Adapter.of(model, select(model, "norm"))
    leaves = [tensor.requires_grad_() for tensor in source.tensors.values()]
    totals = [torch.zeros_like(leaf) for leaf in leaves]
    number = 0
    for batch in passes:
        logits = model(batch.views[0], adapter=source)
        gradients = torch.autograd.grad(cross_entropy(logits, logits.argmax(dim=-1)), leaves)
        torch._foreach_addcmul_(totals, gradients, gradients)
        number += 1
    return {name: total / max(number, 1) for name, total in zip(source.tensors, totals, strict=True)}


def save_stats(tensors: dict[str, Tensor], meta: dict[str, Any], path: str | Path) -> Path:
    """Write statistics (see `compute_stats`), atomically."""
    write_tensors(Path(path), tensors, meta)
    return Path(path)


def is_stats(path: Path) -> bool:
    """Whether a file holds statistics, which may be made anew."""
    try:
        return bool(read_meta(path)["kind"] == "stats")
    except DataError:
        return False


def load_stats(path: str | Path, model: AdaptedModel) -> dict[str, Tensor]:
    """Statistics for this model, on its device; those of another backbone or head are refused."""
    tensors, meta = read_tensors(located(path, ("stats.safetensors",)), "stats")
    ours, head = fingerprint(model), tensors_hash(model.head.state_dict())
    with intact(path):
        if meta["backbone_sha256"] != ours:
            raise DataError(
                f"{path} holds the statistics of another backbone: file {meta['backbone_sha256'][:16]}… "
                f"({meta['arch']}), model {ours[:16]}…. Make them with `dept stats` from the model that is adapted."
            )
        theirs, expected = tuple(tensors["class_means"].shape), tuple(model.head.weight.shape)
        if theirs != expected or (meta["stages"], meta["prompts"]) != (model.stages, model.prompts_per_stage):
            raise DataError(
                f"{path} was made for {theirs[0]} classes and {meta['stages']} x {meta['prompts']} prompts; this model "
                f"has {expected[0]} and {model.stages} x {model.prompts_per_stage}. Make them anew with `dept stats`."
            )
    if meta.get("head_sha256", head) != head:  # older files do not say
        raise DataError(
            f"{path} holds the statistics of a model with the same backbone but another head. "
            "Make them with `dept stats` from the model file that is adapted."
        )
    unusable = OF_PROJECTION if meta.get("auxiliary_sha256") != _auxiliary_sha256(model) else ()
    return {name: tensor.to(model.head.weight.device) for name, tensor in tensors.items() if name not in unusable}


def _auxiliary_sha256(model: AdaptedModel) -> str | None:
    return None if model.auxiliary is None else tensors_hash(model.auxiliary.state_dict())


def source_shares(model: Model, stats: Mapping[str, Tensor] | None) -> tuple[float, ...]:
    """The share of each class among the source images, as the model file or else the statistics know it; or empty."""
    if model.card.prior or not stats:
        return model.card.prior
    counts = stats["class_counts"]
    return tuple((counts / counts.sum()).tolist())
