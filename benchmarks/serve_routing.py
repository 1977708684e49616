"""Routing and drift of `dept serve` on the domains of PACS, with a ViT-Ti that has seen none of them.

python benchmarks/serve_routing.py --data DATA --weights VIT_TI.safetensors --out benchmarks/results/serve/routing.json
python benchmarks/serve_routing.py --table benchmarks/results/serve/routing.json         # the table of docs/serve.md

64 images make a domain known, 96 others are routed. With all four domains known: how many go to their own, how many are
called new by mistake. With three known: how many images of the fourth are called new. Drift: mean of the 96 images of a
domain (columns) against the images of another (rows).
"""

from __future__ import annotations

import argparse
import json
import random
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dept.core.domains import early_features
from dept.data.images import find_images
from dept.data.loader import Runtime, TestPasses, Views
from dept.io import write_json
from dept.models.model import Model, create_model
from dept.serve.routing import MOST, Moving, Reference, Router

ARCH, SIZE, NEW = "vit_tiny_patch16_224", 128, 96


def features(model: Model, folder: Path, seed: int) -> Tensor:
    images = find_images(folder)
    drawn = images.take(random.Random(seed).sample(range(len(images)), MOST + NEW))
    passes = TestPasses(drawn, Views(model.card.preprocess), Runtime())
    return torch.cat([early_features(model.backbone, batch.views[0]) for batch in passes()])


def share(found: list[str | None], wanted: str | None) -> float:
    return round(sum(name == wanted for name in found) / len(found), 3)


def drift(traffic: Tensor, reference: Reference) -> float:
    moving = Moving()
    for row in traffic:
        moving.add(row)
    return round(moving.drift(reference) or 0.0, 3)


def table(found: dict[str, Any]) -> str:
    """The figures as docs/serve.md shows them."""
    rows = {name: row for name, row in found.items() if isinstance(row, dict)}
    heads = ["routed to it", "called new", "called new if it is unknown", *(f"drift: {name}" for name in rows)]
    lines = [f"| domain | {' | '.join(heads)} |", "|---|" + "---:|" * len(heads)]
    for name, row in rows.items():
        shares = [f"{100 * row[key]:.1f} %" for key in ("own", "called_new", "called_new_if_unknown")]
        drifts = [f"{row['drift'][other]:.2f}" for other in rows]
        lines.append(f"| {name} | {' | '.join([*shares, *drifts])} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder that holds pacs/")
    parser.add_argument("--weights", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--table", type=Path, help="print the table of such a file, and do nothing else")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    if given.table:
        print(table(json.loads(given.table.read_text())))
        return
    model = create_model(ARCH, 1000, weights=given.weights, img_size=SIZE).eval()
    names = sorted(place.name for place in (given.data / "pacs").iterdir() if place.is_dir())
    found = {name: features(model, given.data / "pacs" / name, given.seed) for name in names}
    known = {name: rows[:MOST] for name, rows in found.items()}
    result: dict[str, object] = {"arch": ARCH, "size": SIZE, "known": MOST, "routed": NEW, "seed": given.seed}
    for name in names:
        routes = [route.domain for route in Router(known)(found[name][MOST:])]
        rest = Router({other: rows for other, rows in known.items() if other != name})
        strange = [route.domain for route in rest(found[name][MOST:])]
        result[name] = {
            "own": share(routes, name),
            "called_new": share(routes, None),
            "called_new_if_unknown": share(strange, None),
            "drift": {other: drift(found[other][MOST:], Reference.of(known[name])) for other in names},
        }
    if given.out:
        write_json(given.out, result)
    print(result)


if __name__ == "__main__":
    main()
