"""Several source domains in one model: training with shared and per-domain prompts, and the way back to one set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dept.core.domains import (
    OWN,
    SHARED,
    Domains,
    domain_distances,
    domain_weights,
    early_features,
    is_mean,
    prompts_of_samples,
    signature,
)
from dept.core.select import count
from dept.core.vit import PromptedViT, fresh_prompts
from dept.data.folder import ImageSet
from dept.data.loader import Views
from dept.data.sources import Sources
from dept.engine import Runtime, TestPasses
from dept.errors import UsageError
from dept.methods.base import Batch
from dept.models import Model
from dept.source_training import SourceTraining


class MultiSourceTraining(SourceTraining):
    """Every image is read with the prompts that all domains share and with those of its own domain.

    The teacher has its own average of each. `model.prompts` itself does not learn: see `join`.
    """

    name = "multi-source-training"
    summary = "supervised training on several source domains, with shared and per-domain prompts"

    @dataclass(frozen=True)
    class Config(SourceTraining.Config):
        """As for one source; a batch has the same number of images of every domain."""

        domain_prompts: int = -1
        """several sources: how many of the P prompts per stage each has to itself; -1: half, 0: none (one union)"""

    config: Config

    def __init__(
        self, model: PromptedViT, config: Config, *, names: Sequence[str], owners: Sequence[int], seed: int = 0
    ) -> None:
        self.names, self.owners = tuple(names), torch.tensor(owners)
        super().__init__(model, config, seed=seed)

    def prepare(self) -> None:
        """Fresh prompts for every domain; the shared ones start as the model's first."""
        super().prepare()
        model, own = self.model, own_prompts(self.model, self.config.domain_prompts)
        assert model.prompts is not None
        stages, total, width = model.prompts.shape
        with self.fresh_parameters():  # all P are drawn, so that their bound is that of P prompts
            fresh = [fresh_prompts(stages, total, width)[:, :own].to(model.prompts) for _ in self.names]
        shared = model.prompts.detach()[:, : total - own].clone()
        model.domains = Domains(self.names, shared, fresh).to(model.prompts.device)

    def prompt_names(self) -> list[str]:
        """The shared prompts, then each domain's."""
        return [SHARED, *(f"{OWN}{number}" for number in range(len(self.names)))]

    def per_sample(self, batch: Batch, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The prompts (B, M, P, D) of each sample's domain."""
        return {"prompts": prompts_of_samples(tensors, self.owners[batch.index.cpu()])}

    def counts(self) -> dict[str, int]:
        """Prompts of all domains belong to the model, although an adapter has only as many as one domain."""
        counts = super().counts()
        return counts | {"tunable_model": counts["tunable_model"] + count(self.model, self.prompt_names())}


def own_prompts(model: PromptedViT, asked: int) -> int:
    """How many prompts per stage a domain gets to itself: as asked, half of P for -1, 0 for a model without."""
    total = model.prompts_per_stage
    if not total or not asked:
        return 0
    own = total // 2 if asked < 0 else asked
    if not 0 < own < total:
        raise UsageError(
            f"Each source domain would have {own} of the {total} prompts per stage to itself: it needs at least one, "
            "and one must be left to share. Change --domain-prompts or --prompts, or use --domain-prompts 0 to train "
            "on the union of the sources."
        )
    return own


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
                f"--domain-weights {rule} needs a model with prompts of several source domains; this one has none. "
                "Train it with `dept train A/ B/ …`, or leave the flag out."
            )
        return None
    record: dict[str, Any] = {"names": list(domains.names), **domains.sizes(), "rule": rule}
    if rule == "mean":
        return record | {"weights": [round(1 / len(domains.names), 6)] * len(domains.names)}
    if temperature <= 0:
        raise UsageError(f"--domain-temperature must be above 0, found {temperature}.")
    if not is_mean(domains, model.prompts):
        raise UsageError(
            "The model's prompts are no longer the mean of its source domains (an adapter is on it), so "
            f"--domain-weights {rule} would undo that. Start from the model file."
        )
    distances = domain_distances(image_signature(model, target, runtime), domains.signatures.cpu())
    # Rounded before they are used, so that the record says exactly what was done.
    weights = [round(weight, 6) for weight in domain_weights(distances, temperature).tolist()]
    join(model, torch.tensor(weights))
    rounded = [round(distance, 6) for distance in distances.tolist()]
    return record | {"weights": weights, "distances": rounded, "temperature": temperature}
