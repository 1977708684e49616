from __future__ import annotations

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from dept.bench.runner import cells_of
from dept.bench.verify import cheapest, find_result, verify, with_key
from dept.cli import bench_verify
from dept.errors import DataError, UsageError
from dept.runs.train import TrainRun
from stored import read, small_suite, stored, training

SUITE = small_suite()


def fresh(entry: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """The result of an entry, changed."""
    return deepcopy(entry["result"]) | changes


def test_the_cheapest_cell_counts_the_training_of_its_source() -> None:
    plain = read(stored(SUITE, "Tent_1 & co", 0.6, seconds=30))
    prompted, trained = read(stored(SUITE, "DePT-G", 0.7, seconds=20)), read(training(SUITE, "G"))
    assert cheapest([plain, prompted]) is prompted
    assert cheapest([trained, plain, prompted]) is plain
    assert cheapest([trained]) is None
    assert with_key([plain, prompted], plain.cell.key[:5]) is plain
    with pytest.raises(UsageError, match="2 stored cells"):
        with_key([plain, prompted], "")


def test_equal_predictions_are_bit_equal() -> None:
    entry = stored(SUITE, "DePT-G", 0.7)
    check = verify(read(entry), fresh(entry))
    assert check.verdict == "bit-equal" and not check.failed and check.key == read(entry).cell.key


def test_unequal_predictions_in_the_same_environment_do_not_reproduce() -> None:
    entry = stored(SUITE, "DePT-G", 0.7)
    check = verify(read(entry), fresh(entry, predictions={"after": [0, 0]}))
    assert check.failed and "same environment" in check.reason


def test_elsewhere_a_point_is_allowed() -> None:
    entry = stored(SUITE, "DePT-G", 0.7)
    moved = {"environment": {"torch": "3"}, "predictions": {"after": [0, 0]}}
    near = fresh(entry, **moved, after=entry["result"]["after"] | {"top1": 0.691})
    far = fresh(entry, **moved, after=entry["result"]["after"] | {"top1": 0.68})
    check = verify(read(entry), near)
    assert check.verdict == "within tolerance" and "torch 3 instead of 2.9" in check.reason
    assert verify(read(entry), far).failed
    near["protocol"]["backbone_sha256"] = "0" * 64  # a source model trained there
    assert verify(read(entry), near).verdict == "within tolerance"


@pytest.mark.parametrize("old", [{}, {"processor": "another"}])
def test_another_processor_is_elsewhere_and_so_is_one_that_is_not_known(old: dict[str, Any]) -> None:
    entry = stored(SUITE, "DePT-G", 0.7, environment=old)
    again = {"environment": entry["result"]["environment"] | {"processor": "mine"}, "predictions": {"after": [0, 0]}}
    near = fresh(entry, **again, protocol=entry["result"]["protocol"] | {"backbone_sha256": "0" * 64})
    check = verify(read(entry), near)
    assert check.verdict == "within tolerance" and "processor mine" in check.reason


def test_another_protocol_does_not_reproduce() -> None:
    entry = stored(SUITE, "DePT-G", 0.7)
    check = verify(read(entry), fresh(entry, protocol=entry["result"]["protocol"] | {"images": 5, "new_field": 1}))
    assert check.failed and "images 5 instead of 1000" in check.reason and "new_field" not in check.reason


def test_what_was_verified_is_committed() -> None:
    results = Path("benchmarks/results")
    checks = json.loads((results / "verify.json").read_text())
    assert checks
    for check in checks:
        cell = cells_of(results / check["suite"])[check["key"]].cell
        elsewhere = any(path == "processor" for path, *_ in check["differing"])
        assert cell.title == check["title"]
        assert check["verdict"] == "bit-equal" or elsewhere


def test_command_says_why_it_does_not_check(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results = tmp_path / "pacs-mini" / "abc"
    results.mkdir(parents=True)
    (results / "result.json").write_text(json.dumps(stored(SUITE, "DePT-G", 0.7)))
    options = ["--results", str(tmp_path), "--work", str(tmp_path / "work")]
    assert bench_verify.run(["pacs-mini", "visda", *options, "--json"]) == 1  # nothing was checked
    found = json.loads(capsys.readouterr().out)
    assert [check["verdict"] for check in found] == ["not checked"] * 2
    assert "today's definition" in found[0]["reason"] and "no results" in found[1]["reason"]
    with pytest.raises(DataError, match="nowhere does not exist"):
        bench_verify.run(["visda", *options, "--data", str(tmp_path / "nowhere")])
    with pytest.raises(UsageError, match="--cell needs exactly one suite"):
        bench_verify.run(["--cell", "abc", *options])


def test_command_fails_if_a_result_does_not_reproduce(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    entry = stored(SUITE, "DePT-G", 0.7)
    results = tmp_path / "small" / "abc"
    results.mkdir(parents=True)
    (results / "result.json").write_text(json.dumps(entry))
    changed = fresh(entry, predictions={"after": [0, 0]})

    monkeypatch.setattr("dept.bench.suites.get", lambda name: SUITE)
    monkeypatch.setattr("dept.bench.execute.Executor.run", lambda self, cell: changed)
    key = read(entry).cell.key
    left = tmp_path / "work" / "small" / key / "result.json"  # of an earlier check
    left.parent.mkdir(parents=True)
    left.touch()
    assert bench_verify.run(["small", "--results", str(tmp_path), "--cell", key, "--work", str(tmp_path / "work")]) == 1
    assert not left.exists()
    assert "differs" in capsys.readouterr().out


def test_the_result_of_a_run_is_found_as_it_was(source_run: TrainRun, tmp_path: Path) -> None:
    """Without the checksum of its file, which would differ where the results are equal."""
    assert find_result(str(source_run.folder), tmp_path).result == json.loads(json.dumps(source_run.result))
