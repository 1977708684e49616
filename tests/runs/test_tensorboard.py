from __future__ import annotations

import sys
import types
from pathlib import Path
from typing import Any

import pytest

from dept.cli.main import main
from dept.errors import UsageError
from dept.runs.folder import silent
from dept.runs.tensorboard import TensorBoard, recorded
from dept.runs.train import TrainRun
from support import StopAfter, events

SMALL = ["--epochs", "2", "--batch", "4", "--device", "cpu"]


class Writer:
    """Stands in for SummaryWriter: remembers what it is told, and leaves a file as the real one does."""

    made: list[Writer] = []

    def __init__(self, log_dir: str, purge_step: int | None = None) -> None:
        self.folder, self.purge_step, self.closed = Path(log_dir), purge_step, False
        self.scalars: list[tuple[str, float, int]] = []
        self.texts: list[tuple[str, str]] = []
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / f"events.out.tfevents.{len(Writer.made)}").write_bytes(b"x")
        Writer.made.append(self)

    def add_scalar(self, tag: str, value: float, step: int, walltime: float) -> None:
        assert not self.closed and walltime > 0
        self.scalars.append((tag, value, step))

    def add_text(self, tag: str, text: str, step: int | None, walltime: float) -> None:
        assert not self.closed and walltime > 0
        self.texts.append((tag, text))

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def writers(monkeypatch: pytest.MonkeyPatch) -> list[Writer]:
    module = types.ModuleType("torch.utils.tensorboard")
    module.SummaryWriter = Writer  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", module)
    monkeypatch.setattr(Writer, "made", [])
    return Writer.made


def event(kind: str, **values: Any) -> dict[str, Any]:
    return {"event": kind, "time": 1.0, **values}


def test_numbers_become_curves_and_words_text(writers: list[Writer], tmp_path: Path) -> None:
    board = TensorBoard(tmp_path)
    assert not (tmp_path / "tensorboard").exists()  # nothing before the run folder is accepted
    board(event("start", total=9, notes=["first", "second"]))
    board(event("step", step=0, total=9, epoch=0, lr=0.1, terms={"a": 1.5, "b": -2.0}))
    board(event("score", step=1, top1={"student": 0.5}))
    board(event("held_out", step=1, accuracy=0.75))
    board(event("end"))
    (writer,) = writers
    assert writer.folder == tmp_path / "tensorboard"
    assert writer.scalars == [
        ("epoch", 0, 0), ("lr", 0.1, 0), ("terms/a", 1.5, 0), ("terms/b", -2.0, 0),
        ("score/top1/student", 0.5, 1), ("held_out/accuracy", 0.75, 1),
    ]  # fmt: skip
    assert writer.texts == [("start/notes", "first\n\nsecond")]


def test_a_new_run_forgets_the_curves_of_the_old_one(writers: list[Writer], tmp_path: Path) -> None:
    (tmp_path / "tensorboard").mkdir()
    old = tmp_path / "tensorboard" / "events.out.tfevents.1234"
    old.write_bytes(b"old")
    TensorBoard(tmp_path)(event("start", total=1, notes=[]))
    assert not old.exists() and len(list((tmp_path / "tensorboard").iterdir())) == 1


def test_a_resumed_run_goes_on_with_its_curves(writers: list[Writer], tmp_path: Path) -> None:
    (tmp_path / "tensorboard").mkdir()
    old = tmp_path / "tensorboard" / "events.out.tfevents.1234"
    old.write_bytes(b"old")
    TensorBoard(tmp_path)(event("step", step=7, total=9, epoch=0, lr=0.1, terms={}))
    assert old.exists() and writers[0].purge_step == 7


def test_what_was_written_is_kept_when_the_run_stops(writers: list[Writer], tmp_path: Path) -> None:
    heard: list[str] = []
    with (
        pytest.raises(KeyboardInterrupt),
        recorded(lambda e: heard.append(e["event"]), tmp_path, wanted=True) as listener,
    ):
        listener(event("start", total=1, notes=[]))
        raise KeyboardInterrupt
    assert heard == ["start"] and writers[0].closed


def test_not_wanted_means_untouched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with recorded(silent, tmp_path, wanted=False) as listener:
        assert listener is silent


def test_the_missing_extra_is_named_before_anything_runs(
    source_run: TrainRun, target_images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(UsageError, match=r"pip install 'dept\[tensorboard\]'"):
        TensorBoard(tmp_path)
    argv = [
        "adapt",
        str(source_run.file),
        str(target_images),
        "--out",
        str(tmp_path / "run"),
        "--method",
        "dept",
        "--tensorboard",
    ]
    assert main([*argv, *SMALL]) == 2
    assert "pip install 'dept[tensorboard]'" in capsys.readouterr().err and not (tmp_path / "run").exists()


def test_adapt_writes_the_same_events(
    writers: list[Writer], source_run: TrainRun, target_images: Path, target_labelled: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    argv = ["adapt", str(source_run.file), str(target_images), "--out", str(run), "--method", "tent"]
    assert main([*argv, "--score", str(target_labelled), "--tensorboard", *SMALL]) == 0
    (writer,) = writers
    assert writer.closed and writer.folder == run / "tensorboard"
    stored = events(run)
    terms = [(f"terms/{n}", v, e["step"]) for e in stored if e["event"] == "step" for n, v in e["terms"].items()]
    scores = [
        (f"score/{metric}/{n}", v, e["step"])
        for e in stored
        if e["event"] == "score"
        for metric in ("top1", "mean_per_class")
        for n, v in e[metric].items()
    ]
    assert terms and [row for row in writer.scalars if row[0].startswith("terms/")] == terms
    assert scores and [row for row in writer.scalars if row[0].startswith("score/")] == scores


def test_uda_writes_events_too(
    writers: list[Writer], source_run: TrainRun, source_images: Path, target_images: Path, tmp_path: Path
) -> None:
    argv = ["uda", str(source_run.file), str(source_images), str(target_images), "--out", str(tmp_path / "run")]
    assert main([*argv, "--method", "erm", "--tensorboard", *SMALL]) == 0
    assert {"terms/cross_entropy", "lr"} <= {tag for tag, _, _ in writers[0].scalars} and writers[0].closed


def test_train_and_interruption(
    writers: list[Writer], source_run: TrainRun, source_images: Path, target_images: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    argv = ["train", str(source_images), "--out", str(tmp_path / "t"), "--no-pretrained", "--stages", "0", "--timm",
            '{"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 4, "num_heads": 2}']  # fmt: skip
    assert main([*argv, "--arch", "vit_tiny_patch16_224", "--tensorboard", *SMALL]) == 0
    tags = {tag for tag, _, _ in writers[0].scalars}
    assert {"terms/cross_entropy", "held_out/accuracy", "lr"} <= tags and writers[0].closed
    monkeypatch.setattr("dept.runs.folder.stop_signal", StopAfter(1))
    argv = ["adapt", str(source_run.file), str(target_images), "--out", str(tmp_path / "a"), "--method", "tent"]
    assert main([*argv, "--tensorboard", *SMALL]) == 130
    assert writers[1].closed and writers[1].scalars


def test_with_the_real_writer(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    for resumed in (False, True):
        with recorded(silent, tmp_path, wanted=True) as listener:
            if not resumed:
                listener(event("start", total=4, notes=["a note"]))
            for step in range(2 if resumed else 0, 4):
                listener(event("step", step=step, total=4, epoch=0, lr=0.1, terms={"a": step + 10.0 * resumed}))
    read = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert [(s.step, s.value) for s in read.Scalars("terms/a")] == [(0, 0.0), (1, 1.0), (2, 12.0), (3, 13.0)]
    assert "start/notes/text_summary" in read.Tags()["tensors"]


def test_a_stream_writes_its_events_too(
    writers: list[Writer], source_run: TrainRun, target_images: Path, tmp_path: Path
) -> None:
    run, names = tmp_path / "run", sorted(target_images.rglob("*.png"))
    first, more = tmp_path / "first.txt", tmp_path / "all.txt"
    first.write_text("\n".join(map(str, names[:8])))
    more.write_text("\n".join(map(str, names)))
    words = ["--out", str(run), "--method", "tent", "--batch", "4", "--order", "as-is", "--device", "cpu", "--no-guard"]
    assert main(["stream", str(source_run.file), str(first), *words, "--tensorboard"]) == 0
    assert main(["stream", str(source_run.file), str(more), *words, "--tensorboard", "--resume"]) == 0
    begun, resumed = writers
    assert begun.closed and resumed.closed and (begun.purge_step, resumed.purge_step) == (None, 2)
    steps = [e for e in events(run) if e["event"] == "step"]
    terms = [(f"terms/{n}", v, e["step"]) for e in steps for n, v in e["terms"].items()]
    curves = [row for row in begun.scalars + resumed.scalars if row[0].startswith("terms/")]
    assert len(steps) == 3 and curves == terms
