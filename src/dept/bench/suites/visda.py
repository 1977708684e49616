"""`visda`: the paper's main table. VisDA-C, synthetic -> real, ViT-B/16 AugReg, mean of the accuracies per class.

Source models: 10 epochs, batch 128, the released recipe (preset `official`: gradients are not clipped). Adaptation: all
55,388 target images, 15 epochs, batch 128, every method with its published constants; evaluated on the same images
(transductive), last iterate. Online: one pass in random order. Seeds are those of AdaContrast. The half of the table
with a ResNet-101 is the suite `visda-r101`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dept.bench.shift import Shift
from dept.bench.suite import Row, Source, Suite
from dept.methods.source_training import OFFICIAL

ARCH = "vit_base_patch16_224.augreg_in21k_ft_in1k"
SHIFT = Shift(("train",), ("validation",))
STAGES = {"S": 1, "G": 4, "D": 12}
SEEDS = (2020, 2021, 2022)
STATS = {"stats": True}


def vit_sources(config: Mapping[str, Any]) -> dict[str, Source]:
    """The plain model, and those with 50 prompts per stage; `config` changes their training."""
    prompted = {name: Source(ARCH, stages, 50, config=config) for name, stages in STAGES.items()}
    return {"plain": Source(ARCH, config=config)} | prompted


OFFLINE = (
    Row("Source (plain ViT)", "source", "plain", paper="Source (ViT-B)"),
    Row("Source (prompted, M=1)", "source", "S"),
    Row("Source (prompted, M=4)", "source", "G"),
    Row("Source (prompted, M=12)", "source", "D"),
    Row("Tent", "tent", "plain", preset="offline", paper="Tent (ViT-B) offline"),
    Row("SHOT", "shot", "plain", preset="offline", config={"quiet_start": True}, paper="SHOT (ViT-B) offline"),
    Row("AdaContrast", "adacontrast", "plain", preset="offline", paper="AdaContrast (ViT-B) offline"),
    Row("Full (DePT's objective, all weights)", "full", "G", preset="official"),
    Row("DePT-S", "dept", "S", preset="official", paper="DePT-S (ViT-B) offline"),
    Row("DePT-G", "dept", "G", preset="official", paper="DePT-G (ViT-B) offline"),
    Row("DePT-D", "dept", "D", preset="official", paper="DePT-D (ViT-B) offline"),
)
ONLINE = (
    Row("Tent, online", "tent", "plain", "online", preset="online"),
    Row("SHOT-IM, online (norm layers)", "shot", "plain", "online", preset="online-ln"),
    Row("CFA, online (source statistics)", "cfa", "plain", "online", preset="online", extra=STATS),
    Row("AdaContrast, online", "adacontrast", "plain", "online", preset="online", paper="AdaContrast (ViT-B) online"),
    Row("DePT-G, online", "dept", "G", "online", preset="online", paper="DePT-G (ViT-B) online"),
)

SUITE = Suite(
    name="visda",
    title="VisDA-C train -> validation, offline and online; ViT-B/16",
    data="visda",
    shifts=(SHIFT,),
    sources=vit_sources(OFFICIAL),
    rows=OFFLINE + ONLINE,
    seeds=SEEDS,
    metric="mean_per_class",
    paper="visda",
)
