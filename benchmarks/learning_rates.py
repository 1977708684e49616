"""How the learning rates of the small suites were chosen: `python benchmarks/learning_rates.py` asks the results.

Every method was tried at three rates on source images under corruptions that no target has. The best is chosen, the
published one among equals.
"""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

from dept.bench.entry import headline
from dept.bench.learning_rates import FACTORS, best, published_lr, searched
from dept.bench.stored import Results, choose, suite_cells
from dept.bench.suite import Row
from dept.bench.suites import imagenet_c_mini, imagenet_c_select, pacs_mini, pacs_select

RESULTS = Path(__file__).parent / "results"
# Where rates are searched, and for whom.
SEARCHES: dict[ModuleType, ModuleType] = {pacs_select: pacs_mini, imagenet_c_select: imagenet_c_mini}


def tried(results: Results, row: Row) -> dict[float, float]:
    """Headline of a row at each factor of its published rate, as far as there are results."""
    suite, found = results.suite, {}
    for factor, variant in zip(FACTORS, searched([row]), strict=True):
        kept = results.of(variant, suite.shifts[0]).kept
        if kept:
            found[factor] = headline(kept[0].result["after"], suite.metric)
    return found


def search(select: ModuleType) -> list[tuple[Row, dict[float, float], float | None]]:
    """Each row with what was found and the best factor (none while a rate is missing)."""
    suite, result = select.SUITE, []
    results = choose(suite, suite_cells(suite, RESULTS))
    for row in select.SEARCHED:
        found = tried(results, row)
        complete = len(found) == len(FACTORS)
        result.append((row, found, best(found, lower=suite.metric == "error") if complete else None))
    return result


def main() -> None:
    for select in SEARCHES:
        metric = "error" if select.SUITE.metric == "error" else "top-1"
        print(f"`{select.SUITE.name}`, {metric} in %:\n")
        print("| method | published rate | a fifth | published | five times | chosen |\n|---|---:|---:|---:|---:|---:|")
        for row, found, factor in search(select):
            shown = " | ".join(f"{found[f]:.1f}" if f in found else "–" for f in FACTORS)
            rate = "–" if factor is None else f"{factor * published_lr(row):g}"
            print(f"| {row.label} | {published_lr(row):g} | {shown} | {rate} |")
        print()


if __name__ == "__main__":
    main()
