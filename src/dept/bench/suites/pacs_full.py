"""`pacs-full`: the full-size check, photo -> art_painting at 224 px with 50 prompts, all images, 4 epochs."""

from __future__ import annotations

from dept.bench.shift import shifts
from dept.bench.suite import Row, Suite
from dept.bench.suites.pacs_mini import BATCH, TOGETHER, TRAINING, source

RUN = {"batch": BATCH, "epochs": 4} | TOGETHER

SUITE = Suite(
    name="pacs-full",
    title="PACS photo -> art_painting at full size: ViT-Ti/16 at 224 px, 50 prompts, all images",
    data="pacs",
    shifts=shifts("photo->art_painting"),
    # A quarter of the epochs of pacs-mini: a step costs three times as much.
    sources={"G": source(4, size=224, prompts=50, config=TRAINING | {"epochs": 2})},
    rows=(
        Row("Source (prompted, M=4)", "source", "G"),
        Row("DePT-G", "dept", "G", config=RUN),
    ),
)
