"""`dept bench cost`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from dept.cli.command import Command
from dept.cli.parse import parse
from dept.cli.parts import Json, TimmOptions
from dept.cli.show import as_json, table


@dataclass(frozen=True)
class CostMeasurement(Json, TimmOptions):
    """What is measured."""

    arch: str = "vit_base_patch16_224"
    """timm ViT, random weights"""
    batch: int = 16
    """B, images per step"""
    iters: int = 5
    """measured rounds; columns take turns, the median counts"""
    part: Literal["tuning", "inference", "growth"] = "tuning"
    """tuning: a step against full tuning; inference: an adapted forward against timm's; growth: against P, B and N"""
    plot: Path | None = None
    """figure to write, with --part growth"""


COMMAND = Command("bench cost", "Measure time and memory, next to the FLOP bound.", {"Measurement": CostMeasurement})


def run(argv: list[str]) -> None:
    """Measure and print ratios."""
    (given,) = parse(COMMAND, argv)
    from dept.bench.cost import measure_columns, measure_inference
    from dept.bench.growth import measure_growth, plot_growth

    measure = {"tuning": measure_columns, "inference": measure_inference, "growth": measure_growth}[given.part]
    result: dict[str, dict[str, Any]] = measure(given.arch, given.batch, given.iters, **given.options())
    if given.plot is not None:
        plot_growth(result, given.plot)
    if given.json:
        print(as_json(result))
        return
    keys = list(next(iter(result.values())))
    rows = [[name, *(f"{row[key]:,}" if key in row else "" for key in keys)] for name, row in result.items()]
    print(table(["", *keys], rows))
