"""`dept bench cost`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from dept.bench.cost import measure_columns, measure_inference
from dept.bench.growth import measure_growth, plot_growth
from dept.cli.parse import parse, timm_options
from dept.cli.show import table


@dataclass(frozen=True)
class Files:
    """What is measured."""

    arch: str = "vit_base_patch16_224"
    """timm ViT, random weights"""
    batch: int = 16
    """B, images per step"""
    iters: int = 5
    """measured turns; columns take turns, the median counts"""
    part: Literal["tuning", "inference", "growth"] = "tuning"
    """tuning: a step against full tuning; inference: an adapted forward against timm's; growth: against P, B and N"""
    plot: Path | None = None
    """with --part growth: figure to write"""
    timm: str = "{}"
    """further keywords for timm as JSON"""
    json: bool = False
    """print JSON"""


def run(argv: list[str]) -> int:
    """Measure and print ratios."""
    files: Files = parse("bench cost", "Time and memory beside the FLOP bound.", argv, files=Files).files
    measure = {"tuning": measure_columns, "inference": measure_inference, "growth": measure_growth}[files.part]
    result: dict[str, dict[str, Any]] = measure(files.arch, files.batch, files.iters, **timm_options(files.timm))
    if files.plot is not None:
        plot_growth(result, files.plot)
    if files.json:
        print(json.dumps(result, indent=2))
        return 0
    keys = list(next(iter(result.values())))
    rows = [[name, *(f"{row[key]:,}" if key in row else "" for key in keys)] for name, row in result.items()]
    print(table(["", *keys], rows))
    return 0
