from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dept.bench.runner import PACKED, Cell, cells_of, pack, result_file, run_cells, shard, stored
from dept.bench.shift import Shift
from dept.cli.main import main
from dept.errors import DataError, Interrupted, UsageError
from dept.io import write_json

CELL = Cell("mini", "pacs", Shift(("photo",), ("sketch",)), "dept", "G offline", 0, {"lr": 0.1, "steps": 3})


def cells(count: int) -> list[Cell]:
    return [replace(CELL, seed=seed) for seed in range(count)]


def test_the_key_is_the_protocol() -> None:
    assert CELL.key == replace(CELL, protocol={"steps": 3, "lr": 0.1}).key  # order of entries does not matter
    changes: list[dict[str, Any]] = [
        {"suite": "x"}, {"data": "x"}, {"shift": Shift(("x",))}, {"method": "x"}, {"setting": "x"}, {"seed": 1},
        {"protocol": {"lr": 0.2, "steps": 3}}, {"protocol": {"lr": 0.1}},
    ]  # fmt: skip
    keys = {replace(CELL, **change).key for change in changes} | {CELL.key}
    assert len(keys) == len(changes) + 1 and all(len(key) == 12 for key in keys)
    # Committed results are found by this name: it must never change.
    assert Cell("s", "d", Shift.parse("a->b"), "m", "x", 0, {"k": 1}).key == _known_key()


def _known_key() -> str:
    import hashlib

    text = '{"data":"d","method":"m","protocol":{"k":1},"seed":0,"setting":"x","shift":"a->b","suite":"s"}'
    return hashlib.sha256(text.encode()).hexdigest()[:12]


@pytest.mark.parametrize(
    ("text", "sources", "targets"),
    [
        ("photo->sketch", ("photo",), ("sketch",)),
        ("a+b->c,d", ("a", "b"), ("c", "d")),
        ("clean->snow/5", ("clean",), ("snow/5",)),
        ("photo", ("photo",), ()),
    ],
)
def test_a_shift_is_read_and_written_in_one_notation(
    text: str, sources: tuple[str, ...], targets: tuple[str, ...]
) -> None:
    assert Shift.parse(text) == Shift(sources, targets) and str(Shift(sources, targets)) == text


def test_a_cell_survives_json_and_knows_its_kind() -> None:
    stored_form = json.loads(json.dumps(CELL.to_json()))
    assert Cell.from_json(stored_form) == CELL and stored_form["shift"] == "photo->sketch"
    assert CELL.kind == "offline" and replace(CELL, setting="G-long tail online").kind == "online"


def test_shards_do_not_overlap_and_miss_nothing() -> None:
    parts = [shard(cells(5), f"{number}/2") for number in (1, 2)]
    assert sorted(cell.seed for part in parts for cell in part) == list(range(5))
    with pytest.raises(UsageError, match="shard must be i/n"):
        shard(cells(5), "3/2")


def test_finished_cells_are_not_run_again(tmp_path: Path) -> None:
    ran: list[int] = []

    def run(cell: Cell) -> Any:
        ran.append(cell.seed)
        return {"top1": cell.seed / 10}

    first = list(run_cells(cells(2), run, tmp_path))
    assert ran == [0, 1] and all(outcome.fresh for outcome in first)
    second = list(run_cells(cells(3), run, tmp_path))
    assert ran == [0, 1, 2] and [outcome.fresh for outcome in second] == [False, False, True]
    assert [outcome.result["top1"] for outcome in second] == [0.0, 0.1, 0.2]


def test_one_failure_does_not_stop_the_rest(tmp_path: Path) -> None:
    def run(cell: Cell) -> Any:
        if cell.seed == 1:
            raise RuntimeError("out of luck")
        return {}

    outcomes = list(run_cells(cells(3), run, tmp_path))
    assert [outcome.result is None for outcome in outcomes] == [False, True, False]
    assert outcomes[1].error == "RuntimeError: out of luck"
    assert stored(tmp_path, cells(3)[1]) is None  # and it is tried again
    assert next(run_cells(cells(3)[1:2], lambda _: {"ok": 1}, tmp_path)).fresh


@pytest.mark.parametrize("stop", [KeyboardInterrupt(), Interrupted(3, Path("run"))])
def test_ctrl_c_does_stop(tmp_path: Path, stop: BaseException) -> None:
    def run(cell: Cell) -> Any:
        raise stop

    with pytest.raises(type(stop)):
        list(run_cells(cells(1), run, tmp_path))


def test_an_unreadable_result_is_named(tmp_path: Path) -> None:
    file = result_file(tmp_path, CELL)
    file.parent.mkdir(parents=True)
    for text in ("", "[]", '{"cell": {}}'):
        file.write_text(text)
        with pytest.raises(DataError, match=rf"{re.escape(str(file))} is not"):
            list(run_cells([CELL], lambda _: {}, tmp_path))


def test_what_is_stored(tmp_path: Path) -> None:
    list(run_cells([CELL], lambda _: {"top1": 0.5}, tmp_path))
    file = result_file(tmp_path, CELL)
    assert file == tmp_path / "mini" / CELL.key / "result.json"
    content = json.loads(file.read_text())
    assert content["cell"]["protocol"] == CELL.protocol and content["result"]["top1"] == 0.5
    assert content["result"]["seconds"] >= 0
    assert "photo->sketch" in CELL.title and "seed 0" in CELL.title


# ---- the compact form ----


def test_packed_cells_are_found_like_others(tmp_path: Path) -> None:
    cells = [replace(CELL, seed=seed) for seed in range(3)]
    list(run_cells(cells, lambda cell: result(cell.seed), tmp_path))
    loose = cells_of(tmp_path / "mini")
    assert pack(tmp_path / "mini") == 3 and pack(tmp_path / "mini") == 0
    assert [path.name for path in (tmp_path / "mini").iterdir()] == [PACKED]
    lines = (tmp_path / "mini" / PACKED).read_text().splitlines()
    assert len(lines) == 3 and [json.loads(line)["cell"]["seed"] for line in lines] == [
        one.cell.seed for one in loose.values()
    ]
    assert cells_of(tmp_path / "mini") == loose
    assert stored(tmp_path, cells[2]) == loose[cells[2].key].result
    assert all(not outcome.fresh for outcome in run_cells(cells, fails, tmp_path))  # they are not run again


def test_a_new_result_replaces_its_line(tmp_path: Path) -> None:
    for top1 in (1, 2):
        write_json(result_file(tmp_path, CELL), {"cell": CELL.to_json(), "result": result(top1)})
        assert pack(tmp_path / "mini") == 1
    assert stored(tmp_path, CELL) == result(2) and len(cells_of(tmp_path / "mini")) == 1


@pytest.mark.parametrize(
    ("text", "message"), [("{", "line 2 is not readable JSON"), ("{}", "line 2 is not the result")]
)
def test_a_damaged_line_is_named(text: str, message: str, tmp_path: Path) -> None:
    write_json(result_file(tmp_path, CELL), {"cell": CELL.to_json(), "result": result(1)})
    pack(tmp_path / "mini")
    file = tmp_path / "mini" / PACKED
    file.write_text(file.read_text() + text + "\n")
    with pytest.raises(DataError, match=message):
        cells_of(tmp_path / "mini")


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cell = replace(CELL, suite="pacs-mini")
    write_json(result_file(tmp_path, cell), {"cell": cell.to_json(), "result": result(1)})
    assert main(["bench", "pack", "--results", str(tmp_path)]) == 0
    assert capsys.readouterr().out == "pacs-mini: 1 cells packed\n"
    assert main(["bench", "pack", "--results", str(tmp_path / "none")]) == 2


def result(top1: float) -> Any:
    return {"after": {"top1": top1}, "protocol": {}}


def fails(cell: Cell) -> Any:
    raise AssertionError(f"{cell.title} is run again")
