"""Does the gain that is expected without labels hold? `python benchmarks/expected_gain.py` asks the committed results.

For every committed adaptation with labels: whether the interval of `health.expected` covers the true gain, how wide it
is, and what the verdict says of runs that lost or gained more than two points. Source models count as models without a
card: most of these had none. `ENDS` was set looking at the suites of the first row; the second row has the suites that
came later.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import median

from dept import methods
from dept.bench.runner import Stored
from dept.bench.stored import stored_cells
from dept.data.datasets import get
from dept.health.expected import Expected, expected_gain
from dept.health.prior import Prior

RESULTS = Path(__file__).parent / "results"
LATER = ("office-caltech", "pacs-all", "pacs-few", "pacs-styles")
# Images per class of PACS photo, the source of most runs; of other sources equal shares are assumed.
PHOTOS = (189, 202, 182, 186, 199, 280, 432)
CLASSES = {"digits": 10, "imagenet-c-mini": 1000}
MOVED = 0.02


def adaptations() -> list[Stored]:
    """The cells that adapted a source model and kept their predictions."""
    stored = [one for folder in sorted(RESULTS.iterdir()) for one in stored_cells(folder)]
    return [
        one
        for one in stored
        if one.cell.kind != "uda" and one.cell.method != "source" and "labels" in one.result.get("predictions", {})
    ]


def judged(one: Stored) -> tuple[Expected, float]:
    """The expected gain of a run, and its true one."""
    found = one.result["predictions"]
    count = CLASSES.get(one.cell.data) or len(get(one.cell.data).classes or ())
    before, after = (
        [found[when].count(label) / len(found[when]) for label in range(count)] for when in ("before", "after")
    )
    changed = sum(a != b for a, b in zip(found["before"], found["after"], strict=True)) / len(found["after"])
    photo = one.cell.data == "pacs" and one.cell.shift.sources[0].startswith("photo")
    shares = [images / sum(PHOTOS) for images in PHOTOS] if photo else [1 / count] * count
    prior = Prior(tuple(shares), "source", declared=False)
    accuracy = one.result.get("expected", {}).get("accuracy")  # of source models with a card
    made_by = one.result["auto"]["kept"] if one.cell.method == "auto" else one.cell.method
    optimised = methods.get(made_by).assumes_balance
    said = expected_gain(
        before,
        after,
        changed,
        len(found["after"]),
        prior,
        differ=one.result.get("expected", {}).get("shares") == "unknown",
        optimised=optimised,
        accuracy=accuracy,
    )
    return said, one.result["gain"]


def row(name: str, found: Sequence[tuple[Expected, float]]) -> str:
    """Counts of one group of runs."""
    covered = sum(one.low <= gain <= one.high for one, gain in found)
    lost, gained = ([one for one, gain in found if sign * gain > MOVED] for sign in (-1, 1))
    flagged, alarms = (sum(one.verdict == "harmful" for one in group) for group in (lost, gained))
    claimed = [gain for one, gain in found if one.verdict == "improved"]
    width = 100 * median(one.high - one.low for one, _ in found)
    return (
        f"| {name} | {len(found)} | {100 * covered / len(found):.0f} % | {width:.1f} | {flagged} of {len(lost)} | "
        f"{alarms} of {len(gained)} | {sum(gain > 0 for gain in claimed)} of {len(claimed)} |"
    )


def main() -> None:
    groups = {"set on these": [], "later": []}
    for one in adaptations():
        groups["later" if one.cell.suite in LATER else "set on these"].append(judged(one))
    print("| runs | number | interval covers the gain | median width, points | harmful said of losses | "
          "harmful said of gains | improved said, and true |\n|---|---:|---:|---:|---:|---:|---:|")  # fmt: skip
    for name, found in groups.items():
        if found:
            print(row(name, found))


if __name__ == "__main__":
    main()
