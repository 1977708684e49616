"""The page of a fleet: every site in the right place, with a way to its own page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from html_checks import checked

from dept.cli.main import main
from dept.errors import DataError, UsageError
from dept.report.measure import ReportOptions
from dept.report.page import make_page, write_report
from dept.runs.seal import sealed
from dept.runs.summary import read_fleet
from dept.runs.train import TrainRun
from support import write_unlabelled

AUTO = {"kept": "source", "why": "nothing promises to be better.", "candidates": []}
EXPECTED = {"gain": 0.1, "low": 0.05, "high": 0.2, "shares": "source"}


def write_site(runs: Path, name: str, verdict: str, **result: Any) -> None:
    folder = runs / name
    folder.mkdir(parents=True)
    record = {"key": "k", "attempts": 1, "finished": 1, "seconds": 2.5}
    (folder / "job.json").write_text(json.dumps(record))
    made = {"method": "dept+", "images": 9, "expected": {**EXPECTED, "verdict": verdict}} | result
    (folder / "result.json").write_text(json.dumps(sealed(made)))


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """A fleet with every fate that a site can have."""
    runs = tmp_path / "runs"
    write_site(runs, "better & <b>", "improved")
    (runs / "better & <b>" / "report.html").write_text("<p>")
    write_site(runs, "unclear", "uncertain")
    write_site(runs, "worse", "harmful")
    write_site(runs, "kept", "uncertain", method="source", auto=AUTO)
    (runs / "broken").mkdir()
    (runs / "broken" / "job.json").write_text(json.dumps({"error": "None of the images can be decoded."}))
    still = {**EXPECTED, "gain": 0.0, "low": 0.0, "high": 0.0, "verdict": "uncertain"}
    write_site(runs, "same", "uncertain", expected=still)
    names = ["better & <b>", "unclear", "worse", "kept", "broken", "later", "same"]
    (runs / "fleet.json").write_text(json.dumps({"model": "/models/m.safetensors", "sites": names}))
    return runs


def test_every_site_has_its_place(runs: Path) -> None:
    summary = read_fleet(runs)
    fates = ["improved", "uncertain", "rejected", "rejected", "failed", "open", "unchanged"]
    assert [row.status for row in summary.rows] == fates
    assert summary.rows[3].words == "auto kept the source model: nothing promises to be better."
    assert "20 labels each would tell" in str(summary) and "dept check" in str(summary)
    file, page = write_report(runs)
    html = file.read_text()
    parsed = checked(html, files=["better%20%26%20%3Cb%3E/report.html"])
    assert "better%20%26%20%3Cb%3E/report.html" in parsed.loads
    assert page.verdict == (
        "1 of 7 sites improved, as far as can be told. The others: 1 uncertain (20 labels each would tell), "
        "1 unchanged, 2 rejected, 1 failed, 1 not adapted yet."
    )
    text = " ".join(parsed.text)
    assert "better & <b>" in text and "None of the images can be decoded." in text and "+5.0 to +20.0" in text


def test_labels_decide_where_there_are_some(runs: Path) -> None:
    judged = {"verdict": "harmful", "gain": -0.1, "ci95": [-0.2, -0.01], "images": 9, "products": [""]}
    judged |= {"right_after": 0, "right_before": 9, "neither": 0, "disagreeing": 9, "p_value": 0.001, "labels": {}}
    (runs / "unclear" / "verdict.json").write_text(json.dumps(sealed(judged)))
    row = read_fleet(runs).rows[1]
    assert row.status == "rejected" and row.words.startswith("Harmful. Gain -10.0 points")


def test_damaged_files(runs: Path) -> None:
    (runs / "unclear" / "result.json").write_text("{")
    assert "cannot be read" in read_fleet(runs).rows[1].words
    (runs / "worse" / "job.json").write_text("{")
    assert read_fleet(runs).rows[2].status == "open"
    for text, error in (('{"model": "m", "sites": ["../up"]}', UsageError), ('{"sites": [1]}', DataError)):
        (runs / "fleet.json").write_text(text)
        with pytest.raises(error):
            make_page(runs, ReportOptions())


def test_the_command_writes_a_page_for_every_site_and_one_for_all(
    source_run: TrainRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_unlabelled(tmp_path / "sites" / "only one", 6)
    argv = ["fleet", source_run.file, tmp_path / "sites", "--out", tmp_path / "runs", "--runner", "here"]
    argv += ["--method", "dept+", "--max-iters", "2", "--batch", "4", "--device", "cpu", "--json"]
    assert main([str(word) for word in argv]) == 0
    assert json.loads(capsys.readouterr().out)["sites"][0]["site"] == "only one"
    assert "dept report" in (tmp_path / "runs/only one/report.html").read_text()
    html = (tmp_path / "runs/report.html").read_text()
    assert "only%20one/report.html" in checked(html, files=["only%20one/report.html"]).loads
