"""`domainnet`: the seven shifts of DomainNet-126, ViT-B/16 AugReg, top-1 accuracy.

Counted in steps, as the paper does ("around 6k" for every data set; 11k for the source): 15 epochs would be anything
between 2,000 and 8,000 of them here. The rows with a ResNet-50 are the suite `domainnet-r50`.
"""

from __future__ import annotations

from dept.bench.shift import shifts
from dept.bench.suite import Row, Suite
from dept.bench.suites.visda import SEEDS, vit_sources
from dept.methods.source_training import OFFICIAL

RUN = {"max_iters": 6_000}
TRAINING = OFFICIAL | {"max_iters": 11_000}

SUITE = Suite(
    name="domainnet",
    title="DomainNet-126, seven shifts, offline and online; ViT-B/16",
    data="domainnet-126",
    shifts=shifts(
        "real->clipart",
        "real->painting",
        "painting->clipart",
        "clipart->sketch",
        "sketch->painting",
        "real->sketch",
        "painting->real",
    ),
    sources=vit_sources(TRAINING),
    rows=(
        Row("Source (plain ViT)", "source", "plain", paper="Source (ViT-B)"),
        Row("Source (prompted, M=4)", "source", "G"),
        Row("Tent", "tent", "plain", preset="offline", config=RUN, paper="Tent (ViT-B) offline"),
        Row("SHOT", "shot", "plain", preset="offline", config=RUN, paper="SHOT (ViT-B) offline"),
        Row("AdaContrast", "adacontrast", "plain", preset="offline", config=RUN, paper="AdaContrast (ViT-B) offline"),
        Row("DePT-S", "dept", "S", preset="official", config=RUN, paper="DePT-S (ViT-B) offline"),
        Row("DePT-G", "dept", "G", preset="official", config=RUN, paper="DePT-G (ViT-B) offline"),
        Row("DePT-D", "dept", "D", preset="official", config=RUN, paper="DePT-D (ViT-B) offline"),
        Row(
            "AdaContrast, online", "adacontrast", "plain", "online", preset="online", paper="AdaContrast (ViT-B) online"
        ),
        Row("DePT-G, online", "dept", "G", "online", preset="online", paper="DePT-G (ViT-B) online"),
    ),
    seeds=SEEDS,
    paper="domainnet",
)
