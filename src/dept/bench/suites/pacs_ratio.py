"""`pacs-ratio`: photo -> art_painting with a share of the target images, evaluated on all of them.

Does prompt tuning lose less than tuning all weights when data are scarce? Both have the same objective and the same
rate for prompts and head; the backbone has `full`'s own. By the authors' rule fewer images mean more epochs: 3, 15, 60
for 100, 20, 5 %, so that all make about 200 steps.
"""

from __future__ import annotations

from dept.bench.shift import shifts
from dept.bench.suite import Row, Suite
from dept.bench.suites.pacs_mini import BATCH
from dept.bench.suites.pacs_mini import SUITE as MINI

RUN = {"batch": BATCH, "epochs": 3, "clip_by": "stage"}


def row(label: str, method: str, ratio: float, tag: str = "", **changes: float) -> Row:
    """A method on a share of the images."""
    name = f"{label}, {100 * ratio:g} %"
    return Row(name, method, "G", tag=f"{tag}-{ratio:g}", config=RUN | changes, extra={"ratio": ratio})


SUITE = Suite(
    name="pacs-ratio",
    title="accuracy against the share of target images, DePT-G and all weights; PACS photo -> art_painting",
    data="pacs",
    shifts=shifts("photo->art_painting"),
    sources=MINI.lend("G"),
    rows=(
        *(row("DePT-G", "dept", ratio) for ratio in (0.05, 0.2, 1.0)),
        *(row("all weights", "full", ratio) for ratio in (0.05, 0.2, 1.0)),
        # Is it the rate that keeps so many weights from fitting few images?
        *(row("all weights, backbone at 2e-3", "full", ratio, "-fast", backbone_lr=2e-3) for ratio in (0.05, 1.0)),
    ),
    seeds=(0, 1),
)
