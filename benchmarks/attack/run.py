"""Attack dept with seeded cases and write the table of cases, passed and failed to results.md beside this file.

python benchmarks/attack/run.py [--share 1.0] [--seed 0] [--only NAME]
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

os.environ |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}  # forked processes; nothing is asked of a network
sys.path.insert(0, str(Path(__file__).parents[1]))

import torch

import dept
from attack import bad_images, mutated_files, stops, wrong_calls
from attack.stage import Row, build

ATTACKS = {
    "files": (mutated_files.attack, 10_000),
    "images": (bad_images.attack, 1_000),
    "calls": (wrong_calls.attack, 1_000),
    "kills": (stops.kills, 100),
    "crashes": (stops.crash_points, 100),
}
"""name -> the attack, and its cases at share 1 (of images and crash points: at most so many)"""
RESULTS = Path(__file__).with_name("results.md")


def rows(share: float, seed: int, names: list[str]) -> Iterator[Row]:
    """The rows of the table, each as soon as it is known."""
    torch.set_num_threads(1)  # a forked process must not wait for threads that it does not have
    with tempfile.TemporaryDirectory(prefix="dept-attack-") as folder:
        stage = build(Path(folder))
        for name in names:
            attack, count = ATTACKS[name]
            yield from attack(stage, max(1, round(share * count)), seed)


def table(found: list[Row], share: float, seed: int, seconds: float) -> str:
    """The table as Markdown, with the first failures of every row below it."""
    lines = [
        "# Attacks",
        "",
        f"`python benchmarks/attack/run.py --share {share:g} --seed {seed}`, dept {dept.__version__}, "
        f"{seconds:.0f} seconds.",
        "",
        "| attack | cases | passed | failed |",
        "|---|---:|---:|---:|",
    ]
    for row in found:
        failed = len(row.failures)
        lines.append(f"| {row.name} | {row.cases:,} | {row.cases - failed:,} | {failed:,} |")
    for row in found:
        if row.failures:
            lines += ["", f"## Failed: {row.name}", "", *(f"- {text}" for text in row.failures[:20])]
    return "\n".join(lines) + "\n"


def main() -> int:
    """Run the attacks; the exit code says whether anything failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--share", type=float, default=1.0, help="share of the cases")
    parser.add_argument("--seed", type=int, default=0, help="seed of the cases")
    parser.add_argument("--only", choices=sorted(ATTACKS), help="one attack; results.md is not written")
    given = parser.parse_args()
    began, found = time.monotonic(), []
    for row in rows(given.share, given.seed, [given.only] if given.only else list(ATTACKS)):
        print(f"{row.name}: {row.cases} cases, {len(row.failures)} failed, {row.notes}", file=sys.stderr, flush=True)
        found.append(row)
    text = table(found, given.share, given.seed, time.monotonic() - began)
    if not given.only:
        RESULTS.write_text(text)
    print(text)
    return int(any(row.failures for row in found))


if __name__ == "__main__":
    raise SystemExit(main())
