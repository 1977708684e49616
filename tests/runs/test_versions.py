"""No adapter is lost when another takes its place, and the way back leads to the whole run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from dept.cli.main import main
from dept.errors import DataError, Interrupted, UsageError
from dept.io import read_meta, write_tensors
from dept.runs import folder as run_folder
from dept.runs.adapt import adapt
from dept.runs.folder import alone_in
from dept.runs.read import read_run
from dept.runs.stream_run import stream_into
from dept.runs.train import TrainRun, train
from dept.runs.versions import KEPT, RECORDS, history, keep, numbered, undo, versions
from support import PROJECTION, StopAfter, same_bits, tiny_model

TENT: dict[str, Any] = {"method": "tent", "batch": 4, "max_iters": 2, "device": "cpu", "lr": 0.5}

VERDICT = dict.fromkeys(("gain", "p_value", "images", "disagreeing", "right_after", "right_before", "neither"), 0) | {
    "verdict": "improved", "ci95": [0, 0], "labels": {}, "products": [],
}  # fmt: skip


def names(folder: Path) -> set[str]:
    return {file.name for file in folder.iterdir() if not file.name.startswith(".")}


def test_versions_move_up_and_the_oldest_goes(tmp_path: Path) -> None:
    keep(tmp_path)
    assert names(tmp_path) == set()
    for number in range(KEPT + 3):
        keep(tmp_path)
        (tmp_path / "adapter.safetensors").write_text(str(number))
    kept = [numbered(tmp_path / "adapter.safetensors", number).read_text() for number in versions(tmp_path)]
    assert kept == [str(number) for number in range(KEPT + 1, 1, -1)]
    assert len(names(tmp_path)) == KEPT + 1


def test_versions_of_a_stream_reach_back_to_its_beginning(tmp_path: Path) -> None:
    for seen in range(10, 2001, 10):
        keep(tmp_path, seen=seen)
        write_tensors(tmp_path / "adapter.safetensors", {}, {"kind": "adapter", "images": seen})
    images = [one.images for one in history(tmp_path)]
    assert images[0] == 1990 and images[-1] == 10 and len(images) == KEPT
    ages = [2000 - (seen or 0) for seen in images]
    assert all(any(low < age <= 5 * low for age in ages) for low in (5, 50, 400)), ages  # of every size
    numbered(tmp_path / "adapter.safetensors", 3).write_bytes(b"damaged")
    keep(tmp_path, seen=2010)  # which does not end the stream


def test_an_overwritten_run_comes_back(source_run: TrainRun, target_images: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    adapt(source_run.file, target_images, out=out, **TENT)
    (out / "verdict.json").write_text(json.dumps(VERDICT))
    records = [name for name in RECORDS if not name.endswith("safetensors")]
    before = {name: (out / name).read_bytes() for name in ("adapter.safetensors", *records)}
    adapt(source_run.file, target_images, out=out, overwrite=True, **{**TENT, "seed": 1, "lr": 1.0})
    after = (out / "adapter.safetensors").read_bytes()
    assert not (out / "verdict.json").exists() and after != before["adapter.safetensors"]
    assert {name: numbered(out / name, 1).read_bytes() for name in before} == before
    (out / "report.html").write_text("about the second run")
    done = undo(out)
    assert {name: (out / name).read_bytes() for name in before} == before and not (out / "report.html").exists()
    assert (out / "adapter.undone.safetensors").read_bytes() == after
    assert (done.run, done.earlier) == (True, 0) and "(method tent, 10 images)" in str(done)
    assert read_run(out).result["protocol"]["seed"] == 0
    with pytest.raises(UsageError, match=r"nothing to undo in .*: it has no adapter.1.safetensors"):
        undo(out)


def test_several_steps_back(source_run: TrainRun, target_images: Path, tmp_path: Path) -> None:
    for seed in range(3):
        adapt(source_run.file, target_images, out=tmp_path, overwrite=True, **TENT, seed=seed)
    assert versions(tmp_path) == [1, 2]
    assert [undo(tmp_path).meta["seed"], undo(tmp_path).meta["seed"]] == [1, 0]
    assert read_run(tmp_path).result["protocol"]["seed"] == 0 and versions(tmp_path) == []


def test_any_version_can_be_restored(source_run: TrainRun, target_images: Path, tmp_path: Path) -> None:
    for seed in range(4):
        adapt(source_run.file, target_images, out=tmp_path, overwrite=True, **TENT, seed=seed)
    latest = (tmp_path / "adapter.safetensors").read_bytes()
    with pytest.raises(UsageError, match=r"has no version 4\. It has 1, 2, 3"):
        undo(tmp_path, 4)
    done = undo(tmp_path, 2)
    assert (done.meta["seed"], done.earlier, read_run(tmp_path).result["protocol"]["seed"]) == (1, 1, 1)
    assert (tmp_path / "adapter.undone.safetensors").read_bytes() == latest
    assert versions(tmp_path) == [1] and undo(tmp_path).meta["seed"] == 0


def test_a_harmful_run_is_undone_with_its_adapter(source_run: TrainRun, target_images: Path, tmp_path: Path) -> None:
    adapt(source_run.file, target_images, out=tmp_path, **TENT, accept=True)
    keep(tmp_path, records=True)
    (tmp_path / "adapter.safetensors").rename(tmp_path / "adapter.rejected.safetensors")
    undo(tmp_path)
    assert {"adapter.safetensors", "adapter.undone.safetensors"} <= names(tmp_path)
    assert "adapter.rejected.safetensors" not in names(tmp_path)


def test_an_interrupted_overwrite_keeps_one_version_and_can_be_undone(
    source_run: TrainRun, target_images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    adapt(source_run.file, target_images, out=tmp_path, **TENT)
    first = (tmp_path / "adapter.safetensors").read_bytes()
    for _ in range(2):
        with monkeypatch.context() as patch, pytest.raises(Interrupted):
            patch.setattr(run_folder, "stop_signal", StopAfter(1))
            adapt(source_run.file, target_images, out=tmp_path, overwrite=True, **TENT, seed=1)
    assert versions(tmp_path) == [1] and not (tmp_path / "result.json").exists()
    undo(tmp_path)
    assert (tmp_path / "adapter.safetensors").read_bytes() == first and read_run(tmp_path).adapter
    assert not (tmp_path / "resume.safetensors").exists() and (tmp_path / "resume.undone.safetensors").exists()


def test_a_stream_keeps_what_it_saved_before(source_run: TrainRun, target_images: Path, tmp_path: Path) -> None:
    """Ten images in batches of four are three updates, all saved."""
    settings: dict[str, Any] = {"method": "tent", "lr": 0.5, "batch": 4, "save_every": 1, "guard": False}
    stream_into(source_run.file, target_images, out=tmp_path, **settings)
    assert versions(tmp_path) == [1, 2]
    images = [read_meta(numbered(tmp_path / "adapter.safetensors", number))["images"] for number in (1, 2)]
    assert images == [8, 4] and read_meta(tmp_path / "adapter.safetensors")["images"] == 10
    done = undo(tmp_path)
    assert read_meta(tmp_path / "adapter.safetensors")["images"] == 8 and not done.run and done.rewound
    assert "if resumed, continues from there" in str(done) and "1 earlier version left" in str(done)
    assert len(read_run(tmp_path).predictions) == 10


@pytest.mark.parametrize("guard", [False, True])
def test_a_stream_continues_from_where_it_went_back_to(
    source_run: TrainRun, target_images: Path, tmp_path: Path, guard: bool
) -> None:
    """Its predictions stay, and nothing of what it had learned since is learned again."""
    settings: dict[str, Any] = {"method": "tent", "lr": 0.5, "batch": 4, "save_every": 1, "guard": guard}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dept.methods.tent.Tent.fewest_images", 4)
        patch.setattr("dept.health.guard.FEWEST", 1)
        patch.setattr("dept.health.guard.VARIETY", 0.0)
        stream_into(source_run.file, target_images, out=tmp_path, **settings)
        before = (tmp_path / "predictions.jsonl").read_bytes()
        undone = (tmp_path / "adapter.safetensors").read_bytes()
        for _ in versions(tmp_path):  # all the way; under guard, the last two images are too few to learn from
            undo(tmp_path)
        back = load_file(tmp_path / "adapter.safetensors")
        assert read_meta(tmp_path / "adapter.safetensors")["images"] == 4
        stream_into(source_run.file, target_images, out=tmp_path, resume=True, **settings)  # nothing new comes
    assert (tmp_path / "predictions.jsonl").read_bytes() == before
    assert same_bits(load_file(tmp_path / "adapter.safetensors"), back)
    assert (tmp_path / "adapter.safetensors").read_bytes() != undone


def test_a_stream_of_an_earlier_version_goes_back_without_a_snapshot(
    source_run: TrainRun, target_images: Path, tmp_path: Path
) -> None:
    settings: dict[str, Any] = {"method": "tent", "batch": 4, "save_every": 1, "guard": False}
    stream_into(source_run.file, target_images, out=tmp_path, **settings)
    for file in tmp_path.glob("snapshot*"):
        file.unlink()
    assert "continues from its last state" in str(undo(tmp_path))


def test_a_resumed_stream_keeps_versions_too(source_run: TrainRun, target_images: Path, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"method": "tent", "lr": 0.5, "batch": 4, "device": "cpu", "guard": False}
    files = sorted(str(file) for file in target_images.rglob("*.png"))
    for number, part in enumerate((files[:4], files[4:8])):
        (tmp_path / "list.txt").write_text("\n".join(part))
        stream_into(source_run.file, tmp_path / "list.txt", out=tmp_path / "run", resume=bool(number), **settings)
    assert versions(tmp_path / "run") == [1]
    stream_into(source_run.file, tmp_path / "list.txt", out=tmp_path / "run", resume=True, **settings)
    assert versions(tmp_path / "run") == [1]  # nothing was learned since


def test_damage_is_noticed_before_anything_is_replaced(
    source_run: TrainRun, target_images: Path, tmp_path: Path
) -> None:
    adapt(source_run.file, target_images, out=tmp_path, **TENT)
    now = (tmp_path / "adapter.safetensors").read_bytes()
    (tmp_path / "adapter.1.safetensors").write_bytes(now[:-1] + bytes([now[-1] ^ 1]))
    with pytest.raises(DataError, match=r"adapter.1.safetensors is damaged"):
        undo(tmp_path)
    assert (tmp_path / "adapter.safetensors").read_bytes() == now and "adapter.1.safetensors" in names(tmp_path)


def test_a_source_training_keeps_no_versions(source_images: Path, tmp_path: Path) -> None:
    for _ in range(2):
        train(tiny_model().train(), source_images, out=tmp_path, overwrite=True, epochs=1, device="cpu", **PROJECTION)
    assert not [name for name in names(tmp_path) if ".1." in name]


def test_the_command(
    source_run: TrainRun, target_images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for seed in range(2):
        adapt(source_run.file, target_images, out=tmp_path, overwrite=True, **TENT, seed=seed)
    with alone_in(tmp_path):
        assert main(["undo", str(tmp_path)]) == 2 and "is in use by process" in capsys.readouterr().err
    assert main(["undo", str(tmp_path), "--list"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].split()[:3] == ["1", "tent", "10"]
    assert main(["undo", str(tmp_path), "--list", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["number"] == 1
    assert main(["undo", str(tmp_path), "--to", "3"]) == 2 and "has no version 3" in capsys.readouterr().err
    assert main(["undo", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["meta"]["seed"] == 0
    assert main(["undo", str(tmp_path)]) == 2 and "nothing to undo" in capsys.readouterr().err
    assert main(["undo", str(tmp_path / "gone")]) == 2 and "is not a folder" in capsys.readouterr().err
