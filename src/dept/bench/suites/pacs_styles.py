"""`pacs-styles`: where DePT+'s objective is chosen, without any target image.

The source model learns from half of PACS's photos. The targets are the other half redrawn (`ink`, `poster`), or
corrupted at severity 5. One thing is changed in every row. 200 steps, seed 0.
"""

from __future__ import annotations

from typing import Any

from dept.bench.shift import shifts
from dept.bench.suite import Row, Suite
from dept.bench.suites.pacs_mini import BATCH, BF16, ON_PROMPTS, source

RUN: dict[str, Any] = {"batch": BATCH, "max_iters": 200}
CHANGES: dict[str, dict[str, Any]] = {
    "without renderings": {"renderings": False},
    "class shares of one weight": {"w_class_start": 1.0, "w_class": 1.0},
    "weak views alone": {"w_strong": 0.0},
    "labels of little weight": {"w_label": 0.3},
    "no labels": {"w_label": 0.0, "w_lost": 0.0},
    "class shares to the end": {"w_class": 2.0},
    "half the rate": {"lr": 5.0},
    "twice the rate": {"lr": 20.0},
}

SUITE = Suite(
    name="pacs-styles",
    title="DePT+, one thing changed at a time; half of PACS's photos -> the other half redrawn",
    data="pacs",
    shifts=shifts("photo/seen->photo/ink", "photo/seen->photo/poster", "photo/seen->photo/contrast"),
    sources={"G": source(4)},
    rows=(
        Row("Source", "source", "G", config=RUN, extra=BF16),
        Row("SHOT on prompts", "shot", "G", tag="-prompts", preset="offline", config=RUN | ON_PROMPTS, extra=BF16),
        Row("DePT+", "dept+", "G", config=RUN, extra=BF16),
        *(
            Row(f"DePT+, {name}", "dept+", "G", tag=f"-{number}", config=RUN | changes, extra=BF16)
            for number, (name, changes) in enumerate(CHANGES.items(), 1)
        ),
    ),
    most=500,
)
