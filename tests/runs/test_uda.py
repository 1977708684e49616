"""The paired loop, the run folder and the command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from uda_support import SMALL

import dept.cli.uda
import dept.runs.uda
from dept import methods
from dept.data.images import find_images, find_labelled
from dept.data.loader import Views
from dept.errors import DataError, DeptError, Interrupted, UsageError
from dept.models.files import load_model, save_model
from dept.models.model import Model
from dept.runs.uda import Domain, UDARun, adapt_with_source
from support import CLASSES, StopAfter, events, same_bits, state_of, tiny_model, tiny_resnet, write_labelled

RUN: dict[str, Any] = {"max_iters": 4, "iters_per_epoch": 2, "device": "cpu"}


def settings(name: str) -> dict[str, Any]:
    known = methods.get(name).Config.__dataclass_fields__
    return RUN | {key: value for key, value in SMALL.items() if key in known}


def run(name: str, source: Path, target: Path, out: Path, **changes: Any) -> UDARun:
    model: Model = changes.pop("model", None) or tiny_model()
    return adapt_with_source(model, source, target, out=out, method=name, **(settings(name) | changes))


@pytest.mark.parametrize("name", methods.available("uda"))
@pytest.mark.parametrize("backbone", [tiny_model, tiny_resnet])
def test_run_writes_an_ordinary_model(
    name: str, backbone: Any, source_images: Path, target_images: Path, target_labelled: Path, tmp_path: Path
) -> None:
    done = run(name, source_images, target_images, tmp_path, model=backbone(), score_on=target_labelled)
    stored = load_model(done.file)
    assert set(stored.state_dict()) == set(backbone().state_dict())
    assert same_bits(state_of(stored), state_of(done.model))
    with torch.no_grad():
        assert stored.eval()(torch.zeros(1, 3, 32, 32)).shape == (1, 3)
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["images"] == 10 and result["source_images"] == 24 and result["steps"] == 4
    assert 0 <= result["after"]["top1"] <= 1 and result["protocol"]["method"] == name
    kinds = [event["event"] for event in events(tmp_path)]
    assert kinds == ["start", "score", "step", "step", "step", "step", "score", "end"]
    assert stored.card.history["uda"]["method"] == name
    assert str(done.file) in str(done) and "Accuracy" in str(done)


@pytest.mark.parametrize("name", ["can", "cdan", "swd"])
@pytest.mark.parametrize("stop", [2, 3])
def test_resume_equals_uninterrupted(
    name: str, stop: int, source_images: Path, target_images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = run(name, source_images, target_images, tmp_path / "whole", model=tiny_resnet())
    with monkeypatch.context() as patch:
        patch.setattr("dept.runs.folder.stop_signal", StopAfter(stop))
        with pytest.raises(Interrupted):
            run(name, source_images, target_images, tmp_path / "broken", model=tiny_resnet())
    resumed = run(name, source_images, target_images, tmp_path / "broken", model=tiny_resnet(), resume=True)
    assert same_bits(state_of(whole.model), state_of(resumed.model))
    assert torch.equal(whole.after, resumed.after)


def test_a_settled_method_ends_the_run(source_images: Path, target_images: Path, tmp_path: Path) -> None:
    wanted = {"max_iters": 0, "epochs": 5, "iters_per_epoch": 2}
    stopped = run("can", source_images, target_images, tmp_path / "stopped", stop_below=1e9, **wanted)
    whole = run("can", source_images, target_images, tmp_path / "whole", stop_below=0.0, **wanted)
    assert (stopped.result["steps"], whole.result["steps"]) == (2, 10)
    assert "2 steps" in str(stopped)


def test_same_seed_same_model(source_images: Path, target_images: Path, tmp_path: Path) -> None:
    one, two, other = (
        run("dann", source_images, target_images, tmp_path / str(n), seed=seed) for n, seed in enumerate((1, 1, 2))
    )
    assert same_bits(state_of(one.model), state_of(two.model))
    assert not same_bits(state_of(one.model), state_of(other.model))


def test_only_whole_batches_and_every_image_before_a_repeat(target_images: Path) -> None:
    domain = Domain(find_images(target_images), Views(tiny_model().card.preprocess, seed=3))
    drawn = list(domain.positions(4, range(6)))  # 10 images: two whole batches per pass
    assert [len(batch) for batch in drawn] == [4] * 6
    assert all(len(set(drawn[i] + drawn[i + 1])) == 8 for i in (0, 2, 4))
    assert drawn[:2] != drawn[2:4]
    assert list(domain.positions(4, range(3, 6))) == drawn[3:]


def test_training_on_the_source_learns_it(source_images: Path, target_images: Path, tmp_path: Path) -> None:
    done = run("erm", source_images, target_images, tmp_path, max_iters=30, batch=8, score_on=source_images)
    steps = [event["terms"]["loss"] for event in events(tmp_path) if event["event"] == "step"]
    assert sum(steps[-5:]) < sum(steps[:5])
    assert done.result["after"]["nll"] < done.result["before"]["nll"]


def test_scores_during_the_run(source_images: Path, target_images: Path, target_labelled: Path, tmp_path: Path) -> None:
    run("erm", source_images, target_images, tmp_path, score_on=target_labelled, eval_every=1)
    assert [event["step"] for event in events(tmp_path) if event["event"] == "score"] == [0, 2, 4]


# ---- bad input ----


def test_too_few_images(source_images: Path, target_images: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"target domain has 10 usable images .* fewer than one batch of 11"):
        run("erm", source_images, target_images, tmp_path, batch=11)
    with pytest.raises(DataError, match="lower `batch` to 24 or less"):
        run("erm", source_images, target_images, tmp_path, batch=25)
    assert not (tmp_path / "events.jsonl").exists()


@pytest.mark.parametrize("classes", [(*CLASSES, "violet"), CLASSES[:2], ("a", "b", "c")])
def test_differing_class_sets(
    classes: tuple[str, ...], source_images: Path, target_images: Path, tmp_path: Path
) -> None:
    with pytest.raises(DataError, match=r"violet|red|rename"):
        run("erm", source_images, target_images, tmp_path, model=tiny_model(classes))


def test_image_sets_must_carry_the_models_labels(source_images: Path, target_images: Path, tmp_path: Path) -> None:
    found: Any = find_labelled(source_images)
    assert run("erm", found, target_images, tmp_path / "good").result["source_images"] == 24
    with pytest.raises(DataError, match="must be labelled with the model's classes"):
        run("erm", found.unlabelled(), target_images, tmp_path / "bad")


def test_unknown_setting(source_images: Path, target_images: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no setting 'temperature'"):
        run("dann", source_images, target_images, tmp_path, temperature=2.0)


# ---- the command ----


@pytest.fixture
def argv(source_images: Path, target_images: Path, tmp_path: Path) -> list[str]:
    file = save_model(tiny_model(), tmp_path / "model.safetensors")
    words = [file, source_images, target_images, "--out", tmp_path / "run", "--method", "mcc", "--batch", 4]
    return [str(word) for word in [*words, "--max-iters", 2, "--device", "cpu"]]


def test_command(argv: list[str], target_labelled: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert dept.cli.uda.run([*argv, "--temperature", "2", "--score", str(target_labelled), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["protocol"]["config"]["temperature"] == 2 and result["steps"] == 2
    with pytest.raises(DeptError, match="already holds a run"):
        dept.cli.uda.run(argv)
    assert dept.cli.uda.run([*argv, "--overwrite"]) == 0
    assert "Next:  dept predict" in capsys.readouterr().out


def test_command_interrupted(
    argv: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("dept.runs.folder.stop_signal", StopAfter(1))
        assert dept.cli.uda.run(argv) == 130
    assert "dept uda" in capsys.readouterr().err
    assert dept.cli.uda.run([*argv, "--resume"]) == 0


@pytest.mark.parametrize("words", [["--method", "nonsense"], ["--method", "mcc", "--preset", "nonsense"]])
def test_command_with_unknown_names(words: list[str]) -> None:
    with pytest.raises(UsageError, match="nonsense"):
        dept.cli.uda.run(words)


def test_help_shows_the_methods_own_settings(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        dept.cli.uda.run(["--method", "can", "--help-all"])
    page = capsys.readouterr().out
    assert "--classes-per-step" in page and "--temperature" not in page


def test_broken_scored_images_are_reported(source_images: Path, target_images: Path, tmp_path: Path) -> None:
    scored = write_labelled(tmp_path / "scored", 1)
    (scored / "red" / "bad.png").write_bytes(b"not an image")
    done = run("erm", source_images, target_images, tmp_path / "my run", score_on=scored)
    assert [Path(path).name for path, _ in done.result["skipped_scored"]] == ["bad.png"]
    assert "Skipped 1 scored files" in str(done) and f"dept predict '{done.file}'" in str(done)
