"""The column Full of `dept bench cost` against a bare timm loop: the unit of all ratios must not be slow itself.

python benchmarks/reference/compare_full.py > benchmarks/results/cost/full.json
"""

from __future__ import annotations

import argparse
import json

import timm
import torch

from dept.bench.cost import Column, Stepper, interleaved
from dept.core.losses import entropy
from dept.models.model import create_model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--arch", default="vit_base_patch16_224")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--iters", type=int, default=2)
    options = parser.parse_args()
    images = torch.randn(options.batch, 3, 224, 224)
    bare = timm.create_model(options.arch, num_classes=12).train()
    optimizer = torch.optim.SGD(bare.parameters(), lr=1e-5, momentum=0.9)

    def step() -> None:
        loss = entropy(bare(images)).mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()

    ours = Stepper(Column("Full"), create_model(options.arch, 12).train(), images)
    seconds = interleaved({"bare": step, "Full": ours}, options.iters)
    print(json.dumps({"protocol": vars(options), "Full / bare timm": round(seconds["Full"] / seconds["bare"], 3)}))


if __name__ == "__main__":
    main()
