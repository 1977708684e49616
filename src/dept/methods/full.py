"""Full: DePT's objective with every parameter tuned (Gao et al., arXiv 2022, the row "Full" of its ablation).

The same pseudo-labels, bank and regulariser as `dept`, but the backbone moves too. Preset `official` has the released
code's one learning rate for everything, 5e-3. By default the backbone has a smaller one, which is our choice: the text
gives none, and 5e-3 can be too much for a whole ViT.
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
    summary = "DePT's objective with every parameter tuned (Gao et al., arXiv 2022)"
    settings = ("offline", "online")
    forwards_per_step = 6.0
    needs_prompts = False

    @dataclass(frozen=True)
    class Config(DePT.Config):
        """DePT's settings; the backbone's learning rate is ours (preset `official`: one rate for everything)."""

        tune: Literal["prompts", "all"] = "all"
        """what moves: prompts and head, or every parameter"""

    config: Config
    presets = DePT.presets | {"official": {"backbone_lr": 0.0}}
