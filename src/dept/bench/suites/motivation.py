"""`motivation`: the figure that DePT starts from. AdaContrast's objective, all weights against norm layers only, with
100 % and 1 % of VisDA-C's target images; the accuracy after every pass over as many images as the whole set has.

The curves (mean per-class accuracy, the metric of VisDA-C, and top-1) are in each result. The paper gives no learning
rate for the norm layers; 1e-3 is the usual one.
"""

from __future__ import annotations

from dept.bench.suite import Row, Suite
from dept.bench.suites.visda import SHIFT
from dept.bench.suites.visda import SUITE as VISDA

# With 1 % of the images an epoch is a hundredth, and there are a hundred times as many.
SHARES = ((1.0, 1), (0.01, 100))
TUNED = (("all weights", "offline", ""), ("norm layers", "ln", "-ln"))

SUITE = Suite(
    name="motivation",
    title="AdaContrast's objective on all weights or norm layers, with 100 % and 1 % of the images; VisDA-C, ViT-B/16",
    data="visda",
    shifts=(SHIFT,),
    sources=VISDA.lend("plain"),
    rows=tuple(
        Row(
            f"AdaContrast, {label}, {100 * ratio:g} %",
            "adacontrast",
            "plain",
            tag=f"{tag}-{ratio:g}",
            preset=preset,
            extra={"ratio": ratio, "eval_every": every},
        )
        for ratio, every in SHARES
        for label, preset, tag in TUNED
    ),
    seeds=(2020,),
    metric="mean_per_class",
)
