"""The guard in a run folder and on the command line: reasons on record, and nothing lost in a crash."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

import dept
from dept.cli.main import main
from dept.data.decoding import decode
from dept.data.loader import Views, normalised, stacked, views_of
from dept.health.guard import LADDER, Notice
from dept.models.files import load_model, save_model
from dept.runs.read import read_run
from dept.runs.stream_run import _Session, stream_into
from dept.runs.train import TrainRun
from support import events, same_bits, scenes

COUNT = 256


@pytest.fixture(scope="module")
def park(source_run: TrainRun, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A model file and a folder of images, in which the model sees all of its classes."""
    root = tmp_path_factory.mktemp("park")
    (root / "images").mkdir()
    for number, scene in enumerate(scenes(COUNT)):
        Image.fromarray((255 * scene).byte().permute(1, 2, 0).numpy()).save(root / "images" / f"{number:03}.png")
    model = load_model(source_run.file).eval()
    with torch.no_grad():
        features = model.read(test_views(model, root / "images")).features
        directions = torch.randn(3, features.shape[1], generator=torch.Generator().manual_seed(5))
        model.head.weight.copy_(1.5 * directions / (features @ directions.T).std(dim=0)[:, None])
        model.head.bias.copy_(-model.head.weight @ features.mean(dim=0))
    return save_model(model, root / "model.safetensors"), root / "images"


def test_views(model: dept.Model, folder: Path) -> torch.Tensor:
    views = Views(model.card.preprocess)
    rows = [views_of(decode(path, 3), "t", views, (0, 0)) for path in sorted(folder.iterdir())]
    return normalised(stacked(rows)[0], model.card.preprocess)


test_views.__test__ = False  # type: ignore[attr-defined]


def one_scene(park: tuple[Path, Path], folder: Path, count: int = 80) -> Path:
    """The same image over and over, under many names."""
    folder.mkdir()
    for number in range(count):
        shutil.copy(park[1] / "000.png", folder / f"{number:03}.png")
    return folder


def rows(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "predictions.jsonl").read_text().splitlines()]


def test_a_quiet_stream_gives_what_an_unguarded_one_gives(park: tuple[Path, Path], tmp_path: Path) -> None:
    settings: dict[str, Any] = {"method": "tent", "batch": 64, "lr": 1e-3, "device": "cpu"}
    guarded = stream_into(*park, out=tmp_path / "guarded", **settings)
    free = stream_into(*park, out=tmp_path / "free", guard=False, **settings)
    assert rows(tmp_path / "guarded") == rows(tmp_path / "free") and "guard" not in free.result
    assert same_bits(*(load_file(tmp_path / name / "adapter.safetensors") for name in ("guarded", "free")))
    assert guarded.result["guard"] == {
        "updates": 4, "not_learned_from": 0, "alarms": 0, "learning_rate": 1.0, "state": "learning",
    }  # fmt: skip
    assert "256 images, 4 updates" in str(guarded) and "Guard" not in str(guarded)


def test_a_pause_is_reported(park: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, out = one_scene(park, tmp_path / "same"), tmp_path / "run"
    command = ["stream", str(park[0]), str(folder), "--out", str(out), "--method", "tent", "--batch", "64"]
    assert main([*command, "--device", "cpu"]) == 0
    said = capsys.readouterr().err
    assert "Guard, batch 1: Learning is paused: the source model sees 1.0 effective classes in 64 images" in said
    assert "80 images, 0 updates" in said and "Guard: 2 batches were not learned from, 0 alarms" in said
    (found,) = [event for event in events(out) if event["event"] == "guard"]
    assert found["action"] == "pause" and found["step"] == 1 and "effective classes" in found["reason"]
    assert read_run(out).result["guard"]["state"] == "paused"
    source = load_model(park[0]).state_dict()
    assert all(torch.equal(source[name], t) for name, t in load_file(out / "adapter.safetensors").items())


def test_an_alarm_replaces_the_harmful_adapter_at_once(
    park: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Although it is saved once in 50 updates only."""
    saved: list[int] = []
    save = _Session._save
    monkeypatch.setattr(_Session, "_save", lambda self: (saved.append(self.stream.steps), save(self)))
    settings: dict[str, Any] = {"method": "tent", "batch": 16, "lr": 100.0, "device": "cpu"}
    run = stream_into(*park, out=tmp_path, **settings)
    told = [event for event in events(tmp_path) if event["event"] == "guard"]
    alarms = [event["step"] for event in told if event["action"] in LADDER]
    assert len(alarms) == run.result["guard"]["alarms"] > 0
    assert saved == [1, *alarms, COUNT // 16]


@pytest.mark.parametrize("lr", [1e-3, 100.0])
def test_a_crash_loses_no_bit_of_a_guarded_stream(
    park: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lr: float
) -> None:
    """Killed in the middle of a window, after an alarm or without one, long after the last save."""
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    settings: dict[str, Any] = {"method": "tent", "batch": 16, "lr": lr, "group": 6, "save_every": 3, "device": "cpu"}
    stream_into(*park, out=whole, **settings)
    predict, left = _Session._predict, iter(range(35))

    def killed(session: _Session, *words: Any) -> None:
        if next(left, None) is None:
            raise MemoryError
        predict(session, *words)

    with monkeypatch.context() as patch, pytest.raises(MemoryError):
        patch.setattr(_Session, "_predict", killed)
        stream_into(*park, out=parts, **settings)
    stream_into(*park, out=parts, resume=True, **settings)
    assert rows(parts) == rows(whole)
    for name in ("adapter.safetensors", "resume.safetensors"):
        assert same_bits(load_file(parts / name), load_file(whole / name))
    told = [[{**event, "time": 0} for event in events(out) if event["event"] == "guard"] for out in (whole, parts)]
    assert told[0] == told[1] and bool(told[0]) == (lr > 1)


def test_a_stream_that_was_saved_without_a_guard_can_go_on(park: tuple[Path, Path], tmp_path: Path) -> None:
    """As streams of earlier versions were; but a guard is not switched on or off on the way."""
    settings: dict[str, Any] = {"method": "tent", "batch": 16, "device": "cpu"}
    stream_into(*park, out=tmp_path, guard=False, **settings)
    with pytest.raises(dept.errors.UsageError, match="guard differ"):
        stream_into(*park, out=tmp_path, resume=True, **settings)
    stream_into(*park, out=tmp_path, resume=True, guard=False, **settings)


def test_the_generator_is_guarded_and_tells(park: tuple[Path, Path]) -> None:
    told: list[Notice] = []
    image = [park[1] / "000.png"] * 64
    replies = list(dept.stream(park[0], [image], method="tent", batch=64, device="cpu", on_alarm=told.append))
    assert replies[0][1] is None and [notice.action for notice in told] == ["pause"]
    (free,) = dept.stream(park[0], [image], method="tent", batch=64, device="cpu", guard=False)
    assert free[1] is not None and torch.equal(free[0], replies[0][0])
