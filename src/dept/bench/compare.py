"""Two stored results side by side: what differs in protocol, environment and outcome."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dept.bench.protocol import Difference, differences
from dept.errors import DataError, UsageError

OUTCOMES = (
    "accuracy", "before.top1", "after.top1", "before.mean_per_class", "after.mean_per_class", "after.nll", "after.ece",
    "gain", "label_free.changed", "tunable_model", "tunable_total", "seconds",
)  # fmt: skip


@dataclass(frozen=True)
class Comparison:
    """Differences of two results: (path, in A, in B) each."""

    protocol: tuple[Difference, ...]
    environment: tuple[Difference, ...]
    outcome: tuple[Difference, ...]
    predictions: str
    """how many predictions differ, in words; empty where one of the two has none"""

    @property
    def equal(self) -> bool:
        """Whether nothing differs but the time it took."""
        outcome = [path for path, _, _ in self.outcome if path != "seconds"]
        return not (self.protocol or self.environment or outcome)


def find_result(name: str, results: Path) -> tuple[Path, dict[str, Any]]:
    """A stored result: a result.json, a run folder, or (the beginning of) a cell's key below `results`."""
    given = Path(name)
    if given.is_file() or (given / "result.json").is_file():
        file = given if given.is_file() else given / "result.json"
        return file, read_entry(file)
    found = sorted(results.glob(f"*/{name}*/result.json")) if name and "/" not in name else []
    if not found:
        raise DataError(f"{name} is neither a result.json, nor a run folder, nor the key of a cell in {results}.")
    if len(found) > 1:
        keys = ", ".join(f"{file.parent.parent.name}/{file.parent.name}" for file in found[:6])
        raise UsageError(f"{name!r} is the beginning of {len(found)} keys ({keys}); give more of it.")
    return found[0], read_entry(found[0])


def read_entry(file: Path) -> dict[str, Any]:
    """{"cell": …, "result": …} of a benchmark cell; the result of a plain run has no cell."""
    try:
        stored = json.loads(file.read_text())
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise DataError(f"{file} is no result: {error}") from error
    entry = stored if isinstance(stored, dict) and "result" in stored else {"cell": {}, "result": stored}
    if not isinstance(entry["result"], dict) or "protocol" not in entry["result"]:
        raise DataError(f"{file} is no result: it has no protocol.")
    return entry


def compare(a: Mapping[str, Any], b: Mapping[str, Any]) -> Comparison:
    """What differs between two entries."""
    one, two = a["result"], b["result"]
    asked = differences({"cell": a["cell"]}, {"cell": b["cell"]}) if a["cell"] and b["cell"] else []
    return Comparison(
        tuple(asked + differences(one["protocol"], two["protocol"])),
        tuple(differences(one.get("environment", {}), two.get("environment", {}))),
        tuple(differences(_outcome(one), _outcome(two))),
        _predictions(one, two),
    )


def _outcome(result: Mapping[str, Any]) -> dict[str, Any]:
    found = {path: _at(result, path) for path in OUTCOMES}
    return {path: value for path, value in found.items() if value is not None}


def _at(nested: Any, path: str) -> Any:
    for name in path.split("."):
        nested = nested.get(name) if isinstance(nested, Mapping) else None
    return nested


def _predictions(a: Mapping[str, Any], b: Mapping[str, Any]) -> str:
    ours, theirs = _at(a, "predictions.after"), _at(b, "predictions.after")
    if not ours or not theirs:
        return ""
    if len(ours) != len(theirs):
        return f"{len(ours)} predictions against {len(theirs)}"
    unequal = sum(x != y for x, y in zip(ours, theirs, strict=True))
    return f"all {len(ours)} predictions are equal" if not unequal else f"{unequal} of {len(ours)} predictions differ"
