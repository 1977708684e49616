"""A resumable runner: a cell is a protocol, known by the protocol's hash; finished cells stay.

A cell that ends is written to a folder of its own, because several processes may end cells at once. `pack` moves such
folders into one file per suite, cells.jsonl, with one line per cell. Whoever reads cells finds both.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

from dept.bench.shift import Shift
from dept.errors import DataError, Interrupted, UsageError
from dept.io import write_atomic, write_json
from dept.runs.record import Result

PACKED = "cells.jsonl"


@dataclass(frozen=True)
class Cell:
    """One number of a table: what is run on what, and everything the number depends on."""

    suite: str
    data: str
    shift: Shift
    method: str
    setting: str
    seed: int
    protocol: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def from_json(cls, stored: dict[str, Any]) -> Cell:
        """The cell that was stored so."""
        return cls(**stored | {"shift": Shift.parse(stored["shift"])})

    def to_json(self) -> dict[str, Any]:
        """What is stored, and hashed: committed results are found by it, so it must not change."""
        return {**vars(self), "shift": str(self.shift)}

    @property
    def key(self) -> str:
        """First 12 hex digits of the sha256 of the cell as canonical JSON."""
        text = json.dumps(self.to_json(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    @property
    def kind(self) -> str:
        """offline, online, uda or ensemble: the last word of the setting, which `Row.name` puts there."""
        return self.setting.rpartition(" ")[2]

    @property
    def title(self) -> str:
        """For people: what the cell is."""
        return f"{self.suite} {self.shift} {self.method} {self.setting} seed {self.seed}"


@dataclass(frozen=True)
class Stored:
    """A finished cell: what was run, and what came out."""

    cell: Cell
    result: Result


@dataclass(frozen=True)
class Outcome:
    """A cell after its turn: its result, or why it failed."""

    cell: Cell
    result: Result | None
    error: str = ""
    fresh: bool = False


def result_file(root: Path, cell: Cell) -> Path:
    """Where the result of a cell is stored."""
    return root / cell.suite / cell.key / "result.json"


def read_cell(file: Path) -> Stored:
    """A finished cell, stored as {"cell": …, "result": …}."""
    try:
        entry = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise DataError(f"{file} is not readable JSON ({error}). Without it, the cell is run again.") from error
    return _as_stored(entry, str(file))


def _as_stored(entry: Any, where: str) -> Stored:
    cell, result = (entry.get("cell"), entry.get("result")) if isinstance(entry, dict) else (None, None)
    expected = {field.name for field in fields(Cell)}
    if not (isinstance(cell, dict) and cell.keys() == expected and isinstance(result, dict)):
        raise DataError(
            f'{where} is not the result of a benchmark cell: {{"cell": …, "result": …}} is expected. '
            "A single run is named by its own folder."
        )
    return Stored(Cell.from_json(cell), cast(Result, result))


def stored(root: Path, cell: Cell) -> Result | None:
    """The stored result of a finished cell, or None."""
    file = result_file(root, cell)
    if file.exists():
        return read_cell(file).result
    one = _packed(root / cell.suite).get(cell.key)
    return None if one is None else one.result


def cells_of(folder: Path) -> dict[str, Stored]:
    """All finished cells in a suite's folder by their key, packed or not, in the order of keys."""
    loose = {file.parent.name: read_cell(file) for file in folder.glob("*/result.json")}
    return dict(sorted({**_packed(folder), **loose}.items()))


def pack(folder: Path) -> int:
    """Move the cells that have a folder of their own into the suite's file; returns how many there were.

    They replace lines of the same key: whoever ran a cell again wanted the new result.
    """
    loose = list(folder.glob("*/result.json"))
    if loose:
        rows = [{"cell": one.cell.to_json(), "result": one.result} for one in cells_of(folder).values()]
        text = "".join(json.dumps(row, separators=(",", ":")) + "\n" for row in rows)
        write_atomic(folder / PACKED, text.encode())
    for file in loose:
        shutil.rmtree(file.parent)
    return len(loose)


def _packed(folder: Path) -> Mapping[str, Stored]:
    file = folder / PACKED
    return _lines(file, file.stat().st_mtime_ns) if file.is_file() else {}


@lru_cache(maxsize=64)
def _lines(file: Path, changed: int) -> Mapping[str, Stored]:
    """Cells by key. Read once as long as the file stays as it is: a suite looks for its cells one by one."""
    found = {}
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
        where = f"{file}, line {number}"
        try:
            one = _as_stored(json.loads(line), where)
        except ValueError as error:
            raise DataError(f"{where} is not readable JSON ({error}). Restore the file.") from error
        found[one.cell.key] = one
    return found


def shard(cells: Sequence[Cell], part: str) -> list[Cell]:
    """Every n-th cell from the i-th on, for `part` "i/n": shards of one list do not overlap and miss nothing."""
    number, _, count = part.partition("/")
    if not (number.isdigit() and count.isdigit() and 1 <= int(number) <= int(count)):
        raise UsageError(f"shard must be i/n with 1 <= i <= n, such as 2/4; found {part!r}.")
    return list(cells[int(number) - 1 :: int(count)])


def run_cells(cells: Sequence[Cell], run: Callable[[Cell], Result], root: Path) -> Iterator[Outcome]:
    """Run the cells that have no result yet, in order; one that fails is reported and does not stop the rest."""
    for cell in cells:
        done = stored(root, cell)
        if done is not None:
            yield Outcome(cell, done)
            continue
        try:
            yield Outcome(cell, run_cell(cell, run, root), fresh=True)
        except Interrupted:
            raise  # the user's wish, not the cell's failure; it goes on where it was
        except Exception as error:  # a benchmark of many hours must survive one bad cell
            yield Outcome(cell, None, f"{type(error).__name__}: {error}")


def run_cell(cell: Cell, run: Callable[[Cell], Result], root: Path) -> Result:
    """Run a cell and store its result."""
    start = time.perf_counter()
    result = run(cell)
    result["seconds"] = round(time.perf_counter() - start, 1)
    write_json(result_file(root, cell), {"cell": cell.to_json(), "result": result})
    return result
