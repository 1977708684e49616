"""The search for learning rates: the same three per method, as multiples of the published one."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace

from dept import methods
from dept.bench.suite import Row
from dept.methods.full import Full

FACTORS = (0.2, 1.0, 5.0)


def published(row: Row) -> float:
    """The learning rate that a row starts from."""
    kind = methods.get(row.method)
    config = kind.preset(row.preset) if row.preset else kind.Config()
    return float(row.config.get("lr", config.lr))


def at_rate(row: Row, factor: float) -> Row:
    """The row with its learning rates times a factor."""
    rates = {"lr": factor * published(row)}
    if row.method == "full":
        rates["backbone_lr"] = factor * Full.Config().backbone_lr
    return replace(row, config={**row.config, **rates})


def at_chosen(row: Row, chosen: Mapping[str, float]) -> Row:
    """The row at its chosen rate (label -> factor), if there is one."""
    return at_rate(row, chosen[row.label]) if row.label in chosen else row


def best(found: Mapping[float, float], *, lower: bool = False) -> float:
    """The factor with the best result (factor -> result), the one nearest to the published rate among equals."""
    return min(found, key=lambda factor: (found[factor] if lower else -found[factor], abs(math.log(factor)), factor))


def searched(rows: Iterable[Row]) -> tuple[Row, ...]:
    """Every row at every rate of the search, labelled by it."""
    return tuple(_labelled(at_rate(row, factor), factor * published(row)) for row in rows for factor in FACTORS)


def _labelled(row: Row, rate: float) -> Row:
    return replace(row, label=f"{row.label}, lr {rate:g}", tag=f"{row.tag}-lr{rate:g}")
