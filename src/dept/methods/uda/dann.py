"""DANN: domain-adversarial training of neural networks. Ganin et al., JMLR 2016.

A discriminator learns to tell the domains apart from the features, and the backbone, through a reversed gradient, to
make that impossible. Recipe of TLL, with the batch norm of its bottleneck only (see `adversarial`). Cost: one forward
and backward of both batches; a discriminator of about two million parameters. Fails when: class proportions differ
between domains (aligned marginals then mix classes), or the discriminator wins early.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dept.methods.uda.adversarial import Adversarial, discriminator, domain_loss, reversal_coefficient, reverse_gradient
from dept.methods.uda.base import PairedBatch


class DANN(Adversarial):
    """Features that a discriminator cannot assign to a domain."""

    name = "dann"
    title = "DANN"
    summary = "domain discriminator behind a reversed gradient (Ganin et al., JMLR 2016)"
    settings = ("uda",)

    def build(self) -> dict[str, nn.Module]:
        """Adds the discriminator."""
        return super().build() | {"discriminator": discriminator(self.model.head.in_features, self.config.hidden)}

    def paired_loss(self, batch: PairedBatch) -> dict[str, Tensor]:
        """CE_s + trade-off · ½ [BCE(D(f_s), 1) + BCE(D(f_t), 0)]   [DANN Eq. E]"""
        both = self.halves(batch)
        coefficient = reversal_coefficient(self.progress.step, self.config.ramp)
        features = reverse_gradient(torch.cat([both.source, both.target]), coefficient)
        judged = self.extra["discriminator"](features)
        count = len(both.source)
        return {
            "cross_entropy": self.source_loss(both.source_logits, batch),
            "domain": self.config.trade_off * domain_loss(judged[:count], judged[count:]),
        }
