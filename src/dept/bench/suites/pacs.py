"""`pacs`: all twelve shifts between the four domains of PACS, full size; ViT-B/16 AugReg, top-1 accuracy.

Not in the paper, which has no data set of this size: its recipe with 1,000 steps for training and 1,000 for adaptation
(about 50 passes), 128 images each, and source models of the default training: the released warm-up of DePT-D would
be 600 of 1,000 steps. `pacs-mini` is what of it runs without a GPU.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations

from dept.bench.shift import Shift
from dept.bench.suite import Row, Suite
from dept.bench.suites.visda import OFFLINE, ONLINE, vit_sources

DOMAINS = ("photo", "art_painting", "cartoon", "sketch")
STEPS = {"max_iters": 1_000}


def shortened(row: Row) -> Row:
    """A row of `visda`, counted in steps, without the paper's number."""
    return replace(row, config={**row.config, **STEPS} if row.setting == "offline" else row.config, paper="")


def all_shifts(domains: tuple[str, ...]) -> tuple[Shift, ...]:
    """Every domain to every other one."""
    return tuple(Shift((source,), (target,)) for source, target in permutations(domains, 2))


SUITE = Suite(
    name="pacs",
    title="PACS, all twelve shifts, offline and online; ViT-B/16",
    data="pacs",
    shifts=all_shifts(DOMAINS),
    sources=vit_sources(STEPS),
    rows=tuple(map(shortened, OFFLINE + ONLINE)),
    seeds=(0, 1, 2),
)
