"""`domainnet-r50`: the rows of the DomainNet-126 table with a ResNet-50, which the paper cites; top-1 accuracy.

A suite of its own, since one weights file belongs to a suite. AdaContrast's setting, where the numbers come from: 60
epochs of source training, 15 of adaptation, a source model for every seed. SHOT and AdaContrast have no bottleneck and
no weight-normalised classifier here, unlike their released code. SHOT has its rate for VisDA-C, but not the quiet start
that its authors keep for that data set.
"""

from __future__ import annotations

from dept.bench.suite import Row, Source, Suite
from dept.bench.suites.domainnet import SUITE as DOMAINNET
from dept.methods.source_training import OFFICIAL

ARCH = "resnet50.tv_in1k"
LOUD = {"quiet_start": False}

SUITE = Suite(
    name="domainnet-r50",
    title="DomainNet-126, seven shifts, offline; ResNet-50",
    data=DOMAINNET.data,
    shifts=DOMAINNET.shifts,
    sources={"source": Source(ARCH, config=OFFICIAL | {"lr": 2e-4, "epochs": 60}, per_seed=True)},
    rows=(
        Row("Source", "source", "source", paper="Source (R50)"),
        Row("Tent", "tent", "source", preset="offline", paper="Tent (R50) offline"),
        Row("SHOT", "shot", "source", preset="released", config=LOUD, paper="SHOT (R50) offline"),
        Row("AdaContrast", "adacontrast", "source", preset="offline", paper="AdaContrast (R50) offline"),
    ),
    seeds=DOMAINNET.seeds,
    paper=DOMAINNET.paper,
)
