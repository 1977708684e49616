"""`data-ratio`: accuracy against the share of target images, on VisDA-C; always evaluated on all of them.

The authors' draw, stratified by class, and their rule: epochs grow as the share falls, so that the steps stay the same.
The paper gives a figure; beside ours stand the numbers that its text states.
"""

from __future__ import annotations

from dept.bench.paper import paper_rows
from dept.bench.suite import Row, Suite
from dept.bench.suites.visda import SHIFT
from dept.bench.suites.visda import SUITE as VISDA

RATIOS = (0.01, 0.1, 0.5, 1.0)
WAYS = (
    ("AdaContrast", "adacontrast", "plain", "offline"),
    ("DePT-S", "dept", "S", "official"),
    ("DePT-G", "dept", "G", "official"),
    ("DePT-D", "dept", "D", "official"),
)


def rows_at(ratio: float) -> tuple[Row, ...]:
    """All methods with a share of the images."""
    share, stated = f"{100 * ratio:g} %", paper_rows("data-ratio")
    return tuple(
        Row(
            f"{label}, {share}",
            method,
            source,
            tag=f"-{ratio:g}",
            preset=preset,
            extra={"ratio": ratio},
            paper=f"{label} at {share}" if f"{label} at {share}" in stated else "",
        )
        for label, method, source, preset in WAYS
    )


SUITE = Suite(
    name="data-ratio",
    title="accuracy against the share of target images, 1 to 100 %; VisDA-C, ViT-B/16",
    data="visda",
    shifts=(SHIFT,),
    sources=VISDA.lend("plain", "S", "G", "D"),
    rows=tuple(row for ratio in RATIOS for row in rows_at(ratio)),
    seeds=(2020,),
    metric="mean_per_class",
    paper="data-ratio",
)
