"""The search for learning rates: the same three per method, as multiples of the published one."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace

from dept import methods
from dept.bench.suite import Row
from dept.methods.base import BaseConfig
from dept.methods.full import Full

FACTORS = (0.2, 1.0, 5.0)


def published_lr(row: Row) -> float:
    """The learning rate that a row starts from."""
    return float(row.config.get("lr", _config(row).lr))


def scaled_lr(row: Row, factor: float) -> Row:
    """The row with its learning rates times a factor."""
    rates = {"lr": factor * published_lr(row)}
    config = _config(row)
    if isinstance(config, Full.Config):
        rates["backbone_lr"] = factor * config.backbone_lr
    return replace(row, config={**row.config, **rates})


def _config(row: Row) -> BaseConfig:
    """The settings that a row starts from."""
    kind = methods.get(row.method)
    return kind.preset(row.preset) if row.preset else kind.Config()


def at_chosen_lr(row: Row, chosen: Mapping[str, float]) -> Row:
    """The row at its chosen learning rate (label -> factor), if there is one."""
    return scaled_lr(row, chosen[row.label]) if row.label in chosen else row


def best(found: Mapping[float, float], *, lower: bool = False) -> float:
    """The factor with the best result (factor -> result), the one nearest to the published one among equals."""
    return min(found, key=lambda factor: (found[factor] if lower else -found[factor], abs(math.log(factor)), factor))


def searched(rows: Iterable[Row]) -> tuple[Row, ...]:
    """Every row at every learning rate of the search, labelled by it."""
    return tuple(
        replace(scaled_lr(row, factor), label=f"{row.label}, lr {lr:g}", tag=f"{row.tag}-lr{lr:g}")
        for row in rows
        for factor in FACTORS
        for lr in (factor * published_lr(row),)
    )
