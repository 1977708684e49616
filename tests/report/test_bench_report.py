"""Reports of benchmark suites: the table of `dept bench`, its gains as figures, bad files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from html_checks import checked

pytest.importorskip("jinja2")

from dept.bench import suites
from dept.bench.shift import shifts
from dept.bench.suite import Row, Suite
from dept.cli.main import main
from dept.report.bench_page import bench_page
from dept.report.page import write_report
from stored import small_suite, stored, training


@pytest.fixture
def suite(monkeypatch: pytest.MonkeyPatch) -> Suite:
    """A suite that is registered during a test."""
    made = small_suite()
    known = suites.available
    monkeypatch.setattr(suites, "available", lambda: [*known(), made.name])
    monkeypatch.setattr(suites, "get", lambda name: made)
    return made


def write(root: Path, *entries: dict[str, Any]) -> Path:
    for number, entry in enumerate(entries):
        folder = root / entry["cell"]["suite"] / str(number)
        folder.mkdir(parents=True)
        (folder / "result.json").write_text(json.dumps(entry))
    return root / entries[0]["cell"]["suite"]


def cells(folder: Path) -> dict[str, list[Any]]:
    table = bench_page(folder).sections[0].table
    assert table is not None
    return {row[0].text: row[1:] for row in table.rows}


def test_numbers_are_those_of_the_table(suite: Suite, tmp_path: Path) -> None:
    folder = write(
        tmp_path,
        training(suite, "G"),
        stored(suite, "DePT-G", 0.70, before=0.6),
        stored(suite, "DePT-G", 0.74, before=0.6, seed=1),
        stored(suite, "Source", 0.6, before=0.6),
        stored(suite, "Source", 0.5, before=0.5, shift="photo->cartoon"),
    )
    page, found = bench_page(folder), cells(folder)
    first = found["DePT-G"][0]
    assert (first.text, first.note, first.tone) == ("72.0 ± 2.8", "+12.0 [+10.0, +14.0]", "good")
    assert first.best and first.extra == "62.0 per class, 2 seeds"
    assert found["DePT-G"][1].text == "–"
    assert found["Source"][0].note == "" and found["Source"][2].text == "55.0"  # the mean of both columns
    assert "Of 1 adaptations, 1 are clearly better" in page.verdict
    assert "The largest gain is DePT-G on sketch: +12.0 [+10.0, +14.0] points" in page.verdict
    assert [section.key for section in page.sections] == ["table", "gains", "sources"]
    notes = " ".join(page.sections[0].table.footnotes)  # type: ignore[union-attr]
    assert "No results yet: Tent_1 & co" in notes and "Protocol: weights vit_tiny" in notes


def test_results_of_other_protocols_are_not_averaged(suite: Suite, tmp_path: Path) -> None:
    short = stored(suite, "DePT-G", 0.2, seed=1)
    short["cell"]["protocol"]["config"] = {"max_iters": 2}
    folder = write(tmp_path, stored(suite, "DePT-G", 0.7), short)
    page = bench_page(folder)
    assert cells(folder)["DePT-G"][0].text == "70.0"
    assert any("Not averaged: DePT-G" in note for note in page.sections[0].table.footnotes)  # type: ignore[union-attr]


def test_a_lower_error_is_better(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    suite = small_suite(metric="error")
    monkeypatch.setattr(suites, "available", lambda: [suite.name])
    monkeypatch.setattr(suites, "get", lambda name: suite)
    good, bad = stored(suite, "DePT-G", 0.7), stored(suite, "Tent_1 & co", 0.4)
    page = bench_page(write(tmp_path, good, bad))
    assert "1 are clearly better and 1 clearly worse than their baseline" in page.verdict
    assert "DePT-G on sketch: −20.0 [−22.0, −18.0] points of error" in page.verdict
    (figure,) = page.sections[1].figures
    assert 'class="dot good"' in figure.svg.split("DePT-G")[-1] and "change in error" in figure.svg


def test_many_columns_show_gains_in_the_mean_only(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    texts = [f"photo->t{n}" for n in range(7)]
    suite = small_suite(shifts=shifts(*texts))
    monkeypatch.setattr(suites, "available", lambda: [suite.name])
    monkeypatch.setattr(suites, "get", lambda name: suite)
    folder = write(tmp_path, *(stored(suite, "DePT-G", 0.7, shift=text) for text in texts))
    table = bench_page(folder).sections[0].table
    assert table is not None and table.wide
    assert [bool(cell.note) for cell in table.rows[0][1:]] == [False] * 7 + [True]


def test_page_is_one_sound_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    suite = small_suite(rows=(Row("<script>", "tent", "plain"),), shifts=shifts("a&b->c"))
    monkeypatch.setattr(suites, "available", lambda: [suite.name])
    monkeypatch.setattr(suites, "get", lambda name: suite)
    folder = write(tmp_path, stored(suite, "<script>", 0.7, shift="a&b->c"))
    file, page = write_report(folder)
    parser = checked(file.read_text())
    assert file == folder / "report.html" and "<script>" in "".join(parser.text)
    assert [section.key for section in page.sections] == ["table", "gains"] and len(page.folds) == 1
    assert write_report(folder)[0].read_bytes() == file.read_bytes()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "not readable JSON"),
        ("5", "not the result of a benchmark"),
        ('{"a": 1}', "not the result of a benchmark"),
        ('{"cell": {}, "result": {}}', "not the result of a benchmark"),
    ],
)
def test_broken_cells_give_a_sentence(
    text: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "result.json").write_text(text)
    assert main(["report", str(tmp_path)]) == 3
    assert words in capsys.readouterr().err


def test_folders_without_a_page_give_a_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    strange = small_suite(name="strange")
    assert main(["report", str(write(tmp_path / "a", training(strange, "G")))]) == 3
    assert "no adaptation with scores" in capsys.readouterr().err
    assert main(["report", str(write(tmp_path / "b", stored(strange, "DePT-G", 0.7)))]) == 3
    assert "holds cells of strange" in capsys.readouterr().err
