"""The change of accuracy as the server keeps it: one record, whatever it rests on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dept.health.expected import expected_gain
from dept.health.prior import Prior

Record = dict[str, Any]
"""verdict, gain, low, high, basis (labels or class shares), images"""


def from_run(expected: Mapping[str, Any], images: int) -> Record:
    """What a run says of itself without labels (`result.json`)."""
    return _record(expected, expected["low"], expected["high"], "class shares", images)


def from_labels(judged: Mapping[str, Any]) -> Record:
    """What labels say (`verdict.json`)."""
    labelled = judged["right_after"] + judged["right_before"] + judged["neither"]
    low, high = judged["ci95"]
    return _record(judged, low, high, "labels", labelled)


def from_pairs(pairs: Mapping[tuple[int, int], int], prior: Prior) -> Record:
    """What images say whose class was predicted twice: (class before, class after) -> images."""
    total = sum(pairs.values())
    before, after = [0.0] * len(prior.shares), [0.0] * len(prior.shares)
    for (old, new), count in pairs.items():
        before[old] += count / total
        after[new] += count / total
    changed = sum(count for (old, new), count in pairs.items() if old != new) / total
    # The traffic says nothing about which method made the adapter, so none is trusted to leave class shares alone.
    return from_run(expected_gain(before, after, changed, total, prior, optimised=True).record(), total)


def _record(found: Mapping[str, Any], low: float, high: float, basis: str, images: int) -> Record:
    return {
        "verdict": found["verdict"],
        "gain": found["gain"],
        "low": low,
        "high": high,
        "basis": basis,
        "images": images,
    }
