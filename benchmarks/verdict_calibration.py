"""Is the verdict right on shifts it was not made for? `python benchmarks/verdict_calibration.py` prints the tables.

Reads the runs that `verdict_runs.py` has made, of source models without a card. Class shares are declared where the
target has the expected ones (and where a run is broken), and unknown where it does not. *Lost* and *gained*: by more
than two points.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median
from typing import Any

import torch

from dept import methods
from dept.data.corruptions import EXTRA
from dept.health.choice import Scored, shares_differ
from dept.health.disagreement import disagreeing, draw
from dept.health.expected import Expected, expected_gain
from dept.health.gain import Labelled, interval
from dept.health.prior import Prior
from dept.health.stopping import Stopping

RUNS = Path(__file__).parent / "results" / "verdict" / "runs.jsonl"
CLASSES = {"digits": 10, "characters": 36}
MOVED, LABELS = 0.02, 30


@dataclass(frozen=True)
class Judged:
    """A run, its true gain on the images that show something, and what is said of it without labels."""

    record: dict[str, Any]
    gain: float
    declared: Expected
    unknown: Expected

    @property
    def group(self) -> str:
        """Sound, broken, with other class shares, or made after everything was set."""
        run = self.record["run"]
        if run["target"] in EXTRA:
            return "untouched"
        return "broken" if run["fault"] else "other class shares" if run["shares"] else "sound"


def judged(record: dict[str, Any]) -> Judged:
    """What `dept adapt` would say of the run, with class shares declared and with unknown ones."""
    count = CLASSES[record["run"]["source"]]
    before, after, neo = (_shares(record[name], count) for name in ("before", "after", "neo"))
    changed = len(disagreeing(record["before"], record["after"])) / len(record["before"])
    even = Prior((1 / count,) * count, "uniform", declared=True)
    images = len(record["before"])
    differ = shares_differ(Scored("neo", before, neo, changed, images), even)
    optimised = methods.get(record["run"]["method"].split(" on ")[0]).assumes_balance  # shot on prompts
    declared, unknown = (
        expected_gain(before, after, changed, images, even, differ=gate, optimised=optimised)
        for gate in (False, differ)
    )
    return Judged(record, _accuracy(record, "after") - _accuracy(record, "before"), declared, unknown)


def _shares(labels: Sequence[int], count: int) -> list[float]:
    return [labels.count(label) / len(labels) for label in range(count)]


def _accuracy(record: dict[str, Any], when: str) -> float:
    rows = zip(record[when], record["labels"], record["real"], strict=True)
    right = [found == label for found, label, real in rows if real]
    return sum(right) / len(right)


def verdict_row(name: str, runs: Sequence[Judged], said: Callable[[Judged], Expected]) -> str:
    """Coverage, width, and what was said of losses and gains."""
    covered = mean(said(one).low - 1e-9 <= one.gain <= said(one).high + 1e-9 for one in runs)
    lost, gained = ([one for one in runs if sign * one.gain > MOVED] for sign in (-1, 1))
    wrong = [
        one
        for one in runs
        if (said(one).verdict == "improved" and one.gain < 0) or (said(one).verdict == "harmful" and one.gain > 0)
    ]
    flagged = [sum(said(one).verdict == "harmful" for one in group) for group in (lost, gained)]
    width = 100 * median(said(one).high - said(one).low for one in runs)
    return (
        f"| {name} | {len(runs)} | {100 * covered:.0f} % | {width:.1f} | {flagged[0]} of {len(lost)} | "
        f"{flagged[1]} of {len(gained)} | {100 * (1 - len(wrong) / len(runs)):.0f} % |"
    )


def labels_row(runs: Sequence[Judged]) -> str:
    """`check` and `judge` with up to 30 labels of images that show something."""
    errors, covered = [], []
    for number, one in enumerate(runs):
        record = one.record
        real = [position for position, is_real in enumerate(record["real"]) if is_real]
        before, after, truth = ([record[name][at] for at in real] for name in ("before", "after", "labels"))
        differing = disagreeing(before, after)
        if not differing:
            continue
        drawn = draw(differing, LABELS, seed=number)
        right = [sum(predicted[at] == truth[at] for at in drawn) for predicted in (after, before)]
        labelled = Labelled(len(real), len(differing), *right, len(drawn) - sum(right))
        low, high = interval(labelled)
        errors.append(abs(labelled.gain - one.gain))
        covered.append(low - 1e-9 <= one.gain <= high + 1e-9)
    return f"| {len(errors)} | {100 * mean(errors):.1f} | {100 * mean(covered):.1f} % |"


def stopping_row(name: str, runs: Sequence[Judged]) -> str:
    """Mean accuracy of the last state, of the one that is kept, and of the best one."""
    last, kept, best, source = [], [], [], []
    for one in runs:
        count = CLASSES[one.record["run"]["source"]]
        prior = Prior((1 / count,) * count, "uniform", declared=True)
        rule = Stopping(prior if one.unknown.shares != "unknown" else None)
        rule.begin(torch.tensor(one.record["before"]))
        chosen = source_accuracy = _accuracy(one.record, "before")
        for point in one.record["path"]:
            look = rule.look(torch.tensor(point["labels"]))
            chosen = point["top1"] if look.keep else chosen
            if look.end:
                break
        accuracies = [point["top1"] for point in one.record["path"]]
        last.append(accuracies[-1])
        kept.append(chosen)
        best.append(max([source_accuracy, *accuracies]))
        source.append(source_accuracy)
    columns = " | ".join(f"{100 * mean(values):.1f}" for values in (source, last, kept, best))
    return f"| {name} | {len(runs)} | {columns} |"


def main() -> None:
    runs = [judged(json.loads(line)) for line in RUNS.read_text().splitlines()]
    names = ("sound", "broken", "other class shares", "untouched")
    groups = {name: [one for one in runs if one.group == name] for name in names}
    print("| runs | number | interval covers the gain | median width, points | harmful said of losses | "
          "harmful said of gains | nothing wrong asserted |\n|---|---:|---:|---:|---:|---:|---:|")  # fmt: skip
    usual = groups["sound"] + groups["broken"]
    for source, remark in (("digits", " (set on these)"), ("characters", "")):
        of = [one for one in usual if one.record["run"]["source"] == source]
        for group in ("sound", "broken"):
            some = [one for one in of if one.group == group]
            print(verdict_row(f"{group}, {source}{remark}, shares declared", some, lambda one: one.declared))
    print(verdict_row("all characters, shares declared", of, lambda one: one.declared))
    if untouched := groups.pop("untouched"):
        print(verdict_row("digits, four more corruptions, shares declared", untouched, lambda one: one.declared))
    print(verdict_row("other class shares, shares unknown", groups["other class shares"], lambda one: one.unknown))
    print("\n| runs | mean error of the gain, points | interval covers it |\n|---:|---:|---:|")
    print(labels_row(runs))
    print("\n| runs | number | source model | last state | kept state | best state (with labels) |"
          "\n|---|---:|---:|---:|---:|---:|")  # fmt: skip
    for name, found in groups.items():
        print(stopping_row(name, found))


if __name__ == "__main__":
    main()
