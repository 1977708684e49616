"""The numbers that the DePT paper prints, as package data with its citation (assets/paper_tables.json).

Tables are named as our suites. A row is spelled `METHOD (BACKBONE) SETTING`: "DePT-G (ViT-B) offline",
"AdaContrast (R101) offline", "MCC (R101) uda"; without a setting where nothing is adapted: "Source (ViT-B)".
The small tables have shorter names: "DePT-G" (domainnet-multi), "DePT-S p=10" (prompt-number), "5 at 1 %"
(loss-ablation, data-ratio: row and share of the target images), "lr 5e-3" (hyper-parameters), "DePT-G50" (cost).
A column is a class, a corruption, a shift "real->clipart", a target domain, or "mean".
"""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from typing import Any

from dept.errors import UsageError


@cache
def _stored() -> dict[str, Any]:
    text = (files("dept") / "assets" / "paper_tables.json").read_text(encoding="utf-8")
    stored: dict[str, Any] = json.loads(text)
    return stored


def citation() -> str:
    """Where the numbers are from."""
    text: str = _stored()["meta"]["citation"]
    return text


def paper_rows(table: str) -> list[str]:
    """Names of the rows of a table, in the paper's order."""
    return list(_rows(table))


def paper_notes(table: str) -> list[str]:
    """What is odd about a table: averages that do not follow from its numbers, rows that are citations."""
    _rows(table)
    return list(_stored()["tables"][table].get("notes", []))


def paper_number(table: str, row: str, column: str) -> float | None:
    """What the paper prints, or None where it prints nothing; an unknown table is an error."""
    number = _rows(table).get(row, {}).get(column)
    return None if number is None else float(number)


def _rows(table: str) -> dict[str, dict[str, float]]:
    tables = _stored()["tables"]
    if table not in tables:
        raise UsageError(f"The paper has no table {table!r}; choose from {', '.join(tables)}.")
    rows: dict[str, dict[str, float]] = tables[table]["rows"]
    return rows
