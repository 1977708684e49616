"""What bf16 saves on this processor, with and without PyTorch's attention kernel.

    python benchmarks/bf16_speed.py --measure > benchmarks/results/cost/bf16.json    # minutes, on a quiet machine
    python benchmarks/bf16_speed.py                                                 # the table of docs/speed.md

A ViT-Ti/16 with 4 x 50 prompts at 224 px predicts one image and batches of 32, and makes a step of DePT+ with 16. The
three forms are taken in turns; times are ratios of medians to fp32.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from dept.bench.cost import interleaved
from dept.core.blocks import fuse_attention
from dept.data.loader import Batch, Runtime
from dept.methods.base import Progress
from dept.methods.dept_plus import DePTPlus
from dept.models.model import Model, create_model
from dept.runs.environment import environment

STORED = Path(__file__).parent / "results" / "cost" / "bf16.json"
FORMS = {"fp32": (False, True), "bf16 with the kernel": (True, True), "bf16 as `--amp` runs it": (True, False)}
"""what the table calls them: bf16 or not, attention in PyTorch's kernel or not"""
SIZES, STEP = (1, 32), 16


def in_form(model: Model, form: str, run: Callable[[], object]) -> None:
    """Run once in this form."""
    amp, kernel = FORMS[form]
    model.configure(amp=amp)
    if kernel:
        fuse_attention(model.backbone, amp=False)
    run()


@dataclass(frozen=True)
class OneBatch:
    """Passes over images that are one batch."""

    batch: Batch

    @property
    def image_count(self) -> int:
        return len(self.batch.index)

    def __call__(self) -> list[Batch]:
        return [self.batch]


def stepping(model: Model, views: torch.Tensor) -> Callable[[], object]:
    """A step of DePT+ on images that have their labels."""
    index = torch.arange(len(views))
    method = DePTPlus(model, DePTPlus.Config(batch=len(views)))
    method.begin(OneBatch(Batch((views,), index)))
    method.at(Progress(0, 1, 0))
    return partial(method.step, Batch((views, views.flip(-1)), index))


def measure(iters: int, size: int) -> dict[str, dict[str, float]]:
    """Seconds by task and form."""
    model = create_model("vit_tiny_patch16_224", 12, stages=4, prompts=50, img_size=size)
    images = torch.randn(max(SIZES), 3, size, size)

    def all_forms(task: Callable[[], object]) -> dict[str, float]:
        return interleaved({form: partial(in_form, model, form, task) for form in FORMS}, iters)

    with torch.no_grad():
        found = {f"prediction of {count}": all_forms(partial(model, images[:count])) for count in SIZES}
    return found | {f"DePT+ step of {STEP}": all_forms(stepping(model, images[:STEP]))}


def table(seconds: dict[str, dict[str, float]]) -> str:
    """A row per task, a column per form."""
    rows = [[task, *(f"{times[form] / times['fp32']:.2f}" for form in FORMS)] for task, times in seconds.items()]
    lines = ["| | " + " | ".join(FORMS) + " |", "|---|" + "---:|" * len(FORMS)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measure", action="store_true", help="measure, and print the seconds as JSON")
    parser.add_argument("--iters", type=int, default=20)
    parser.add_argument("--size", type=int, default=224, help="side of the images")
    asked = parser.parse_args()
    if asked.measure:
        found: dict[str, Any] = {"seconds": measure(asked.iters, asked.size), "environment": environment(Runtime())}
        print(json.dumps(found, indent=1))
    else:
        print(table(json.loads(STORED.read_text())["seconds"]))


if __name__ == "__main__":
    main()
