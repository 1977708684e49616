"""Several source domains in one model: training with shared and per-domain prompts, and the way back to one set."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from dept.core.domains import domain_distances, domain_weights, early_features, is_mean, signature
from dept.data.images import ImageSet
from dept.data.loader import Runtime, TestPasses, Views
from dept.data.sources import Sources
from dept.errors import UsageError
from dept.models.model import Model


def join(model: Model, weights: Tensor | None = None) -> None:
    """Write the shared prompts and the mean of the domains', by `weights` (K,) if given, into `model.prompts`."""
    assert model.domains is not None and model.prompts is not None
    with torch.no_grad():
        model.prompts.copy_(model.domains.joined(weights))


def read_as(model: Model, domain: int | None) -> None:
    """Let the model see images as one of its source domains, or as their plain mean."""
    if model.domains is None:
        return  # one source, or one union: there is only one way to see
    chosen = None if domain is None else torch.eye(len(model.domains.names))[domain]
    join(model, chosen)


def settle(model: Model, training: Sources, runtime: Runtime) -> None:
    """After training: take the signatures of the domains, average their prompts, make it an ordinary model."""
    if model.domains is None:
        return
    taken = [image_signature(model, part, runtime) for part in training.parts]
    model.domains.signatures.copy_(torch.stack(taken))
    model.domains.requires_grad_(False)
    join(model)
    assert model.prompts is not None
    model.prompts.requires_grad_(True)


def image_signature(model: Model, images: ImageSet, runtime: Runtime) -> Tensor:
    """The signature (2, D) of some images under the model's backbone; labels have no part in it."""
    model.to(runtime.device).eval()
    passes = TestPasses(images.unlabelled(), Views(model.card.preprocess), runtime)
    return signature(early_features(model.backbone, batch.views[0]) for batch in passes())


def weigh_domains(
    model: Model, target: ImageSet, runtime: Runtime, *, rule: str, temperature: float
) -> dict[str, Any] | None:
    """Start the prompts from the source domains by `rule`; the record of it, or None for a model of one source.

    mean: as stored. signature: domains that look like the target count more (see `core.domains`).
    """
    domains = model.domains
    if domains is None:
        if rule != "mean":
            raise UsageError(
                f"`domain_weights={rule}` needs a model with prompts of several source domains; this one has none. "
                "Train one with `dept train A/ B/ …`, or use `domain_weights=mean`."
            )
        return None
    record: dict[str, Any] = {"names": list(domains.names), **domains.sizes(), "rule": rule}
    if rule == "mean":
        return record | {"weights": [round(1 / len(domains.names), 6)] * len(domains.names)}
    if temperature <= 0:
        raise UsageError(f"`domain_temperature` must be above 0, found {temperature}.")
    if not is_mean(domains, model.prompts):
        raise UsageError(
            "The model's prompts are no longer the mean of its source domains (an adapter is on it), so "
            f"`domain_weights={rule}` would undo that. Start from the model file."
        )
    distances = domain_distances(image_signature(model, target, runtime), domains.signatures.cpu())
    # Rounded before they are used, so that the record says exactly what was done.
    weights = [round(weight, 6) for weight in domain_weights(distances, temperature).tolist()]
    join(model, torch.tensor(weights))
    rounded = [round(distance, 6) for distance in distances.tolist()]
    return record | {"weights": weights, "distances": rounded, "temperature": temperature}
