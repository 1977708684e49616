"""Do the defaults of `dept train` fit a small folder? `python benchmarks/training_defaults.py` prints the table.

    python benchmarks/training_defaults.py --measure --data DATA --weights FILE      # hours of one core

A ViT-Ti/16 learns PACS's photos and Office-Caltech's amazon from some of the images, with nothing set but the weights
and bf16, and is scored on all others. Where that is below 95 %, tuned runs show what could be had: the best of three
learning rates, with twice the epochs, scored on the same images. Where it is not, no run could be more than 5 % better.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from measured import measured

from dept.bench.render import pipe_table
from dept.bench.suites.pacs_mini import ARCH
from dept.data import datasets
from dept.data.loader import Runtime
from dept.data.subsets import split
from dept.inference import evaluate
from dept.models.model import create_model
from dept.runs.environment import environment
from dept.runs.train import train

STORED = Path(__file__).parent / "results" / "training" / "defaults.json"
DOMAINS = (("pacs", "photo"), ("office-caltech", "amazon"))
IMAGES = (100, 300, 1500)
LEAST_TESTED = 150
"""images that are kept for scoring where there are not enough"""
ENOUGH = 0.95
RATES = (2e-4, 5e-4, 1e-3)


def trained(asked: argparse.Namespace, data: str, domain: str, count: int, **settings: Any) -> dict[str, Any]:
    """One training, scored on the images that it did not have."""
    images = datasets.get(data).load(asked.data, domain)
    learned = min(count, len(images) - LEAST_TESTED)
    source, rest = split(images, 1 - learned / len(images))
    model = create_model(ARCH, images.classes, stages=4, prompts=50, weights=asked.weights)
    name = "-".join([domain, str(count), *(str(value) for value in settings.values())])
    run = train(model, source, out=asked.work / name, amp=True, overwrite=True, **settings)
    config = run.result["protocol"]["config"]
    scores = evaluate(run.model, rest)
    kept = {key: config[key] for key in ("lr", "batch", "epochs")}
    return {"trained on": len(source), "scored on": len(rest), "top1": round(100 * scores["top1"], 1), **kept}


def measure(asked: argparse.Namespace) -> None:
    """Every case that is not stored yet, the small ones first; stored as soon as it is done."""
    stored = json.loads(STORED.read_text()) if STORED.exists() else {"cases": {}}
    for count in IMAGES:
        for data, domain in DOMAINS:
            case = f"{domain}, {count}"
            if case in stored["cases"]:
                continue
            found: dict[str, Any] = {"default": trained(asked, data, domain, count)}
            if found["default"]["top1"] < 100 * ENOUGH:
                epochs = 2 * found["default"]["epochs"]
                found["tuned"] = [trained(asked, data, domain, count, lr=rate, epochs=epochs) for rate in RATES]
            stored["cases"][case] = found
            stored["environment"] = environment(Runtime()) | {"amp": True}
            STORED.parent.mkdir(parents=True, exist_ok=True)
            STORED.write_text(json.dumps(stored, indent=1) + "\n")
            print(case, found, flush=True)


def table(cases: dict[str, Any]) -> str:
    """A row per case."""
    rows = []
    for case, found in cases.items():
        default = found["default"]
        best = max((one["top1"] for one in found.get("tuned", [])), default=None)
        share = f"at least {default['top1']:.1f} %" if best is None else f"{100 * default['top1'] / best:.1f} %"
        length = f"{default['epochs']} epochs, batches of {default['batch']}"
        rows.append(
            [
                case.split(",")[0],
                str(default["trained on"]),
                length,
                f"{default['top1']:.1f} % of {default['scored on']}",
                "not run" if best is None else f"{best:.1f} %",
                share,
            ]
        )
    return pipe_table(["domain", "images", "chosen length", "default", "tuned", "default / tuned"], rows)


def main() -> None:
    measured(__doc__, STORED, Path("runs/training_defaults"), measure)
    print(table(json.loads(STORED.read_text())["cases"]))


if __name__ == "__main__":
    main()
