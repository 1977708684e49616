"""A method of your own: confident predictions, and the mean prediction even (SHOT-IM's loss, here on prompts alone).

python examples/05_write_your_own_method.py runs/demo/source-G/model.safetensors runs/demo/real    # after `dept demo`

Everything else follows from the class: views, steps, events, the adapter file, resume, the verdict and the report.
"""

import sys
from dataclasses import dataclass
from tempfile import TemporaryDirectory

import dept
from dept.core.losses import class_diversity, entropy
from dept.methods.base import BaseConfig, Group, Method


@dept.methods.register
class SharpAndEven(Method):
    """Information maximisation on the prompts."""

    name, title, settings = "sharp-and-even", "SharpAndEven", ("offline",)
    summary = "information maximisation on the prompts"
    views = "w"  # one weak view per image
    needs_prompts = True
    assumes_balance = True

    @dataclass(frozen=True)
    class Config(BaseConfig):
        """The fields are the settings, and are stored with every result."""

        lr: float = 5e-2
        """η, learning rate of the prompts"""
        batch: int = 64
        """B, images per step"""
        w_even: float = 1.0
        """weight of an even mean prediction"""

    def tuned(self):
        """Parameters that move; everything else is frozen."""
        return [Group(("prompts",), self.config.lr)]

    def loss(self, batch):
        """Named terms, which are added up. A method sees views, never labels."""
        logits = self.model(batch.views[0])  # (B, C)
        return {"sharp": entropy(logits).mean(), "even": self.config.w_even * class_diversity(logits)}


model_file, images = sys.argv[1:3]
with TemporaryDirectory() as folder:
    print(dept.adapt(model_file, images, out=folder, method="sharp-and-even", max_iters=8, overwrite=True))
