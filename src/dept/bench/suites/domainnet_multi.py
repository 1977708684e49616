"""`domainnet-multi`: three domains of DomainNet-126 together, adapted to the fourth; ViT-B/16 AugReg, top-1 accuracy.

ERM is the plain model trained on the union of the three. DePT-G learns shared prompts and some for each domain (25 of
the 50 per stage), whose mean goes into the adaptation. SHOT adapts the three single-source models and adds up their
predictions, as in the paper.
"""

from __future__ import annotations

from dept.bench.shift import Shift
from dept.bench.suite import Row, Source, Suite
from dept.bench.suites.domainnet import RUN, TRAINING
from dept.bench.suites.visda import ARCH, SEEDS

DOMAINS = ("real", "clipart", "sketch", "painting")

SUITE = Suite(
    name="domainnet-multi",
    title="DomainNet-126, three domains -> the fourth, multi-source; ViT-B/16",
    data="domainnet-126",
    shifts=tuple(Shift(tuple(other for other in DOMAINS if other != target), (target,)) for target in DOMAINS),
    sources={"ERM": Source(ARCH, config=TRAINING), "G": Source(ARCH, 4, 50, config=TRAINING)},
    rows=(
        Row("ERM on the union", "source", "ERM", paper="ERM"),
        Row("Source (shared and domain prompts)", "source", "G"),
        Row("SHOT, ensemble of single sources", "shot", "ERM", "ensemble", preset="offline", config=RUN, paper="SHOT"),
        Row("DePT-G", "dept", "G", preset="official", config=RUN, paper="DePT-G"),
    ),
    seeds=SEEDS,
    paper="domainnet-multi",
)
