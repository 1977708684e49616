"""`pacs-losses`: the terms of DePT-G's loss one by one, as in `loss-ablation`; photo -> art_painting of `pacs-mini`."""

from __future__ import annotations

from dept.bench.shift import shifts
from dept.bench.suite import Row, Suite
from dept.bench.suites.loss_ablation import STEPS
from dept.bench.suites.pacs_mini import RUN, TOGETHER
from dept.bench.suites.pacs_mini import SUITE as MINI

*FEWER, ALL = STEPS
SUITE = Suite(
    name="pacs-losses",
    title="terms of DePT-G's loss one by one; PACS photo -> art_painting",
    data="pacs",
    shifts=shifts("photo->art_painting"),
    sources=MINI.lend("G"),
    rows=(
        Row("0: source model with prompts", "source", "G", config=RUN),
        *(Row(f"{n}: {terms}", "dept", "G", tag=f"-{n}", config=RUN | TOGETHER | off) for n, terms, off in FEWER),
        Row(f"{ALL[0]}: {ALL[1]}", "dept", "G", tag="-together", config=RUN | TOGETHER, home="pacs-mini"),
    ),
    most=1000,
)
