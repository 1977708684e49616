"""Does a committed result reproduce? A small cell of a suite is rebuilt from its stored JSON and run again.

Equal versions, device, processor and threads must give equal predictions, bit for bit. Where one of these differs,
rounding does, and the accuracy may be off by at most one point.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from dept.bench.compare import compare
from dept.bench.found import key_of
from dept.bench.protocol import MISSING, Difference, sentence
from dept.bench.runner import Cell
from dept.bench.suite import TRAINING
from dept.errors import UsageError

TOLERANCE = 1.0
"""points of accuracy, where versions, device, processor or threads differ"""

Verdict = Literal["bit-equal", "within tolerance", "differs", "not checked"]


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


def cheapest(entries: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """The cell that is quickest to run again, the training of its source model included where that is known."""
    trained = {key_of(entry): _seconds(entry) for entry in entries if entry["cell"]["method"] == TRAINING}
    runs = [entry for entry in entries if entry["cell"]["method"] != TRAINING and "after" in entry["result"]]

    def cost(entry: Mapping[str, Any]) -> tuple[float, str]:
        return _seconds(entry) + trained.get(entry["cell"]["protocol"].get("source", ""), 0.0), key_of(entry)

    return min(runs, key=cost, default=None)


def with_key(entries: Sequence[Mapping[str, Any]], key: str) -> Mapping[str, Any]:
    """The stored cell whose key begins like this."""
    found = [entry for entry in entries if key_of(entry).startswith(key)]
    if len(found) != 1:
        raise UsageError(f"{len(found)} stored cells have a key that begins with {key!r}; one is needed.")
    return found[0]


def verify(entry: Mapping[str, Any], run: Callable[[Cell], dict[str, Any]]) -> Check:
    """Run a stored cell again and compare.

    Args:
        run: gives the result of a cell, as `Executor.run` does.
    """
    cell = Cell(**entry["cell"])
    return judged(entry, {"cell": asdict(cell), "result": run(cell)})


def judged(stored: Mapping[str, Any], fresh: Mapping[str, Any]) -> Check:
    """The verdict on a fresh result beside the stored one."""
    found = compare(stored, fresh)
    old, new = (_accuracy(entry["result"]) for entry in (stored, fresh))
    other = [one for one in found.protocol if not _excused(one, moved=bool(found.environment))]
    verdict, reason = _verdict(other, found.environment, old, new, equal=_equal(stored["result"], fresh["result"]))
    cell = Cell(**stored["cell"])
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


def _excused(one: Difference, *, moved: bool) -> bool:
    """What an older version did not write down; and, elsewhere, the bits of a source model that was trained there."""
    return MISSING in one[1:] or (moved and one[0] == "backbone_sha256")


def _equal(stored: Mapping[str, Any], fresh: Mapping[str, Any]) -> bool:
    """All predictions, where both list them; the accuracy otherwise."""
    ours, theirs = (result.get("predictions", {}).get("after") for result in (stored, fresh))
    if ours and theirs:
        return bool(ours == theirs)
    return _accuracy(stored) == _accuracy(fresh)


def _accuracy(result: Mapping[str, Any]) -> float:
    return 100.0 * float(result["after"]["top1"] if "after" in result else result["accuracy"])


def _seconds(entry: Mapping[str, Any]) -> float:
    return float(entry["result"].get("seconds", float("inf")))
