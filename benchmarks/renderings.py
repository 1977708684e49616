"""What do renderings tell before anything is learned? `python benchmarks/renderings.py` prints the table.

    python benchmarks/renderings.py --measure --data DATA --weights FILE      # ten minutes of one core

A ViT-Ti/16 learns half of PACS's photos, and half of Office-Caltech's amazon. The other halves are redrawn or corrupted
(severity 5), and labelled by the model as it is, re-centred, in every rendering, and as DePT+ does from all of them.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from measured import measured

from dept.bench.render import pipe_table
from dept.bench.suites.pacs_mini import ARCH, TRAINING
from dept.core.renderings import RENDERINGS
from dept.data.datasets.derived import Domains
from dept.data.images import ImageSet
from dept.data.loader import Runtime, TestPasses, Views
from dept.data.subsets import sample
from dept.methods.dept_plus import DePTPlus, agreed_labels, neighbours_mean, told
from dept.models.files import load_model
from dept.models.model import Model, create_model
from dept.runs.environment import environment
from dept.runs.train import train

STORED = Path(__file__).parent / "results" / "renderings.json"
SOURCES = {"photo": ("pacs", 8), "amazon": ("office-caltech", 12)}
"""data set, and epochs of the source training"""
STYLES = ("ink", "poster", "contrast", "fog")
MOST = 300


def source_model(asked: argparse.Namespace, domains: Domains, name: str) -> Model:
    """Trained on one half of the images, unless that has been done before."""
    data, epochs = SOURCES[name]
    out = asked.work / name
    if not (out / "model.safetensors").exists():
        seen = domains.load(data, f"{name}/seen")
        model = create_model(ARCH, seen.classes, stages=4, prompts=20, weights=asked.weights, img_size=128)
        train(model, seen, out=out, amp=True, fit_length=False, overwrite=True, **TRAINING | {"epochs": epochs})
    return load_model(out / "model.safetensors").eval()


@torch.no_grad()
def labelled(model: Model, images: ImageSet) -> dict[str, float]:
    """Share of right labels, %, by who gives them."""
    method = DePTPlus(model)
    views = Views(model.card.preprocess, model.card.augment)
    features = method._rendered(TestPasses(images, views, Runtime()))
    truth = torch.tensor(images.labels)

    def right(labels: torch.Tensor) -> float:
        return round(100 * float((labels == truth).float().mean()), 1)

    found = {"the source model": right(model.head(features[0]).argmax(dim=1))}
    centred = features - features.mean(dim=1, keepdim=True)
    opinions = model.head(centred).softmax(dim=-1)
    for render, own in zip(RENDERINGS, opinions, strict=True):
        found[f"re-centred, {render.__name__.replace('_', ' ')}"] = right(own.argmax(dim=1))
    weights = told(opinions)
    said = torch.einsum("r,rnc->nc", weights, opinions)
    together = torch.einsum("r,rnd->nd", weights, F.normalize(centred, dim=-1))
    near = neighbours_mean(together, said, method.config.neighbours)
    even = torch.full_like(said[0], 1 / said.shape[1])
    return found | {
        "all, of equal weight": right(opinions.mean(dim=0).argmax(dim=1)),
        "all, weighted": right(said.argmax(dim=1)),
        "and the nearest neighbours": right(agreed_labels(said, near, None)),
        "and even class shares: labels of DePT+": right(agreed_labels(said, near, even)),
    }


def measure(asked: argparse.Namespace) -> None:
    """Every source and style, stored together."""
    domains = Domains(asked.data, asked.work)
    shifts: dict[str, dict[str, float]] = {}
    for name, (data, _) in SOURCES.items():
        model = source_model(asked, domains, name)
        for style in STYLES:
            images = sample(domains.load(data, f"{name}/{style}"), MOST)
            shifts[f"{name} → {style}"] = labelled(model, images)
    stored = {"images": MOST, "shifts": shifts, "environment": environment(Runtime())}
    STORED.write_text(json.dumps(stored, indent=1) + "\n")


def table(shifts: dict[str, dict[str, Any]]) -> str:
    """A row per way to label, a column per shift."""
    rows = []
    for way in next(iter(shifts.values())):
        values = [found[way] for found in shifts.values()]
        rows.append([way, *(f"{value:.1f}" for value in values), f"{sum(values) / len(values):.1f}"])
    return pipe_table(["labels by", *shifts, "mean"], rows)


def main() -> None:
    measured(__doc__, STORED, Path("runs/renderings"), measure)
    print(table(json.loads(STORED.read_text())["shifts"]))


if __name__ == "__main__":
    main()
