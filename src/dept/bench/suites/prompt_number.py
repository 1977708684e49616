"""`prompt-number`: DePT-S, -G and -D with 1, 10, 50 and 100 prompts per stage, on VisDA-C."""

from __future__ import annotations

from dept.bench.suite import Row, Source, Suite
from dept.bench.suites.visda import ARCH, SHIFT, STAGES
from dept.bench.suites.visda import SUITE as VISDA
from dept.methods.source_training import OFFICIAL

COUNTS = (1, 10, 50, 100)


def name(variant: str, prompts: int) -> str:
    """The source model of a row; those with 50 prompts are the main table's."""
    return variant if prompts == 50 else f"{variant}{prompts}"


SUITE = Suite(
    name="prompt-number",
    title="number of prompts per stage, 1 to 100; VisDA-C, ViT-B/16",
    data="visda",
    shifts=(SHIFT,),
    sources=VISDA.lend(*STAGES)
    | {name(v, p): Source(ARCH, stages, p, config=OFFICIAL) for v, stages in STAGES.items() for p in COUNTS if p != 50},
    rows=tuple(
        Row(f"DePT-{v}, {p} prompts", "dept", name(v, p), preset="official", paper=f"DePT-{v} p={p}")
        for v in STAGES
        for p in COUNTS
    ),
    seeds=(2020,),
    metric="mean_per_class",
    paper="prompt-number",
)
