"""`pacs-select`: where the learning rates of `pacs-mini` are chosen, without any target image.

Three rates per method (a fifth of the published one, that, and five times it) on the photos that source training held
out, under four corruptions that no target has; offline methods run 100 steps. The rate with the best top-1 is chosen.
DePT-S, DePT-D and `--lean` go with DePT-G.
"""

from __future__ import annotations

from dataclasses import replace

from dept import methods
from dept.bench.suite import Row, Suite
from dept.bench.suites.pacs_mini import OFFLINE, STREAMED, borrowed
from dept.methods.full import Full

FACTORS = (0.2, 1.0, 5.0)
STEPS = 100


def published(row: Row) -> float:
    """The rate that a row of `pacs-mini` starts from."""
    kind = methods.get(row.method)
    config = kind.preset(row.preset) if row.preset else kind.Config()
    return float(row.config.get("lr", config.lr))


def at_rate(row: Row, factor: float) -> Row:
    """The row with its learning rates times a factor, shortened if it is an offline one."""
    rate = factor * published(row)
    changes: dict[str, float] = {"lr": rate}
    if row.method == "full":
        changes["backbone_lr"] = factor * Full.Config().backbone_lr
    if row.setting == "offline":
        changes["max_iters"] = STEPS
    return replace(
        row, label=f"{row.label}, lr {rate:g}", tag=f"{row.tag}-lr{rate:g}", config={**row.config, **changes}
    )


SOURCES = borrowed("plain", "G", "rotation")
ALL = (row for row in OFFLINE + STREAMED if row.source in SOURCES and row.tag not in ("-lean", "-stages", "-recentred"))
SEARCHED = tuple(row for row in ALL if published(row) > 0)  # NEO has no rate

SUITE = Suite(
    name="pacs-select",
    title="learning rates of pacs-mini, chosen on corrupted held-out photos",
    data="pacs",
    shifts=("photo->photo/held-out",),
    sources=SOURCES,
    rows=tuple(at_rate(row, factor) for row in SEARCHED for factor in FACTORS),
)
