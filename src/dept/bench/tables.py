"""Tables of stored cells, as Markdown: mean ± sd over seeds, and the gain with its interval."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

LABELS = {
    ("plain", "source"): "Source (plain ViT)",
    ("plain", "tent"): "Tent, 300 steps",
    ("S", "source"): "Source (prompted, M=1)",
    ("G", "source"): "Source (prompted, M=4)",
    ("D", "source"): "Source (prompted, M=12)",
    ("S", "dept"): "DePT-S",
    ("G", "dept"): "DePT-G",
    ("D", "dept"): "DePT-D",
    ("G-lean", "dept"): "DePT-G --lean",
}


def stored_cells(folder: Path) -> list[dict[str, Any]]:
    """All finished cells of a suite."""
    return [json.loads(file.read_text()) for file in sorted(folder.glob("*/result.json"))]


def accuracy_table(cells: Sequence[dict[str, Any]], targets: Sequence[str]) -> str:
    """One row per method, one column per target: top-1 (mean per class), and the gain over its own source model."""
    lines = [
        "| method | tuned | " + " | ".join(targets) + " |",
        "|---|---:|" + "---:|" * len(targets),
    ]
    for (variant, method), label in LABELS.items():
        columns = [_matching(cells, variant, method, target) for target in targets]
        if any(columns):
            tuned = next(column[0]["tunable_model"] for column in columns if column)
            lines.append(f"| {label} | {tuned:,} | " + " | ".join(_cell(column) for column in columns) + " |")
    return "\n".join(lines)


def _matching(cells: Sequence[dict[str, Any]], variant: str, method: str, target: str) -> list[dict[str, Any]]:
    return [
        entry["result"]
        for entry in cells
        if entry["cell"]["method"] == method
        and entry["cell"]["setting"].split()[0] == variant
        and entry["cell"]["shift"].endswith(f"->{target}")
    ]


def _cell(results: list[dict[str, Any]]) -> str:
    if not results:
        return "–"
    top1 = [100 * result["after"]["top1"] for result in results]
    mean = 100 * statistics.mean(result["after"]["mean_per_class"] for result in results)
    spread = f" ± {statistics.stdev(top1):.1f}" if len(top1) > 1 else ""
    text = f"{statistics.mean(top1):.1f}{spread} ({mean:.1f})"
    if results[0]["method"] == "source":
        return text
    gain = 100 * statistics.mean(result["gain"] for result in results)
    low = 100 * statistics.mean(result["gain_ci95"][0] for result in results)
    high = 100 * statistics.mean(result["gain_ci95"][1] for result in results)
    return f"{text}, {gain:+.1f} [{low:+.1f}, {high:+.1f}]"
