"""How the cost of DePT-G grows: a step with prompts and batch, a bank query with the bank, an epoch with the images."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from dept.bench.cost import Column, Stepper, interleaved, measured_model, peak_bytes, significant
from dept.core.bank import MemoryBank
from dept.data.images import ImageSet, find_images
from dept.data.loader import Runtime, Views
from dept.errors import missing_extra
from dept.methods.dept import DePT
from dept.models.model import Model
from dept.runs.loops import offline

PROMPTS = (0, 25, 50, 100, 200)
BANKS = (5_000, 10_000, 20_000, 40_000)
EPOCHS = (2, 4, 8, 16)
"""images of an epoch, in batches"""

Ratios = dict[str, dict[str, float]]


def measure_growth(arch: str, batch: int, iters: int, device: str = "cpu", **options: Any) -> Ratios:
    """Time and memory; keys are "prompts 50", "batch 16", "images 512", "bank 20000".

    Each series is relative to its first entry. Without prompts only the head is tuned, so nothing goes back
    through the blocks: that point lies below the line of the others.
    """
    model = measured_model(arch, iters, device, options)
    return _step_growth(model, batch, iters) | _epoch_growth(model, batch, iters) | _bank_growth(model, iters)


def _step_growth(model: Model, batch: int, iters: int) -> Ratios:
    pre = model.card.preprocess
    images = torch.randn(2 * batch, pre.channels, pre.size, pre.size).to(model.device)
    prompts = {f"prompts {p}": Stepper(Column(f"G{p}"), model.train(), images[:batch]) for p in PROMPTS}
    sizes = (batch // 4, batch // 2, batch, 2 * batch)
    batches = {f"batch {b}": Stepper(Column("G50"), model.train(), images[:b]) for b in sizes}
    return _relative(prompts, model, iters) | _relative(batches, model, iters)


def _epoch_growth(model: Model, batch: int, iters: int) -> Ratios:
    """A whole epoch of offline DePT-G from image files: filling the bank, then all steps."""
    pre = model.card.preprocess
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for number in range(max(EPOCHS) * batch):
            pixels = rng.integers(0, 256, (pre.size, pre.size, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / f"{number:05d}.jpg")
        images = find_images(folder)
        chosen = [ImageSet(images.root, images.paths[: count * batch]) for count in EPOCHS]
        prompted = model.with_prompts(4, 50).eval()
        DePT(prompted)  # gives it projection heads, which would otherwise count as growth of the first epoch
        epochs = {f"images {len(part)}": partial(_epoch, prompted, part, batch) for part in chosen}
        return _relative(epochs, prompted, iters)


def _epoch(model: Model, images: ImageSet, batch: int) -> None:
    method = DePT(model, DePT.Config(batch=batch, epochs=1))
    for _ in offline(method, images, Views(model.card.preprocess, model.card.augment), Runtime(str(model.device))):
        pass


def _relative(runs: Mapping[str, Callable[[], object]], model: Model, iters: int) -> Ratios:
    """Time and peak memory of every run over those of the first."""
    peaks = {label: peak_bytes(run, model) for label, run in runs.items()}
    seconds = interleaved(runs, iters, model.device)
    first = next(iter(runs))
    return {
        label: {
            "time_ratio": round(seconds[label] / seconds[first], 3),
            "memory_ratio": round(peaks[label] / peaks[first], 3),
            "seconds": significant(seconds[label]),
            "megabytes": round(peaks[label] / 1e6, 1),
        }
        for label in runs
    }


def _bank_growth(model: Model, iters: int) -> Ratios:
    width = model.head.in_features
    queries = torch.randn(128, width).to(model.device)
    votes: dict[str, Callable[[], object]] = {}
    for size in BANKS:
        bank = MemoryBank(size, width, 12, model.device)
        bank.write(torch.randn(size, width).to(model.device), torch.rand(size, 12).to(model.device))
        votes[f"bank {size}"] = partial(bank.vote, queries, 10)
    seconds = interleaved(votes, 4 * iters, model.device)
    first = next(iter(votes))
    return {
        label: {"time_ratio": round(value / seconds[first], 3), "seconds": significant(value)}
        for label, value in seconds.items()
    }


PANELS = {
    "prompts": "prompts per stage",
    "batch": "batch",
    "images": "images of an epoch",
    "bank": "slots of the bank",
}


def plot_growth(growth: Mapping[str, Mapping[str, float]], path: Path) -> None:
    """Four panels: prompts, batch, images, bank; needs the extra `report`."""
    try:
        import matplotlib.pyplot as plt
    except ImportError as error:
        raise missing_extra("matplotlib", "report") from error
    figure, axes = plt.subplots(1, 4, figsize=(12, 2.8), constrained_layout=True)
    for axis, (kind, title) in zip(axes, PANELS.items(), strict=True):
        rows = {int(name.split()[1]): row for name, row in growth.items() if name.startswith(kind)}
        for key, label in (("time_ratio", "time"), ("memory_ratio", "memory")):
            points = [(x, row[key]) for x, row in rows.items() if key in row]
            if points:
                axis.plot(*zip(*points, strict=True), marker="o", label=label)
        axis.set(xlabel=title)
        axis.set_ylim(bottom=0)
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("relative to the first point")
    axes[0].legend(frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    plt.close(figure)
