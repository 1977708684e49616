"""`pacs-ratio`: photo -> art_painting with a share of the target images, evaluated on all of them.

Does prompt tuning lose less than tuning all weights when data are scarce? Both have the same objective and the same
rate for prompts and head; the backbone has `full`'s own. By the authors'
rule fewer images mean more epochs: 3, 15, 60 for 100, 20, 5 %, so that all make about 200 steps.
"""

from __future__ import annotations

from dept.bench.suite import Row, Suite
from dept.bench.suites.pacs_mini import BATCH, borrowed

RATIOS = (0.05, 0.2, 1.0)
RUN = {"batch": BATCH, "epochs": 3, "clip_by": "stage"}
WAYS = (("DePT-G", "dept"), ("all weights", "full"))

SUITE = Suite(
    name="pacs-ratio",
    title="accuracy against the share of target images, DePT-G and all weights; PACS photo -> art_painting",
    data="pacs",
    shifts=("photo->art_painting",),
    sources=borrowed("G"),
    rows=tuple(
        Row(f"{label}, {100 * ratio:g} %", method, "G", tag=f"-{ratio:g}", config=RUN, extra={"ratio": ratio})
        for label, method in WAYS
        for ratio in RATIOS
    ),
    seeds=(0, 1),
)
