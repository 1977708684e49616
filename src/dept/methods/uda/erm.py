"""ERM: empirical risk minimisation on the source alone, the lower bound that every adaptation must beat.

Same frame and steps as the others, learning rates as DANN and CDAN; target images are loaded and not looked at. Cost:
one forward and backward of the source batch. Fails when: the domains differ, which is why the other methods exist.
"""

from __future__ import annotations

from torch import Tensor

from dept.methods.uda.base import PairedBatch, UDAMethod


class ERM(UDAMethod):
    """Cross-entropy on source images; batch norm sees the source only."""

    name = "erm"
    title = "ERM"
    summary = "cross-entropy on the source images alone: the baseline without adaptation"
    settings = ("uda",)

    def paired_loss(self, batch: PairedBatch) -> dict[str, Tensor]:
        """CE_s"""
        return {"cross_entropy": self.source_loss(self.model(batch.source_views[0]), batch)}
