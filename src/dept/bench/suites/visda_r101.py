"""`visda-r101`: the half of the paper's main table with a ResNet-101, which the paper cites.

A suite of its own, since one weights file belongs to a suite. Methods with source data start from the pretrained
network, as their authors do, and follow TLL's recipes; expect them above the cited numbers, which are older.
Test-time methods start from a source model trained at AdaContrast's rate, without clipping; SHOT and AdaContrast have
no bottleneck and no weight-normalised classifier here, unlike their released code.
"""

from __future__ import annotations

from dept.bench.suite import Row, Source, Suite
from dept.bench.suites.visda import SEEDS, SHIFT
from dept.methods.source_training import OFFICIAL

ARCH = "resnet101.tv_in1k"

SUITE = Suite(
    name="visda-r101",
    title="VisDA-C train -> validation with source data (UDA) and without; ResNet-101",
    data="visda",
    shifts=(SHIFT,),
    sources={"source": Source(ARCH, config=OFFICIAL | {"lr": 2e-4}), "pretrained": Source(ARCH, config=None)},
    rows=(
        Row("DANN (source data)", "dann", "pretrained", "uda", paper="DANN (R101) uda"),
        Row("CDAN (source data)", "cdan", "pretrained", "uda", preset="visda", paper="CDAN (R101) uda"),
        Row("CAN (source data)", "can", "pretrained", "uda", preset="released", paper="CAN (R101) uda"),
        Row("SWD (source data)", "swd", "pretrained", "uda", paper="SWD (R101) uda"),
        Row("MCC (source data)", "mcc", "pretrained", "uda", preset="visda", paper="MCC (R101) uda"),
        Row("Source", "source", "source", paper="Source (R101)"),
        Row("Tent", "tent", "source", preset="offline", paper="Tent (R101) offline"),
        Row("SHOT", "shot", "source", preset="released", paper="SHOT (R101) offline"),
        Row("AdaContrast", "adacontrast", "source", preset="offline", paper="AdaContrast (R101) offline"),
    ),
    seeds=SEEDS,
    metric="mean_per_class",
    paper="visda",
)
