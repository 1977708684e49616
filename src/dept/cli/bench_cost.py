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
    """measured rounds (the paper: 500); columns take turns, the median counts"""
    device: str = "cpu"
    """cpu or cuda; a GPU is waited for before and after every step"""
    part: Literal["tuning", "inference", "growth"] = "tuning"
    """tuning: a step against full tuning; inference: an adapted forward against timm's; growth: against P, B and N"""
    plot: Path | None = None
    """figure to write, with --part growth"""


COMMAND = Command("bench cost", "Measure time and memory, next to the FLOP bound.", {"Measurement": CostMeasurement})


def run(argv: list[str]) -> None:
    """Measure and print ratios, seconds and MB."""
    (given,) = parse(COMMAND, argv)
    from dept.bench.cost import measure_columns, measure_inference
    from dept.bench.growth import measure_growth, plot_growth
    from dept.data.loader import resolve_device
    from dept.runs.environment import processor

    measure: Any = {"tuning": measure_columns, "inference": measure_inference, "growth": measure_growth}[given.part]
    result: dict[str, dict[str, Any]] = measure(
        given.arch, given.batch, given.iters, device=given.device, **given.options()
    )
    if given.plot is not None:
        plot_growth(result, given.plot)
    if given.json:
        print(as_json(result))
        return
    keys = list(next(iter(result.values())))
    rows = [[name, *(f"{row[key]:,}" if key in row else "" for key in keys)] for name, row in result.items()]
    print(table(["", *keys], rows))
    print(f"Batch {given.batch}, median of {given.iters} rounds, on {processor(resolve_device(given.device))}.")
