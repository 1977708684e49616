"""`pacs-styles`: where DePT+'s objective is chosen, without any target image.

The source model learns from half of PACS's photos. The targets are the other half redrawn (`ink`, `poster`), or
corrupted at severity 5. One thing is changed in every row. 200 steps, seed 0.
"""

from __future__ import annotations

from typing import Any

from dept.bench.shift import shifts
from dept.bench.suite import Row, Suite
from dept.bench.suites.pacs_mini import BATCH, BLIND, ON_PROMPTS, source
from dept.methods.dept_plus import SGD

RUN: dict[str, Any] = {"batch": BATCH, "max_iters": 200}
CHANGES: dict[str, dict[str, Any]] = {
    "without trust": BLIND,
    "weak views alone": {"w_strong": 0.0},
    "not re-centred": {"recentre": False},
    "no labels": {"w_label": 0.0},
    "evenness half as strong": {"w_class": 0.5},
    "half the rate": {"lr": 0.065},
    "twice the rate": {"lr": 0.26},
}

SUITE = Suite(
    name="pacs-styles",
    title="DePT+, one thing changed at a time; half of PACS's photos -> the other half redrawn",
    data="pacs",
    shifts=shifts("photo/seen->photo/ink", "photo/seen->photo/poster", "photo/seen->photo/contrast"),
    sources={"G": source(4)},
    rows=(
        Row("Source", "source", "G", config=RUN),
        Row("SHOT on prompts", "shot", "G", tag="-prompts", preset="offline", config=RUN | ON_PROMPTS),
        Row("NOTELA on prompts", "notela", "G", config=RUN),
        Row("DePT+", "dept+", "G", config=RUN),
        Row("DePT+ without trust, SGD", "dept+", "G", tag="-1", config=RUN | BLIND | SGD),
        *(
            Row(f"DePT+, {name}", "dept+", "G", tag=f"-{number}", config=RUN | changes)
            for number, (name, changes) in enumerate(CHANGES.items(), 2)
        ),
    ),
    most=500,
)
