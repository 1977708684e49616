"""`loss-ablation`: the terms of DePT's loss, added one by one, with 100 % and 1 % of VisDA-C's target images.

PL: pseudo-labels (of the student itself); MB: voted by the memory bank; CLS: DINO term on CLS; prompt: consistency of
the aggregated prompts; div: their diversity. Class diversity (released code only) stays on. Full: every parameter
tuned at the one rate of the released code (the paper gives none).
"""

from __future__ import annotations

from dept.bench.suite import Row, Suite
from dept.bench.suites.visda import SHIFT
from dept.bench.suites.visda import SUITE as VISDA

# Every step switches one term back on; the settings are what is still off.
STEPS: tuple[tuple[str, str, dict[str, float | bool]], ...] = (
    ("1", "PL", {"bank": False, "w_cls": 0.0, "w_prompt": 0.0, "w_div": 0.0}),
    ("2", "PL + MB", {"w_cls": 0.0, "w_prompt": 0.0, "w_div": 0.0}),
    ("3", "PL + MB + CLS", {"w_prompt": 0.0, "w_div": 0.0}),
    ("4", "PL + MB + CLS + prompt", {"w_div": 0.0}),
    ("5", "PL + MB + CLS + prompt + div (DePT-G)", {}),
)


def rows_at(ratio: float) -> tuple[Row, ...]:
    """All steps with a share of the images."""
    share, told = f"{100 * ratio:g} %", {"ratio": ratio}
    tuned = [
        Row(
            f"{n}: {terms}, {share}",
            "dept",
            "G",
            "offline",
            f"-{n}-{ratio:g}",
            "official",
            off,
            told,
            f"{n} at {share}",
        )
        for n, terms, off in STEPS
    ]
    full = Row(
        f"Full, {share}", "full", "G", tag=f"-{ratio:g}", preset="official", extra=told, paper=f"Full at {share}"
    )
    return (*tuned, full)


SUITE = Suite(
    name="loss-ablation",
    title="terms of DePT's loss one by one, with 100 % and 1 % of the images; VisDA-C, ViT-B/16",
    data="visda",
    shifts=(SHIFT,),
    sources=VISDA.lend("G"),
    rows=(Row("0: source model with prompts", "source", "G", paper="0 at 100 %"), *rows_at(1.0), *rows_at(0.01)),
    seeds=(2020,),
    metric="mean_per_class",
    paper="loss-ablation",
)
