"""Source training on several domains, with shared and per-domain prompts.

Some of the prompts of a stage are shared, the others belong to the image's domain (`domain_prompts`). A step draws the
same number of images from every domain. The model that is written has the shared prompts and the mean of the domains'
as its prompts, which is where the paper starts adaptation, and those of each domain beside them.
Cost: as source training on one domain. Fails when: a domain has few images: a batch draws equally from all of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dept.core.domains import OWN, SHARED, Domains, prompts_of_samples
from dept.core.select import count
from dept.core.vit import AdaptedModel, fresh_prompts
from dept.data.loader import Batch
from dept.errors import UsageError
from dept.methods.source_training import SourceTraining


class MultiSourceTraining(SourceTraining):
    """Every image is read with the prompts that all domains share and with those of its own domain.

    The teacher has its own average of each. `model.prompts` itself does not learn: see `join`.
    """

    name = "multi-source-training"
    title = "Multi-source training"
    summary = "supervised training on several source domains, with shared and per-domain prompts"
    settings = ("train",)

    @dataclass(frozen=True)
    class Config(SourceTraining.Config):
        """As for one source; a batch has the same number of images of every domain."""

        domain_prompts: int = -1
        """several sources: how many of the P prompts per stage each has to itself; -1: half, 0: none (one union)"""

    config: Config

    def __init__(
        self, model: AdaptedModel, config: Config, *, names: Sequence[str], owners: Sequence[int], seed: int = 0
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


def own_prompts(model: AdaptedModel, asked: int) -> int:
    """How many prompts per stage a domain gets to itself: as asked, half of P for -1, 0 for a model without."""
    total = model.prompts_per_stage
    if not total or not asked:
        return 0
    own = total // 2 if asked < 0 else asked
    if not 0 < own < total:
        raise UsageError(
            f"Each source domain would have {own} of the {total} prompts per stage to itself: it needs at least one, "
            "and one must be left to share. Change domain_prompts or prompts, or set domain_prompts to 0 to train "
            "on the union of the sources."
        )
    return own
