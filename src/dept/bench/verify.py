"""Two results side by side, and whether a committed one reproduces.

A small cell of a suite is rebuilt from its stored JSON and run again. Equal versions, device, processor and threads
must give equal predictions, bit for bit. Where one of these differs, rounding does, and the accuracy may be off by at
most one point.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, cast

from dept.bench.protocol import MISSING, Difference, differences, flat, sentence
from dept.bench.runner import PACKED, Cell, Stored, cells_of, read_cell
from dept.bench.suite import TRAINING
from dept.errors import DataError, UsageError
from dept.runs.read import read_result
from dept.runs.record import Result

OUTCOMES = (
    "accuracy", "before.top1", "after.top1", "before.mean_per_class", "after.mean_per_class", "after.nll", "after.ece",
    "gain", "label_free.changed", "tunable_model", "tunable_total", "seconds",
)  # fmt: skip
TOLERANCE = 1.0
"""points of accuracy, where versions, device, processor or threads differ"""

Verdict = Literal["bit-equal", "within tolerance", "differs", "not checked"]


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


@dataclass(frozen=True)
class Found:
    """A result file; that of a plain run has no cell."""

    file: Path
    result: Result
    cell: Cell | None = None


def find_result(name: str, results: Path) -> Found:
    """A stored result: a result.json, a run folder, or (the beginning of) a cell's key below `results`."""
    given = Path(name)
    if given.is_file() or (given / "result.json").is_file():
        return _read(given if given.is_file() else given / "result.json")
    found = {key: one for suite in sorted(results.glob("*/")) for key, one in _with_key(suite, name)} if name else {}
    if not found:
        raise DataError(f"{name} is neither a result.json, nor a run folder, nor the key of a cell in {results}.")
    if len(found) > 1:
        keys = ", ".join(list(found)[:6])
        raise UsageError(f"{name!r} is the beginning of {len(found)} keys ({keys}); give more of it.")
    return next(iter(found.values()))


def _with_key(suite: Path, name: str) -> Iterator[tuple[str, Found]]:
    """Suite and key of the cells whose key begins so, each with its result."""
    for key, one in cells_of(suite).items():
        if key.startswith(name):
            loose = suite / key / "result.json"
            yield f"{suite.name}/{key}", Found(loose if loose.exists() else suite / PACKED, one.result, one.cell)


def _read(file: Path) -> Found:
    try:
        stored = json.loads(file.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise DataError(f"{file} is not a result: {error}") from error
    cell, result = None, stored
    if isinstance(stored, dict) and "result" in stored:
        cell, result = read_cell(file).cell, stored["result"]
    elif isinstance(stored, dict):
        result = read_result(file)
    if not isinstance(result, dict) or "protocol" not in result:
        raise DataError(f"{file} is not a result: it has no protocol.")
    return Found(file, cast(Result, result), cell)


def compare(one: Result, two: Result, cells: tuple[Cell | None, Cell | None] = (None, None)) -> Comparison:
    """What differs between two results, and between the cells that they belong to, if both do."""
    asked = [{"cell": cell.to_json()} for cell in cells if cell is not None]
    return Comparison(
        tuple((differences(*asked) if len(asked) == 2 else []) + differences(one["protocol"], two["protocol"])),
        tuple(differences(one.get("environment", {}), two.get("environment", {}))),
        tuple(differences(_outcome(one), _outcome(two))),
        _predictions(one, two),
    )


def _outcome(result: Result) -> dict[str, Any]:
    return {path: value for path, value in flat(result).items() if path in OUTCOMES and value is not None}


def _predictions(a: Result, b: Result) -> str:
    ours, theirs = (result.get("predictions", {}).get("after") for result in (a, b))
    if not ours or not theirs:
        return ""
    if len(ours) != len(theirs):
        return f"{len(ours)} predictions against {len(theirs)}"
    unequal = sum(x != y for x, y in zip(ours, theirs, strict=True))
    return f"all {len(ours)} predictions are equal" if not unequal else f"{unequal} of {len(ours)} predictions differ"


# -- running a stored cell again ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Check:
    """What came out of one suite."""

    suite: str
    verdict: Verdict
    reason: str
    key: str = ""
    title: str = ""
    stored: float | None = None
    """accuracy in percent as committed"""
    measured: float | None = None
    differing: tuple[Difference, ...] = field(default=(), repr=False)

    @property
    def failed(self) -> bool:
        """Whether a result did not reproduce."""
        return self.verdict == "differs"


def cheapest(cells: Sequence[Stored]) -> Stored | None:
    """The cell that is quickest to run again, the training of its source model included where that is known."""
    trained = {one.cell.key: _seconds(one) for one in cells if one.cell.method == TRAINING}
    runs = [one for one in cells if one.cell.method != TRAINING and "after" in one.result]

    def cost(one: Stored) -> tuple[float, str]:
        return _seconds(one) + trained.get(one.cell.protocol.get("source", ""), 0.0), one.cell.key

    return min(runs, key=cost, default=None)


def with_key(cells: Sequence[Stored], key: str) -> Stored:
    """The stored cell whose key begins like this."""
    found = [one for one in cells if one.cell.key.startswith(key)]
    if len(found) != 1:
        raise UsageError(f"{len(found)} stored cells have a key that begins with {key!r}; one is needed.")
    return found[0]


def verify(stored: Stored, fresh: Result) -> Check:
    """The verdict on a fresh result of a stored cell."""
    cell, found = stored.cell, compare(stored.result, fresh)
    old, new = (_accuracy(result) for result in (stored.result, fresh))
    # Excused is what an older version did not write down and, elsewhere, the bits of a source model trained there.
    excused = ("backbone_sha256",) if found.environment else ()
    other = [(p, a, b) for p, a, b in found.protocol if MISSING not in (a, b) and p not in excused]
    ours, theirs = (result.get("predictions", {}).get("after") for result in (stored.result, fresh))
    equal = ours == theirs if ours and theirs else old == new
    verdict, reason = _verdict(other, found.environment, old, new, equal=equal)
    return Check(cell.suite, verdict, reason, cell.key, cell.title, old, new, (*found.protocol, *found.environment))


def _verdict(
    protocol: Sequence[Difference], environment: Sequence[Difference], old: float, new: float, *, equal: bool
) -> tuple[Verdict, str]:
    if protocol:
        return "differs", f"the protocol is another one: {sentence([(p, b, a) for p, a, b in protocol])}"
    if equal:
        return "bit-equal", "all predictions are equal"
    gap = f"{old:.2f} % stored, {new:.2f} % now"
    if not environment:
        return "differs", f"{gap}, in the same environment, where every prediction must be equal"
    where = sentence([(p, b, a) for p, a, b in environment])
    if abs(old - new) <= TOLERANCE:
        return "within tolerance", f"{gap}, at most {TOLERANCE:g} point apart; {where}"
    return "differs", f"{gap}, more than {TOLERANCE:g} point apart; {where}"


def _accuracy(result: Result) -> float:
    return 100.0 * float(result["after"]["top1"] if "after" in result else result["accuracy"])


def _seconds(one: Stored) -> float:
    return one.result.get("seconds", float("inf"))
