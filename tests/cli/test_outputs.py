"""What commands write to: nothing that is still needed, and a place that cannot be written is told before the work."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from dept.cli.main import main
from dept.io import read_meta
from dept.models.files import save_model
from dept.runs.train import TrainRun
from support import ARCH, TIMM, tiny_model


@pytest.fixture
def model(source_run: TrainRun, tmp_path: Path) -> Path:
    """A model file that a test may try to destroy."""
    return Path(shutil.copy(source_run.file, tmp_path / "m.safetensors"))


def refused(capsys: pytest.CaptureFixture[str], *argv: object, code: int = 2) -> str:
    """Run a command that must fail with one sentence and write nothing to stdout; returns the sentence."""
    capsys.readouterr()
    assert main([str(word) for word in argv]) == code
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("dept: ") and len(err.splitlines()) == 1
    return err


@pytest.fixture
def _no_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Computing anything before the refusal is a failure."""
    for place in ("dept.inference.predict", "dept.models.stats.compute_stats", "dept.report.page.make_page"):
        monkeypatch.setattr(place, None)


@pytest.mark.usefixtures("_no_work")
def test_a_model_is_not_replaced(
    model: Path, source_run: TrainRun, source_images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = model.read_bytes()
    other, link = tmp_path / "other.safetensors", tmp_path / "link.csv"
    shutil.copy(model, other)
    link.symlink_to(model)
    for command in ("stats", "predict"):
        assert "is not replaced" in refused(capsys, command, model, source_images, "--out", model)
        assert "already exists and is not replaced" in refused(capsys, command, model, source_images, "--out", other)
        assert "is an input and is not replaced" in refused(capsys, command, model, source_images, "--out", link)
    assert "is not replaced" in refused(capsys, "report", source_run.folder, "--out", model)
    assert model.read_bytes() == other.read_bytes() == before


@pytest.mark.usefixtures("_no_work")
def test_other_inputs_are_not_replaced(
    model: Path, source_run: TrainRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    listing, config = tmp_path / "list.csv", source_run.folder / "config.json"
    listing.write_text("a.png\n")
    before = config.read_text()
    assert "is an input and is not replaced" in refused(capsys, "predict", model, listing, "--out", listing)
    assert "is not replaced" in refused(capsys, "stats", model, listing, "--out", listing)
    assert "is not replaced" in refused(capsys, "report", source_run.folder, "--out", config)
    assert listing.read_text() == "a.png\n" and config.read_text() == before


def test_statistics_and_predictions_are_made_anew(
    model: Path, stats_file: Path, source_images: Path, tmp_path: Path
) -> None:
    stats, rows = Path(shutil.copy(stats_file, tmp_path / "stats.safetensors")), tmp_path / "p.csv"
    rows.write_text("old")
    assert main(["stats", str(model), str(source_images), "--out", str(stats), "--device", "cpu"]) == 0
    assert main(["predict", str(model), str(source_images), "--out", str(rows), "--device", "cpu"]) == 0
    assert read_meta(stats)["kind"] == "stats" and rows.read_text().startswith("path,label")


@pytest.mark.usefixtures("_no_work")
def test_the_ending_says_how_predictions_are_written(
    model: Path, source_images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "p.parquet"
    assert "must end in .csv, .jsonl or .json" in refused(capsys, "predict", model, source_images, "--out", out)
    assert not out.exists()


@pytest.mark.usefixtures("_no_work")
def test_a_folder_is_no_file_to_write(
    model: Path, source_run: TrainRun, source_images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, said = tmp_path / "folder.csv", "is a folder. --out must be the name of a file"
    out.mkdir()
    for command in ("stats", "predict"):
        assert said in refused(capsys, command, model, source_images, "--out", out)
    assert said in refused(capsys, "report", source_run.folder, "--out", out)


def runs(command: str, model: Path, images: Path) -> list[object]:
    words: dict[str, list[object]] = {
        "train": [images, "--no-pretrained", "--arch", ARCH, "--timm", json.dumps(TIMM), "--stages", 2],
        "uda": [model, images, images, "--batch", 4],
    }
    return [command, *words.get(command, [model, images]), "--device", "cpu"]


@pytest.mark.parametrize("command", ["adapt", "train", "uda", "stream"])
def test_a_file_is_no_folder_to_write(
    command: str, model: Path, source_images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("mine")
    for out in (tmp_path / "file", tmp_path / "file" / "run"):
        said = refused(capsys, *runs(command, model, source_images), "--out", out)
        assert f"{tmp_path / 'file'} is a file, not a folder" in said


@pytest.mark.parametrize("command", ["adapt", "stream", "stats", "predict"])
def test_a_folder_that_may_not_be_written_to(
    command: str,
    model: Path,
    source_images: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("dept.io.os.access", lambda *_: False)  # chmod does not keep out an administrator
    said = refused(capsys, *runs(command, model, source_images), "--out", tmp_path / "new" / "out.csv")
    assert f"{tmp_path} is not writable. Choose another --out" in said and not (tmp_path / "new").exists()


@pytest.mark.parametrize("command", ["adapt", "train", "uda", "stream"])
def test_seeds_and_prompts_that_cannot_be(
    command: str, model: Path, source_images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = [*runs(command, model, source_images), "--out", tmp_path / "run"]
    assert "--seed must be at least 0 and below 2^62, found -1" in refused(capsys, *base, "--seed", -1)
    if command == "train":
        assert "must be at least 0, found 2 and -4" in refused(capsys, *base, "--prompts", -4)
    assert not (tmp_path / "run").exists()


def test_fresh_prompts_that_cannot_be(source_images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plain = save_model(tiny_model(stages=0, prompts=0), tmp_path / "plain.safetensors")
    base = [*runs("adapt", plain, source_images), "--method", "dept"]
    for count in (0, -4):
        said = refused(capsys, *base, "--out", tmp_path / "run", "--prompts", count)
        assert f"at least 1 for a method that tunes prompts, found 4 and {count}" in said
