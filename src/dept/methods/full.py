"""Full: DePT's objective with every parameter tuned (Gao et al., ICLR 2023, the row "Full" of its ablation).

The same pseudo-labels, bank and regulariser as `dept`; the backbone moves too, at its own smaller learning rate.
On a model without prompts the terms on prompts are void and only the DINO term on CLS regularises.
Cost: as DePT, plus a teacher, gradients and momentum of the whole model. Fails when: adaptation images are few:
all weights then fit the errors of their pseudo-labels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from dept.methods.dept import DePT


class Full(DePT):
    """DePT without the frozen backbone."""

    name = "full"
    title = "Full"
    summary = "DePT's objective with every parameter tuned (Gao et al., ICLR 2023)"
    settings = ("offline", "online")
    forwards_per_step = 6.0
    needs_prompts = False

    @dataclass(frozen=True)
    class Config(DePT.Config):
        """DePT's settings; the backbone's learning rate is our choice, the paper gives none."""

        tune: Literal["prompts", "all"] = "all"
        """what moves: prompts and head, or every parameter"""

    config: Config
