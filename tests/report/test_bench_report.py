"""Reports of benchmark suites: numbers by hand, marks where protocols differ, bad files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from html_checks import checked

pytest.importorskip("jinja2")

from dept.cli.main import main
from dept.report.bench_page import bench_page
from dept.report.page import write_report
from dept.uda_run import WITH_SOURCE


def write_cell(root: Path, key: str, *, top1: float = 0.7, gain: float | None = 0.1, **changes: Any) -> None:
    head = {"suite": "s", "data": "d", "shift": "a->b", "method": "dept", "setting": "", "seed": 0}
    protocol = {"list_sha256": "1", "arch": "vit", "config": {"batch": 4}, **changes.pop("protocol", {})}
    result: dict[str, Any] = {
        "before": {"top1": top1 - (gain or 0.0)},
        "after": {"top1": top1, "mean_per_class": top1},
        "tunable_model": 10,
        "tunable_total": 20,
        "seconds": 5.0,
        "protocol": protocol,
        "environment": {"torch": "2", "threads": len(key)},
    }
    if gain is not None:
        result |= {"gain": gain, "gain_ci95": [gain - 0.05, gain + 0.05]}
    (root / key).mkdir(parents=True)
    (root / key / "result.json").write_text(json.dumps({"cell": head | changes, "result": result}))


def cells(folder: Path) -> dict[str, list[Any]]:
    table = bench_page(folder).sections[0].table
    assert table is not None
    return {row[0].text: row[1:] for row in table.rows}


def test_mean_and_spread_over_seeds(tmp_path: Path) -> None:
    write_cell(tmp_path, "x", top1=0.70, gain=0.10)
    write_cell(tmp_path, "y", top1=0.74, gain=0.14, seed=1)
    write_cell(tmp_path, "z", top1=0.6, gain=0.0, method="source")
    found = cells(tmp_path)
    assert found["dept"][0].text == "72.0 ± 2.8" and found["dept"][0].note == "+12.0 [+7.0, +17.0]"
    assert found["dept"][0].tone == "good" and found["dept"][0].extra == "2 seeds, 5 s"
    assert found["source"][0].text == "60.0" and found["source"][0].note == ""


def test_training_with_source_data_has_no_gain(tmp_path: Path) -> None:
    """It begins with an untrained head: 70 points above that are no achievement."""
    write_cell(tmp_path, "x", top1=0.7, gain=0.1)
    write_cell(tmp_path, "y", top1=0.9, gain=0.7, method="erm", protocol={"setting": WITH_SOURCE})
    page, found = bench_page(tmp_path), cells(tmp_path)
    assert "largest gain is +10.0 points, dept" in page.verdict and "Of 1 adapted" in page.verdict
    assert (found["erm"][0].text, found["erm"][0].note) == ("90.0", "")
    assert "untrained head" in page.sections[0].lead


def test_different_protocols_are_marked(tmp_path: Path) -> None:
    write_cell(tmp_path, "x")
    write_cell(tmp_path, "y", method="tent")
    write_cell(tmp_path, "z", method="shot", protocol={"list_sha256": "2", "config": {"batch": 8}})
    page = bench_page(tmp_path)
    found = cells(tmp_path)
    assert (found["shot"][0].mark, found["dept"][0].mark, found["tent"][0].mark) == ("a", "", "")
    assert page.sections[0].table is not None
    assert page.sections[0].table.footnotes == ("a: another protocol than most of the column, in batch, list_sha256.",)


def test_settings_of_the_method_are_no_other_protocol(tmp_path: Path) -> None:
    write_cell(tmp_path, "x")
    write_cell(tmp_path, "y", method="tent", protocol={"config": {"batch": 4, "lr": 3}, "seed": 5, "views": "t"})
    assert [row[0].mark for row in cells(tmp_path).values()] == ["", ""]


def test_unknown_intervals_and_missing_cells(tmp_path: Path) -> None:
    write_cell(tmp_path, "x", gain=None)
    write_cell(tmp_path, "y", method="tent", shift="a->c")
    found = cells(tmp_path)
    assert found["dept"][0].note == "±0" and found["dept"][1].text == "–"
    assert "1 without interval" in bench_page(tmp_path).verdict


def test_page_is_one_sound_file(tmp_path: Path) -> None:
    write_cell(tmp_path, "x", method="<script>", shift="a&b->c")
    file, page = write_report(tmp_path)
    parser = checked(file.read_text())
    assert file == tmp_path / "report.html" and "<script>" in "".join(parser.text)
    assert [section.key for section in page.sections] == ["table", "gains"] and len(page.folds) == 1
    assert write_report(tmp_path)[0].read_bytes() == file.read_bytes()


@pytest.mark.parametrize(("text", "words"), [("{", "not readable JSON"), ('{"a": 1}', "not the result of a benchmark")])
def test_broken_cells_give_a_sentence(
    text: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_cell(tmp_path, "x")
    (tmp_path / "x" / "result.json").write_text(text)
    assert main(["report", str(tmp_path)]) == 3
    assert words in capsys.readouterr().err


def test_a_suite_without_scores_gives_a_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "result.json").write_text(json.dumps({"cell": {}, "result": {"accuracy": 1.0}}))
    assert main(["report", str(tmp_path)]) == 3
    assert "no scored adaptation" in capsys.readouterr().err


def test_rows_are_named_by_what_tells_them_apart(tmp_path: Path) -> None:
    write_cell(tmp_path, "x", setting="G offline")
    write_cell(tmp_path, "y", setting="S offline")
    assert list(cells(tmp_path)) == ["dept, G", "dept, S"]
