"""The demo's numbers over seeds: `python benchmarks/digits/run.py --seeds 0 1 2`.

One cell per method and seed, all from the embedded source model; finished cells are not recomputed. Writes
benchmarks/results/digits/<cell>/result.json and summary.json (mean and standard deviation over seeds).
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import torch

from dept.adapting import adapt
from dept.bench.runner import Cell, Outcome, run_cells
from dept.data.digits import real_digits, write_digits
from dept.demo import ADAPTING, EMBEDDED
from dept.files import load_model, read_meta, write_json

SUITE, SHIFT = "digits", "rendered->real"
ROOT = Path(__file__).parents[1] / "results"


def cells(seeds: list[int]) -> list[Cell]:
    """Tent and DePT-G, each with its demo settings."""
    source = read_meta(EMBEDDED)["backbone_sha256"]
    return [
        Cell(SUITE, "digits", SHIFT, method, "G offline", seed, {"backbone_sha256": source, "settings": settings})
        for method, settings in ADAPTING.items()
        for seed in seeds
    ]


def run_cell(cell: Cell, images: Path, work: Path) -> dict[str, Any]:
    settings = cell.protocol["settings"]
    out = work / cell.key
    run = adapt(
        load_model(EMBEDDED), images, out=out, method=cell.method, score_on=images, overwrite=True, seed=cell.seed,
        **settings,
    )  # fmt: skip
    return run.result


def summary(outcomes: list[Outcome]) -> dict[str, Any]:
    """Per method: accuracy before and after, and the share of errors removed, over seeds."""
    table: dict[str, Any] = {}
    for method in ADAPTING:
        results = [o.result for o in outcomes if o.cell.method == method and o.result is not None]
        if not results:
            continue
        after = [r["after"]["top1"] for r in results]
        before = results[0]["before"]["top1"]
        gone = [(a - before) / (1 - before) for a in after]
        table[method] = {
            "settings": ADAPTING[method],
            "seeds": [o.cell.seed for o in outcomes if o.cell.method == method and o.result is not None],
            "before": before,
            "after": spread(after),
            "errors_removed": spread(gone),
            "tunable": results[0]["tunable_model"],
            "adapter_bytes": results[0]["adapter_bytes"],
            "seconds": spread([r["seconds"] for r in results]),
        }
    return table


def spread(values: list[float]) -> dict[str, Any]:
    return {"mean": mean(values), "sd": stdev(values) if len(values) > 1 else 0.0, "values": values}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--work", type=Path, default=Path("runs/digits"))
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    images = options.work / "real"
    write_digits(images, real_digits())
    outcomes = []
    for outcome in run_cells(cells(options.seeds), lambda cell: run_cell(cell, images, options.work), ROOT):
        top1 = outcome.error if outcome.result is None else f"{100 * outcome.result['after']['top1']:.2f} %"
        print(f"{outcome.cell.title}: {top1}", file=sys.stderr, flush=True)
        outcomes.append(outcome)
    seeds = " ".join(map(str, options.seeds))
    record = {
        "command": f"python benchmarks/digits/run.py --seeds {seeds} --threads {options.threads}",
        "shift": SHIFT,
        "source": read_meta(EMBEDDED)["history"],
        "methods": summary(outcomes),
    }
    write_json(ROOT / SUITE / "summary.json", record)


if __name__ == "__main__":
    main()
