"""Does the label-free warning tell gain from loss? `python benchmarks/warning_sign.py` asks the committed results.

Counts the adaptations of all suites that moved the accuracy: gained or lost, against the effective number of predicted
classes that rose or fell, and against the warning that a user would have seen.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from dept.bench.stored import stored_cells
from dept.runs.record import Result
from dept.runs.words import collapse_warning

RESULTS = Path(__file__).parent / "results"
SIGNS = ("more effective classes", "fewer effective classes", "warned", "not warned")


def adaptations() -> list[Result]:
    """Results of the cells that adapted a source model; training with source data begins without one."""
    stored = [one for folder in sorted(RESULTS.iterdir()) for one in stored_cells(folder)]
    return [
        one.result for one in stored if one.cell.kind != "uda" and "label_free" in one.result and one.result["gain"]
    ]


def signs(free: dict[str, Any]) -> tuple[str, str]:
    """What could be seen without labels: the direction of the effective classes, and whether there was a warning."""
    before, after = (free[when]["effective_classes"] for when in ("before", "after"))
    return SIGNS[0] if after > before else SIGNS[1], SIGNS[2] if collapse_warning(free) else SIGNS[3]


def main() -> None:
    counts: Counter[tuple[str, bool]] = Counter()
    found = adaptations()
    for result in found:
        counts.update((sign, result["gain"] > 0) for sign in signs(result["label_free"]))
    print(f"| {len(found)} adaptations | gained accuracy | lost accuracy |\n|---|---:|---:|")
    for sign in SIGNS:
        print(f"| {sign} | {counts[sign, True]} | {counts[sign, False]} |")
    losses, gains = (
        f"{counts['warned', good]} of {sum(good == (r['gain'] > 0) for r in found)}" for good in (False, True)
    )
    print(f"\nWarned of were {losses} losses, and {gains} gains.")


if __name__ == "__main__":
    main()
