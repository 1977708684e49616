from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from dept.cli.main import main
from dept.models.files import load
from dept.runs.stream_run import _Session
from dept.runs.train import TrainRun
from support import same_bits

Typing = Callable[[list[str]], None]
SMALL = ["--method", "tent", "--batch", "4", "--no-guard", "--device", "cpu"]
"""a guard would gather such batches (tests/runs/test_guarded_run.py)"""


@pytest.fixture
def typing(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[Typing]:
    """Puts lines on stdin; a real file, because the stream waits on its descriptor."""
    with (tmp_path_factory.mktemp("typed") / "stdin").open("w+") as file:

        def put(lines: list[str]) -> None:
            file.write("\n".join(lines))
            file.seek(0)

        monkeypatch.setattr("sys.stdin", file)
        yield put


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
    source_run: TrainRun, target_images: Path, tmp_path: Path, typing: Typing
) -> None:
    files = [str(path) for path in sorted(target_images.rglob("*.png"), reverse=True)]
    typing([*files, "", ""])
    assert stream(source_run, "-", tmp_path / "run") == 0
    assert [row["path"] for row in rows(tmp_path / "run")] == files


def test_broken_and_repeated_files(
    source_run: TrainRun,
    target_images: Path,
    tmp_path: Path,
    typing: Typing,
    capsys: pytest.CaptureFixture[str],
) -> None:
    good = str(next(target_images.rglob("*.png")))
    broken, missing = tmp_path / "broken.png", tmp_path / "missing.png"
    broken.write_bytes(b"not an image")
    typing([str(broken), good, str(missing), good])
    assert stream(source_run, "-", tmp_path / "run") == 0
    answers = rows(tmp_path / "run")
    assert [row["path"] for row in answers] == [str(broken), good, str(missing)]
    assert "error" in answers[0] and "label" in answers[1] and "error" in answers[2]
    assert "was given twice" in capsys.readouterr().err


@pytest.mark.parametrize("saved", [0, 4])
def test_a_crash_loses_no_prediction_and_no_bit(
    source_run: TrainRun, target_images: Path, tmp_path: Path, saved: int
) -> None:
    """More was predicted after the last save, or before the first: it stays, and is learned from again."""
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    assert stream(source_run, target_images, whole, "--group", "2", "--save-every", "1") == 0
    order = [row["path"] for row in rows(whole)]
    listing = tmp_path / "list.txt"
    listing.write_text("\n".join(order[: saved or 2]) + "\n")
    assert stream(source_run, listing, parts, "--group", "2", "--order", "as-is") == 0
    if not saved:
        (parts / "resume.safetensors").unlink()
        (parts / "adapter.safetensors").unlink()
    lines = (whole / "predictions.jsonl").read_text().splitlines(keepends=True)
    (parts / "predictions.jsonl").write_text("".join(lines[:6]) + lines[6][:20])  # the last one half written
    assert stream(source_run, target_images, parts, "--group", "2", "--resume") == 0
    assert (parts / "predictions.jsonl").read_text() == (whole / "predictions.jsonl").read_text()
    assert same_bits(*(load_file(folder / "adapter.safetensors") for folder in (whole, parts)))


def test_an_occupied_folder_is_refused(
    source_run: TrainRun, target_images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "predictions.jsonl").write_text("{}\n")
    assert stream(source_run, target_images, tmp_path) == 2
    assert "already holds a stream. Use --resume to continue, or choose another --out." in capsys.readouterr().err


def test_a_mistyped_path_leaves_nothing_behind(
    source_run: TrainRun, target_images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    assert stream(source_run, tmp_path / "mistyped", out) == 3 and not out.exists()
    assert stream(source_run, tmp_path / "mistyped", out, "--watch") == 2 and not out.exists()
    assert stream(source_run, target_images, out) == 0


def test_a_stream_without_any_answer_is_started_anew(
    source_run: TrainRun, target_images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "predictions.jsonl").touch()
    (tmp_path / "config.json").write_text("{}")
    assert stream(source_run, target_images, tmp_path, "--resume") == 2
    assert "nothing to resume" in capsys.readouterr().err
    assert stream(source_run, target_images, tmp_path) == 0 and len(rows(tmp_path)) == 10


def test_a_stream_that_is_killed_after_its_first_update_can_go_on(
    source_run: TrainRun, target_images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    assert stream(source_run, target_images, whole) == 0
    answers = iter([None, MemoryError()])

    def killed(session: _Session, *words: Any) -> None:
        if error := next(answers):
            raise error
        answer(session, *words)

    answer = _Session._predict
    with monkeypatch.context() as patch:
        patch.setattr(_Session, "_predict", killed)
        assert stream(source_run, target_images, parts) == 1
    assert len(rows(parts)) == 4 and (parts / "adapter.safetensors").exists()
    assert stream(source_run, target_images, parts, "--resume") == 0
    assert (parts / "predictions.jsonl").read_text() == (whole / "predictions.jsonl").read_text()


@pytest.mark.parametrize("name", ["config.json", "adapter.safetensors", "resume.safetensors"])
def test_another_run_is_not_replaced(
    source_run: TrainRun, target_images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    (tmp_path / name).write_text("of another run")
    for more in ([], ["--resume"]):
        assert stream(source_run, target_images, tmp_path, *more) == 2
        assert f"holds a run that is not a stream ({name})" in capsys.readouterr().err
    assert (tmp_path / name).read_text() == "of another run"


def test_resume_with_other_settings_is_refused(
    source_run: TrainRun, target_images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert stream(source_run, target_images, tmp_path, "--resume") == 2
    assert "nothing to resume" in capsys.readouterr().err
    assert stream(source_run, target_images, tmp_path) == 0
    lines = (tmp_path / "predictions.jsonl").read_text()
    assert stream(source_run, target_images, tmp_path, "--resume", "--lr", "0.5", "--seed", "3") == 2
    assert "other settings (lr, seed differ)" in capsys.readouterr().err
    for flag in ("--resume", "--overwrite"):
        assert main(["adapt", str(source_run.file), str(target_images), "--out", str(tmp_path), flag]) == 2
        assert "holds a stream (predictions.jsonl). Choose another --out" in capsys.readouterr().err
    assert (tmp_path / "predictions.jsonl").read_text() == lines


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
def test_a_path_is_answered_when_it_comes(
    source_run: TrainRun, target_images: Path, tmp_path: Path, stop: signal.Signals
) -> None:
    """One path on a pipe that stays open: its answer does not wait for a batch, or for the end."""
    command = [
        sys.executable,
        "-m",
        "dept",
        "stream",
        str(source_run.file),
        "-",
        "--out",
        str(tmp_path / "run"),
        *SMALL,
    ]
    path = str(next(target_images.rglob("*.png")))
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdin is not None
        process.stdin.write(path.encode() + b"\n")
        process.stdin.flush()
        file, late = tmp_path / "run" / "predictions.jsonl", time.monotonic() + 60
        while not (file.exists() and file.stat().st_size):
            assert process.poll() is None and time.monotonic() < late
            time.sleep(0.1)
        process.send_signal(stop)  # heard while the stream waits for the next path
        assert process.wait(timeout=60) == 130
    assert [row["path"] for row in rows(tmp_path / "run")] == [path]
    assert (tmp_path / "run" / "resume.safetensors").exists()


def test_unknown_method_and_missing_folder(
    source_run: TrainRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["stream", str(source_run.file), "x", "--out", str(tmp_path / "a"), "--method", "nope"]) == 2
    assert "There is no method" in capsys.readouterr().err
    assert stream(source_run, tmp_path / "nothing", tmp_path / "b") == 3
    assert "does not exist" in capsys.readouterr().err


class Watcher:
    """Somebody who copies files into a watched folder while the stream runs, and stops it at the end.

    Stands in for `stop_signal`: the stream asks after every look at the folder, and each answer is one turn.
    """

    def __init__(self, turns: list[Callable[[], None]]) -> None:
        self.turns, self.asked = turns, 0

    def __call__(self) -> Watcher:
        return self

    def __enter__(self) -> Callable[[], bool]:
        def stopped() -> bool:
            self.asked += 1
            assert self.asked < 50, "the stream never saw what it was to see"
            if self.turns:
                self.turns.pop(0)()
                return False
            return True

        return stopped

    def __exit__(self, *error: object) -> None:
        return None


def test_a_watched_folder(
    source_run: TrainRun, target_images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Old and new files are predicted once; one that is still being written waits until it is whole."""
    files = sorted(target_images.rglob("*.png"))[:4]
    folder, out = tmp_path / "in", tmp_path / "run"
    folder.mkdir()
    shutil.copy(files[0], folder / "a.png")
    whole = files[3].read_bytes()
    sizes = iter([10, len(whole) // 2, len(whole)])

    def grow() -> None:
        (folder / "slow.png").write_bytes(whole[: next(sizes)])

    def wait() -> None:
        pass

    def deep() -> None:
        (folder / "sub").mkdir()
        shutil.copy(files[1], folder / "sub" / "b.png")
        (folder / "notes.txt").write_text("no image")
        grow()

    turns = [wait, wait, grow, grow, deep, *[wait] * 8]
    monkeypatch.setattr("dept.runs.stream_run.stop_signal", Watcher(turns))
    assert stream(source_run, folder, out, "--watch", "--poll", "0") == 0
    answers = rows(out)
    assert Path(answers[0]["path"]).name == "a.png"
    assert sorted(Path(row["path"]).name for row in answers) == ["a.png", "b.png", "slow.png"]
    assert all("label" in row for row in answers)  # the slow file decoded: it was not taken half-written
    load(source_run.file, adapter=out / "adapter.safetensors")


def test_a_watched_folder_that_is_none(
    source_run: TrainRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert stream(source_run, tmp_path / "nothing", tmp_path / "run", "--watch") == 2
    assert "--watch needs a folder" in capsys.readouterr().err


def test_a_stream_that_ends_in_the_middle_of_a_batch(
    source_run: TrainRun, target_images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ten images in batches of four: all are predicted, and the last two are learned from too."""
    assert stream(source_run, target_images, tmp_path / "run") == 0
    assert len(rows(tmp_path / "run")) == 10
    assert "10 images, 3 updates" in capsys.readouterr().err


def test_a_stream_of_broken_files_only(source_run: TrainRun, tmp_path: Path, typing: Typing) -> None:
    """Every path gets its line with the reason; the model is left as it was, and saved."""
    for number in range(5):
        (tmp_path / f"{number}.png").write_bytes(b"not an image")
    typing([str(tmp_path / f"{n}.png") for n in range(5)])
    assert stream(source_run, "-", tmp_path / "run") == 3
    assert [Path(row["path"]).name for row in rows(tmp_path / "run")] == [f"{n}.png" for n in range(5)]
    assert all("error" in row and "label" not in row for row in rows(tmp_path / "run"))
    source, after = load(source_run.file), load(source_run.file, adapter=tmp_path / "run" / "adapter.safetensors")
    assert all(bool((a == b).all()) for a, b in zip(source.parameters(), after.parameters(), strict=True))


def test_a_path_listed_twice_is_predicted_once(
    source_run: TrainRun, target_images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = [str(path) for path in sorted(target_images.rglob("*.png"))[:3]]
    listing = tmp_path / "list.txt"
    listing.write_text("\n".join([*files, files[0], files[2]]) + "\n")
    assert stream(source_run, listing, tmp_path / "run", "--order", "as-is") == 0
    assert [row["path"] for row in rows(tmp_path / "run")] == files
    assert capsys.readouterr().err.count("was given twice") == 2
