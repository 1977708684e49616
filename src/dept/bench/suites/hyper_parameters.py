"""`hyper-parameters`: learning rate, teacher temperature and β of DePT-G on VisDA-C, one at a time.

β₁ = β₂ = β and λ moves with them. The paper ties λ = β/20, the released code has λ = β/2 (0.05 at β = 0.1), which the
other constants were tuned with: the latter is kept. The warm-up of the temperature lasts 3 epochs, as in the
authors' script for ImageNet (the paper gives no length). The default row is the best one of all three.
"""

from __future__ import annotations

from typing import Any

from dept.bench.suite import Row, Suite
from dept.bench.suites.visda import SHIFT
from dept.bench.suites.visda import SUITE as VISDA


def row(paper: str, tag: str, label: str = "", **settings: Any) -> Row:
    """DePT-G with single settings changed; the label is the paper's name of the row unless given."""
    return Row(label or paper, "dept", "G", tag=tag, preset="official", config=settings, paper=paper)


SUITE = Suite(
    name="hyper-parameters",
    title="learning rate, teacher temperature and β of DePT-G; VisDA-C, ViT-B/16",
    data="visda",
    shifts=(SHIFT,),
    sources=VISDA.lend("G"),
    rows=(
        row("lr 5e-3", "", "default: lr 5e-3, teacher temperature 0.07, beta 0.1"),
        row("lr 2e-4", "-lr2e-4", lr=2e-4),
        row("lr 5e-4", "-lr5e-4", lr=5e-4),
        row("lr 1e-3", "-lr1e-3", lr=1e-3),
        row("teacher temperature 0.04", "-temp0.04", teacher_temperature=0.04),
        row("teacher temperature 0.05", "-temp0.05", teacher_temperature=0.05),
        row("teacher temperature 0.04-0.07", "-warm", teacher_warmup_from=0.04, teacher_warmup_epochs=3),
        row("beta 0.01", "-beta0.01", w_cls=0.01, w_prompt=0.01, w_div=0.005),
        row("beta 0.05", "-beta0.05", w_cls=0.05, w_prompt=0.05, w_div=0.025),
        row("beta 0.5", "-beta0.5", w_cls=0.5, w_prompt=0.5, w_div=0.25),
    ),
    seeds=(2020,),
    metric="mean_per_class",
    paper="hyper-parameters",
)
