"""`imagenet-c-mini`: ViT-Ti/16 at 224 px, two ImageNet validation crops per class, severity 5, online.

The crops are used as they are (identity resize). The first image per class is the stand-in source set of what needs
source data (DePT's prompts, CFA's statistics, EATA's Fisher weights, TTT's rotation head; the backbone stays as it
is), the second one is corrupted and streamed: 1,000 images, batch 64, reset per corruption.
"""

from __future__ import annotations

from dataclasses import replace

from dept.bench.learning_rates import at_chosen_lr
from dept.bench.shift import Shift
from dept.bench.suite import Row, Source, Suite
from dept.bench.suites.pacs_mini import ARCH, SHORT
from dept.data.corruptions import CORRUPTIONS

BATCH = {"batch": 64}
IDENTITY = {"resize": 224}
# One image per class is little: the backbone is frozen, the pretrained head is where training starts. Prompts learn at
# the released rate (ten times lr), the heads with them.
STAND_IN = {"freeze_backbone": True, "epochs": 5, "batch": 32, "lr": 5e-4}
# At the prompts' rate the rotation head stays above the cross-entropy of chance.
ROTATION = STAND_IN | {"aux": "rotation", "lr": 1e-4}

SOURCES = (
    Row("Source", "source", "plain", "online", config=BATCH),
    Row("Source (prompted, M=4)", "source", "G", "online", config=BATCH),
    Row("Source (rotation head)", "source", "rotation", "online", config=BATCH),
)
ADAPTED = (
    Row("Tent", "tent", "plain", "online", preset="online", config=BATCH),
    Row("SHOT-IM", "shot", "plain", "online", preset="online-ln", config=BATCH),
    Row("CFA (stand-in statistics)", "cfa", "plain", "online", config=BATCH, extra={"stats": True}),
    Row("EATA (stand-in Fisher)", "eata", "plain", "online", config=BATCH, extra={"stats": True}),
    Row("SAR", "sar", "plain", "online", config=BATCH),
    Row("NEO", "neo", "plain", "online", config=BATCH | {"prior_count": 0.0}),
    Row("T3A", "t3a", "plain", "online", config=BATCH),
    # Every class comes once, so a vote of neighbours could only be wrong: the bank stays too young for it.
    Row("AdaContrast", "adacontrast", "plain", "online", preset="online", config=BATCH | SHORT),
    Row("TTT (stand-in rotation head)", "ttt", "rotation", "online", preset="online", config=BATCH),
    Row("Full (stand-in prompts)", "full", "G", "online", preset="online", config=BATCH),
    Row("DePT-G (stand-in prompts)", "dept", "G", "online", preset="online", config=BATCH),
)
# The best of three rates on corrupted stand-in images (`imagenet-c-select`), as a multiple of the published one.
CHOSEN = {
    "Tent": 0.2,
    "CFA (stand-in statistics)": 5.0,
    "EATA (stand-in Fisher)": 5.0,
    "TTT (stand-in rotation head)": 5.0,
    "Full (stand-in prompts)": 5.0,
    "DePT-G (stand-in prompts)": 5.0,
}
# For comparison; Tent, EATA and DePT-G are run on all 15 corruptions at these.
PUBLISHED = tuple(
    replace(row, label=f"{row.label}, published rate", tag="-published")
    for row in ADAPTED
    if row.method in ("tent", "cfa", "eata", "ttt", "dept")
)
# Does it hurt that 64 images are asked to spread over 1,000 classes? No: without it all is worse.
UNEVEN = Row(
    "DePT-G (stand-in prompts), no class diversity",
    "dept",
    "G",
    "online",
    tag="-uneven",
    preset="online",
    config=BATCH | {"lr": 0.025, "w_class": 0.0},
)

# Newer rivals at their published rates. They have no part in the search, and DePT+ takes its rate as it is everywhere.
COME = BATCH | {"entropy": "come"}
NEWER = (
    Row("Tent with COME, published rate", "tent", "plain", "online", tag="-come", preset="online", config=COME),
    Row(
        "EATA with COME (stand-in Fisher), published rate",
        "eata",
        "plain",
        "online",
        tag="-come",
        config=COME,
        extra={"stats": True},
    ),
    Row("DeYO, published rate", "deyo", "plain", "online", preset="online", config=BATCH),
    Row("DePT+ (stand-in prompts)", "dept+", "G", "online", preset="online", config=BATCH),
)

SUITE = Suite(
    name="imagenet-c-mini",
    title="15 corruptions of 1,000 ImageNet crops at severity 5, online; ViT-Ti/16",
    data="imagenet-c-mini",
    shifts=tuple(Shift(("clean",), (f"{name}/5",)) for name in CORRUPTIONS),
    sources={
        "plain": Source(ARCH, config=None, extra=IDENTITY),
        "G": Source(ARCH, 4, 20, config=STAND_IN, extra=IDENTITY),
        "rotation": Source(ARCH, config=ROTATION, extra=IDENTITY),
    },
    rows=(*SOURCES, *(at_chosen_lr(row, CHOSEN) for row in ADAPTED), *PUBLISHED, UNEVEN, *NEWER),
    metric="error",
)
