from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from dept.cli.main import main
from dept.files import load
from dept.training import TrainRun

SMALL = ["--method", "tent", "--batch", "4", "--device", "cpu"]


def rows(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "predictions.jsonl").read_text().splitlines()]


def stream(source_run: TrainRun, images: object, out: Path, *more: str) -> int:
    return main(["stream", str(source_run.file), str(images), "--out", str(out), *SMALL, *more])


def test_a_folder(source_run: TrainRun, target_images: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    assert stream(source_run, target_images, out) == 0
    files = {str(path) for path in target_images.rglob("*.png")}
    assert {row["path"] for row in rows(out)} == files and len(rows(out)) == len(files)
    load(source_run.file, adapter=out / "adapter.safetensors")


def test_paths_on_stdin_in_their_order(
    source_run: TrainRun, target_images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [str(path) for path in sorted(target_images.rglob("*.png"), reverse=True)]
    monkeypatch.setattr("sys.stdin", io.StringIO("\n".join(files) + "\n\n"))
    assert stream(source_run, "-", tmp_path / "run", "--group", "1") == 0
    assert [row["path"] for row in rows(tmp_path / "run")] == files


def test_broken_and_repeated_files(
    source_run: TrainRun,
    target_images: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    good = str(next(target_images.rglob("*.png")))
    broken, missing = tmp_path / "broken.png", tmp_path / "missing.png"
    broken.write_bytes(b"not an image")
    monkeypatch.setattr("sys.stdin", io.StringIO("\n".join([str(broken), good, str(missing), good])))
    assert stream(source_run, "-", tmp_path / "run") == 0
    answers = rows(tmp_path / "run")
    assert [row["path"] for row in answers] == [str(broken), good, str(missing)]
    assert "error" in answers[0] and "label" in answers[1] and "error" in answers[2]
    assert "came twice" in capsys.readouterr().err


def test_resume_ends_in_the_same_lines(source_run: TrainRun, target_images: Path, tmp_path: Path) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    assert stream(source_run, target_images, whole, "--group", "2", "--save-every", "1") == 0
    assert stream(source_run, target_images, parts, "--group", "2", "--save-every", "1") == 0
    expected = (whole / "predictions.jsonl").read_text()
    # A crash: the last state is old, and more was predicted after it.
    first = tmp_path / "first"
    listing = tmp_path / "list.txt"
    order = [row["path"] for row in rows(whole)]
    listing.write_text("\n".join(order[:4]) + "\n")
    assert stream(source_run, listing, first, "--group", "2", "--order", "as-is") == 0
    with (first / "predictions.jsonl").open("a") as file:
        file.write(json.dumps({"path": order[4], "label": "lost", "confidence": 0.0}) + "\n")
    assert stream(source_run, target_images, first, "--group", "2", "--resume") == 0
    assert (first / "predictions.jsonl").read_text() == expected
    assert (parts / "predictions.jsonl").read_text() == expected


def test_an_occupied_folder_is_refused(
    source_run: TrainRun, target_images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "predictions.jsonl").write_text("{}\n")
    assert stream(source_run, target_images, tmp_path) == 2
    assert "already holds a stream" in capsys.readouterr().err


def test_unknown_method_and_missing_folder(
    source_run: TrainRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["stream", str(source_run.file), "x", "--out", str(tmp_path / "a"), "--method", "nope"]) == 2
    assert "There is no method" in capsys.readouterr().err
    assert stream(source_run, tmp_path / "nothing", tmp_path / "b") == 3
    assert "does not exist" in capsys.readouterr().err
