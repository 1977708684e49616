"""`streams`: every online method in every scenario, on PACS with the source models and settings of `pacs-mini`.

reset      one domain after the other, forgotten in between
continual  the same, never forgotten
mixed      all domains at once
sorted     class after class
dirichlet  classes in bursts, Dirichlet(0.1)
long-tail  class c keeps a share that falls from 1 to 0.1
episodic   forgotten after every batch
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from dept.bench.shift import shifts
from dept.bench.suite import Row, Suite
from dept.bench.suites.pacs_mini import ONLINE, STREAMED
from dept.bench.suites.pacs_mini import SUITE as MINI

SCENARIOS: dict[str, dict[str, Any]] = {
    "reset": {},
    "continual": {"reset": "never"},
    "mixed": {"mixed": True},
    "sorted": {"order": "sorted"},
    "dirichlet": {"order": "dirichlet", "delta": 0.1},
    "long-tail": {"order": "imbalanced", "delta": 0.1},
    "episodic": {"reset": "batch"},
}
SOURCES = MINI.lend("plain", "G")
METHODS = (
    Row("Source (plain ViT)", "source", "plain", "online", config=ONLINE),
    Row("Source (prompted, M=4)", "source", "G", "online", config=ONLINE),
    *(row for row in STREAMED if row.source in SOURCES),
)

SUITE = Suite(
    name="streams",
    title="seven kinds of streams, every online method; PACS photo -> the three other domains, ViT-Ti/16 at 128 px",
    data="pacs",
    shifts=shifts("photo->art_painting,cartoon,sketch"),
    sources=SOURCES,
    rows=tuple(
        replace(
            row,
            label=f"{row.label.removesuffix(', online')}, {scenario}",
            tag=f"-{scenario}",
            extra={**row.extra, "stream": stream},
        )
        for scenario, stream in SCENARIOS.items()
        for row in METHODS
    ),
    seeds=(0, 1),
    most=1000,
)
