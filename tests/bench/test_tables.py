from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dept.bench import suites
from dept.bench.entry import Entry
from dept.bench.notes import protocol_line
from dept.bench.render import render, terminal
from dept.bench.shift import shifts
from dept.bench.stored import choose, stored_cells, suite_cells
from dept.bench.suite import Row
from dept.bench.table import Table, column_names, make_table
from dept.cli import bench_suite
from dept.errors import UsageError
from stored import results, small_suite, stored, table_of, training

SUITE = small_suite()
TWO = "photo->cartoon"


def entry(table: Table, label: str, column: str) -> Entry:
    line = next(line for line in table.lines if line.label == label)
    return line.entries[table.columns.index(column)]


def full_cells() -> list[dict[str, Any]]:
    return [
        training(SUITE, "plain"),
        training(SUITE, "G"),
        *(stored(SUITE, "Source", 0.5, shift=str(shift)) for shift in SUITE.shifts),
        *(stored(SUITE, "Tent_1 & co", 0.6, shift=str(shift)) for shift in SUITE.shifts),
        *(
            stored(SUITE, "DePT-G", 0.7 + 0.02 * seed + 0.1 * (str(shift) == TWO), shift=str(shift), seed=seed)
            for shift in SUITE.shifts
            for seed in (0, 1)
        ),
    ]


def test_mean_and_deviation_over_seeds() -> None:
    found = entry(table_of(SUITE, full_cells()), "DePT-G", "sketch")
    assert (found.mean, found.seeds) == (pytest.approx(71.0), 2)
    assert found.sd == pytest.approx(2**0.5)
    assert found.gain == pytest.approx(21.0)
    assert found.interval == (pytest.approx(19.0), pytest.approx(23.0))
    assert (found.changed, found.seconds, found.mark) == (0.25, 60.0, "")


def test_the_mean_gain_has_an_interval_where_labels_are_stored() -> None:
    cells = [stored(SUITE, "Tent_1 & co", 0.6, shift=str(shift)) for shift in SUITE.shifts]
    assert entry(table_of(SUITE, cells), "Tent_1 & co", "mean").interval is None
    for cell, right in zip(cells, (0.3, 0.1), strict=True):  # shares of images that adaptation mends; none is spoilt
        after = [int(n < 100 * right) for n in range(100)]
        cell["result"]["predictions"] = {"before": [0] * 100, "after": after, "labels": [1] * 100}
    low, high = entry(table_of(SUITE, cells), "Tent_1 & co", "mean").interval or (0.0, 0.0)
    sd = ((0.3 * 0.7 + 0.1 * 0.9) / 100) ** 0.5 / 2  # of the mean of two independent shares
    assert low == pytest.approx(20 - 196 * sd, abs=0.6) and high == pytest.approx(20 + 196 * sd, abs=0.6)
    as_error = entry(table_of(small_suite(metric="error"), cells), "Tent_1 & co", "mean").interval
    assert as_error == (pytest.approx(-high, abs=0.6), pytest.approx(-low, abs=0.6))


def test_the_mean_column_is_the_mean_of_the_columns_and_missing_if_one_is() -> None:
    cells = full_cells()
    assert entry(table_of(SUITE, cells), "DePT-G", "mean").mean == pytest.approx(76.0)
    assert entry(table_of(SUITE, cells), "DePT-G", "mean").sd == pytest.approx(2**0.5)
    partial = [c for c in cells if (c["cell"]["method"], c["cell"]["shift"]) != ("tent", TWO)]
    assert entry(table_of(SUITE, partial), "Tent_1 & co", "mean").mean is None
    assert entry(table_of(SUITE, partial), "Tent_1 & co", "cartoon").mean is None


def test_best_and_second_by_printed_digits() -> None:
    table = table_of(SUITE, full_cells())
    flags = {line.label: (line.entries[0].best, line.entries[0].second) for line in table.lines}
    assert flags == {"Source": (False, False), "Tent_1 & co": (False, True), "DePT-G": (True, False)}


def test_an_error_is_better_when_lower_and_its_gain_is_turned() -> None:
    suite = replace(SUITE, metric="error")
    cells = [stored(suite, "Source", 0.5), stored(suite, "DePT-G", 0.7)]
    table = table_of(suite, cells)
    found = entry(table, "DePT-G", "sketch")
    assert found.best and found.mean == pytest.approx(30.0) and found.gain == pytest.approx(-20.0)
    assert found.interval == (pytest.approx(-22.0), pytest.approx(-18.0))


def test_offline_and_online_have_their_own_best() -> None:
    cells = [stored(SUITE, "Source", 0.5), stored(SUITE, "DePT-G", 0.6), stored(SUITE, "DePT-G, online", 0.9)]
    table = table_of(SUITE, cells)
    assert entry(table, "DePT-G", "sketch").best
    assert not entry(table, "DePT-G, online", "sketch").best  # alone in its setting


def test_another_list_of_images_is_marked_and_not_ranked() -> None:
    cells = [
        stored(SUITE, "Source", 0.5),
        stored(SUITE, "Tent_1 & co", 0.6),
        stored(SUITE, "DePT-G", 0.9, list_sha256="f" * 64),
    ]
    table = table_of(SUITE, cells)
    found = entry(table, "DePT-G", "sketch")
    assert found.mark == "†" and not found.best and entry(table, "Tent_1 & co", "sketch").best
    assert table.notes[0].mark == "†" and "list_sha256 ffffffffffff instead of" in table.notes[0].text


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"evaluated_on": "held-out images"}, "evaluated_on"),
        ({"images": 10}, "images"),
        ({"preprocess": {"size": 32, "resize": 36, "rule": "none", "mean": [0.4], "std": [0.5]}}, "preprocess.mean"),
    ],
)
def test_what_keeps_results_apart(change: dict[str, Any], path: str) -> None:
    table = table_of(SUITE, [stored(SUITE, "Source", 0.5), stored(SUITE, "DePT-G", 0.9, **change)])
    assert entry(table, "DePT-G", "sketch").mark and path in table.notes[0].text


def test_other_versions_are_marked_but_compete() -> None:
    cells = [stored(SUITE, "Source", 0.5), stored(SUITE, "DePT-G", 0.9, environment={"torch": "2.10"})]
    table = table_of(SUITE, cells)
    found = entry(table, "DePT-G", "sketch")
    assert found.best and found.mark == "†" and "environment.torch 2.10 instead of 2.9" in table.notes[0].text


def test_a_limited_run_is_marked_with_the_fields() -> None:
    limited = SUITE.chosen(limit=100, max_iters=20)
    table = table_of(SUITE, [stored(SUITE, "Source", 0.5), stored(limited, "DePT-G", 0.9)])
    assert entry(table, "DePT-G", "sketch").mark == "†"
    assert "config.max_iters 20; most 100 instead of 1000" in table.notes[0].text


def test_what_fits_the_definition_comes_first_and_the_rest_is_listed() -> None:
    limited = SUITE.chosen(limit=100)
    table = table_of(SUITE, [stored(SUITE, "DePT-G", 0.7), stored(limited, "DePT-G", 0.9, seed=1)])
    found = entry(table, "DePT-G", "sketch")
    assert (found.mean, found.seeds, found.mark) == (pytest.approx(70.0), 1, "")
    assert "seed 1 (most 100 instead of 1000)" in table.notes[0].text and table.notes[0].mark == ""


def test_seeds_with_different_protocols_are_not_averaged() -> None:
    cells = [stored(SUITE, "DePT-G", 0.7), stored(SUITE, "DePT-G", 0.9, seed=1, images=500)]
    table = table_of(SUITE, cells)
    assert entry(table, "DePT-G", "sketch").seeds == 1
    assert any("seed 1 (images 500 instead of 1000)" in note.text for note in table.notes)


def test_a_source_model_of_another_definition_is_a_departure() -> None:
    older = small_suite(sources={**SUITE.sources, "G": replace(SUITE.sources["G"], prompts=10)})
    cells = [training(older, "G"), stored(older, "DePT-G", 0.7)]
    table = table_of(SUITE, cells)
    assert "source.prompts 10 instead of 20" in table.notes[0].text


def test_weights_under_one_name_that_differ_are_marked() -> None:
    cells = [
        stored(SUITE, "Source", 0.5),
        stored(SUITE, "Tent_1 & co", 0.6, backbone_sha256="0" * 64),
    ]
    table = table_of(SUITE, cells)
    assert "backbone_sha256" in table.notes[0].text


def test_rows_without_results_are_named_not_shown() -> None:
    table = table_of(SUITE, [stored(SUITE, "DePT-G", 0.7)])
    assert [line.label for line in table.lines] == ["DePT-G"]
    assert table.notes[-1].text == "No results yet: Source; Tent_1 & co; DePT-G, online."
    assert len(table_of(SUITE, []).lines) == 4  # nothing yet at all: the plan is shown


def test_per_class() -> None:
    table = table_of(SUITE, full_cells(), per_class="sketch")
    assert table.columns == ("dog", "cat_1", "mean")
    assert entry(table, "Tent_1 & co", "dog").mean == pytest.approx(60.0)
    assert entry(table, "Tent_1 & co", "cat_1").gain == pytest.approx(-10.0)
    with pytest.raises(UsageError, match="no shift 'moon'"):
        table_of(SUITE, [], per_class="moon")


def test_a_stream_shows_its_domains() -> None:
    suite = small_suite(shifts=shifts("photo->sketch,cartoon"))
    cells = [
        stored(suite, label, 0.6, shift=str(suite.shifts[0]), seconds=30.0) for label in ("DePT-G, online", "Source")
    ]
    cells[0]["result"]["segments"] = {
        "sketch": {"before": 0.4, "after": 0.5},
        "cartoon": {"before": 0.6, "after": 0.7},
    }
    table = table_of(suite, cells)
    assert table.columns == ("sketch", "cartoon", "whole stream")
    found = [entry(table, "DePT-G, online", column) for column in table.columns]
    assert [round(one.mean or 0, 6) for one in found] == [50, 70, 60]
    assert [round(one.gain or 0, 6) for one in found] == [10, 10, 10]
    assert found[0].interval is None and found[2].interval is not None  # stored for the whole only
    assert entry(table, "Source", "sketch").mean is None  # a stream that mixes its domains
    assert next(line.seconds for line in table.lines if line.label == "Source") == 30.0


def test_the_papers_number_stands_beside_ours() -> None:
    suite = suites.get("visda")
    table = table_of(suite, [])
    assert entry(table, "DePT-G", "validation").paper == 90.6
    assert "the mean is printed as 57.3, the printed numbers average 54.78." in render(table, "markdown")
    assert "– (90.6)" in render(table, "markdown") and "arXiv:2210.04831" in render(table, "terminal")
    corruptions = table_of(suites.get("imagenet-c"), [])
    assert entry(corruptions, "CFA, online", "snow").paper == 33.6
    assert entry(corruptions, "CFA, online", "mean").paper == 37.6
    assert entry(table_of(suites.get("domainnet"), []), "DePT-G", "painting->real").paper == 89.9


def test_column_names_are_short_where_they_are_unique() -> None:
    assert column_names(shifts("clean->snow/5", "clean->fog/5")) == ("snow", "fog")
    assert column_names(shifts("real->clipart", "painting->clipart")) == ("real->clipart", "painting->clipart")
    assert column_names(shifts("a->b,c,d")) == ("3 domains",)


def test_terminal_is_aligned_and_coloured_only_on_request() -> None:
    table = table_of(SUITE, full_cells())
    plain, coloured = terminal(table, ansi=False), terminal(table, ansi=True)
    assert "\033" not in plain and "\033[1m71.0 ± 1.4\033[0m" in coloured and "\033[4m60.0\033[0m" in coloured
    assert re.sub(r"\033\[\d*m", "", coloured) == plain
    head = plain.splitlines()[2:7]
    assert len({len(line) for line in head}) == 1


def test_no_color_is_obeyed(monkeypatch: pytest.MonkeyPatch) -> None:
    table = table_of(SUITE, full_cells())
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\033" in render(table, "terminal")
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\033" not in render(table, "terminal")


def test_markdown() -> None:
    text = render(table_of(SUITE, full_cells()), "markdown")
    assert "**71.0 ± 1.4** / 61.0, +21.0 [+19.0, +23.0]" in text and "<u>60.0</u>" in text
    header, rule = text.splitlines()[:2]
    assert header.count("|") == rule.count("|") == 8


def test_brief_has_one_number_per_cell_and_the_gain_in_a_column() -> None:
    text = render(table_of(SUITE, full_cells()), "brief")
    lines = text.splitlines()
    assert lines[0] == "| method | sketch | cartoon | mean | mean gain |"
    assert "| DePT-G | **71.0 ± 1.4** | **81.0 ± 1.4** | **76.0 ± 1.4** | +26.0 |" in lines
    assert "| Source | 50.0 | 50.0 | 50.0 | – |" in lines
    assert " / " not in text and "sha256" not in text
    assert lines[-1].endswith("95 % interval. vit_tiny, 32 px, 300 steps, ± over 2 seeds.")


def test_latex_is_escaped_and_emphasised() -> None:
    cells = [*full_cells()[2:], stored(SUITE.chosen(limit=5), "DePT-G, online", 0.7)]
    text = render(table_of(SUITE, cells), "latex")
    assert r"Tent\_1 \& co" in text and r"25.0 \%" in text
    assert r"\textbf{71.0 $\pm$ 1.4}" in text and r"\underline{60.0}" in text
    assert r"70.0$^{\dagger}$" in text and r"photo$\to$sketch" not in text
    assert text.count(r"\midrule") == 2 and "\x01" not in text
    body = [line for line in text.splitlines() if line.endswith(r"\\")]
    assert {len(re.findall(r"(?<!\\)&", line)) for line in body} == {6}


def test_json_holds_everything() -> None:
    made = json.loads(render(table_of(SUITE, full_cells()), "json"))
    assert made["columns"] == ["sketch", "cartoon", "mean"]
    assert made["lines"][2]["entries"][0]["best"] is True and made["protocol"].startswith("Protocol: ")


def test_the_protocol_line_says_it_all() -> None:
    text = protocol_line(results(SUITE, full_cells()))
    for part in (
        "weights vit_tiny, sha256 aaaaaaaaaaaa",
        "resize 36 (squash, bilinear), crop 32, mean 0.5, std 0.5",
        "at most 1000 per domain, uniform, random.Random(0)",
        "batch 32, steps 300",
        "seeds 0, 1",
        "top-1 accuracy",
        "student, direct, last iterate",
        "torch 2.9",
        "device cpu, threads 1",
    ):
        assert part in text
    assert "no results yet" in protocol_line(results(SUITE, []))
    limited = stored(SUITE, "DePT-G", 0.7, seed=1)
    limited["cell"]["protocol"]["most"] = 40
    assert "at most 40 per domain" in protocol_line(results(SUITE, [limited])) and "seeds 1;" in protocol_line(
        results(SUITE, [limited])
    )
    assert "steps one pass" in protocol_line(results(SUITE, [stored(SUITE, "DePT-G, online", 0.6, reset="domain")]))


def test_committed_results_are_found_by_their_suite() -> None:
    suite = suites.get("pacs-mini")
    cells = stored_cells(Path("benchmarks/results/pacs-mini"))
    table = make_table(choose(suite, cells))
    assert entry(table, "DePT-G", "art_painting").mean is not None
    assert not [note for note in table.notes if "as the suite defines" in note.text]


def test_online_rows_are_marked_in_the_column_and_ranked_among_themselves() -> None:
    rows = (*SUITE.rows, Row("Tent, online", "tent", "plain", "online"))
    suite = small_suite(rows=rows)
    stream = {"evaluated_on": "the stream, every image once"}
    online = [stored(suite, label, top1, **stream) for label, top1 in (("DePT-G, online", 0.9), ("Tent, online", 0.6))]
    table = table_of(suite, full_cells() + online)
    dept, tent = (entry(table, label, "sketch") for label in ("DePT-G, online", "Tent, online"))
    assert (dept.best, tent.second) == (True, True) and dept.mark == tent.mark != ""
    assert entry(table, "DePT-G", "sketch").best and not entry(table, "DePT-G", "sketch").mark


def test_what_was_trained_with_source_data_is_compared_with_erm() -> None:
    rows = tuple(Row(method.upper(), method, "plain", "uda") for method in ("erm", "mcc"))
    suite = small_suite(rows=rows, shifts=shifts("photo->sketch"))
    cells = [stored(suite, "ERM", 0.6, before=0.1), stored(suite, "MCC", 0.7, before=0.1)]
    erm, mcc = (entry(table_of(suite, cells), label, "sketch") for label in ("ERM", "MCC"))
    assert (erm.mean, erm.gain, erm.changed) == (pytest.approx(60.0), None, None)
    assert (mcc.gain, mcc.interval, mcc.changed) == (pytest.approx(10.0), None, 0.5)
    assert any("against ERM" in note.text for note in table_of(suite, cells).notes)
    for cell in cells:
        cell["result"]["predictions"]["labels"] = [1, 70]  # ERM has the first one right, MCC both
    assert entry(table_of(suite, cells), "MCC", "sketch").interval == (pytest.approx(0.0), pytest.approx(100.0))
    alone = entry(table_of(suite, cells[1:]), "MCC", "sketch")
    assert (alone.mean, alone.gain) == (pytest.approx(70.0), None)


def test_a_borrowed_row_is_run_once_and_shown_in_both_suites() -> None:
    """The last row of pacs-losses is a cell of pacs-mini, of which it takes its own seed only."""
    suite = suites.get("pacs-losses")
    row, shift = suite.rows[-1], suite.shifts[0]
    lender = suites.get("pacs-mini")
    lent = lender.row("DePT-G, clipped together")
    assert suite.cell(row, shift, 0, "w").key == lender.cell(lent, shift, 0, "w").key
    table = make_table(choose(suite, suite_cells(suite, Path("benchmarks/results"))))
    found = entry(table, row.label, "art_painting")
    assert found.mean is not None and found.seeds == 1 and not found.mark
    assert "sha256 3f1f07da5e13" in table.protocol  # of the weights that the borrowed source model was made from


def test_a_table_has_the_rows_that_are_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench_suite.run("digits", ["--table", "--methods", "tent"]) == 0
    printed = capsys.readouterr().out
    assert "Tent" in printed and "DePT-G" not in printed
    assert bench_suite.run("digits", ["--table", "--methods", "DePT-G", "--seeds", "1"]) == 0
    printed = capsys.readouterr().out
    assert "seeds 1;" in printed and "±" not in printed


def test_finished_cells_are_listed_so_without_the_weights_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench_suite.run("pacs-mini", ["--list", "--methods", "DePT-G", "--shifts", "cartoon"]) == 0
    assert [line.split()[1] for line in capsys.readouterr().out.splitlines()] == ["done"] * 3  # training, two seeds


def test_gains_are_counted_in_images() -> None:
    """0.849 and 0.699 as float32 differ by a little less than 0.15."""
    found = stored(SUITE, "DePT-G", 0.8489999771118164, before=0.6990000009536743)
    found["result"]["gain"] = 0.15
    assert entry(table_of(SUITE, [found]), "DePT-G", "sketch").gain == 15.0


def test_pages_show_what_the_results_say() -> None:
    command = [sys.executable, "benchmarks/write_tables.py", "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
