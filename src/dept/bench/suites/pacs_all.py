"""`pacs-all`: every domain of PACS as the source and as the target, 12 shifts; settings as chosen in `pacs-styles`.

The models of `pacs-mini`, trained on each domain in turn with at most 1,670 images (as many as there are photos);
at most 500 target images, 200 steps, seed 0. The backbone of some rows runs in bf16.
"""

from __future__ import annotations

from itertools import permutations
from typing import Any

from dept.bench.shift import shifts
from dept.bench.suite import Row, Suite
from dept.bench.suites.pacs_mini import BATCH, BF16, ON_PROMPTS, source

RUN: dict[str, Any] = {"batch": BATCH, "max_iters": 200}
ROWS = (
    Row("Source", "source", "G", config=RUN, extra=BF16),
    Row("SHOT on prompts", "shot", "G", tag="-prompts", preset="offline", config=RUN | ON_PROMPTS, extra=BF16),
    Row("DePT-G", "dept", "G", config=RUN, extra=BF16),
    Row("DePT+", "dept+", "G", config=RUN, extra=BF16),
    Row("auto", "auto", "G", config=RUN, extra=BF16),
)

SUITE = Suite(
    name="pacs-all",
    title="PACS, every domain to every other; ViT-Ti/16 at 128 px, 200 steps on at most 500 images",
    data="pacs",
    shifts=shifts(
        *(f"{one}->{other}" for one, other in permutations(("photo", "art_painting", "cartoon", "sketch"), 2))
    ),
    sources={"G": source(4, extra={"most": 1670})},
    rows=ROWS,
    most=500,
)
