"""Method auto: candidates in turn, one is kept; interrupted, resumed, repeated."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from dept import evaluate, load
from dept.cli.main import main
from dept.data.images import find_images
from dept.data.loader import Runtime
from dept.errors import DataError, Interrupted, UsageError
from dept.health import choice
from dept.health.choice import Choice
from dept.io import file_sha256
from dept.models.files import load_model, save_model
from dept.report.measure import ReportOptions
from dept.report.page import make_page
from dept.runs import auto
from dept.runs.adapt import adapt
from dept.runs.auto import affordable, parse_budget
from dept.runs.loops import class_probabilities
from dept.runs.read import read_run
from dept.runs.train import TrainRun
from support import StopAfter, same_bits, state_of, tiny_resnet

# Ten images say little about class shares, so they are declared.
QUICK: dict[str, Any] = {"max_iters": 3, "batch": 4, "prior": "source", "device": "cpu"}


def test_one_is_kept_and_the_result_says_why(source_run: TrainRun, target_images: Path, tmp_path: Path) -> None:
    run = adapt(source_run.file, target_images, out=tmp_path / "run", **QUICK)
    record = run.result["auto"]
    assert [row["name"] for row in record["candidates"]][:3] == ["source", "neo", "dept+"]
    assert record["kept"] == run.result["method"] and record["steps"] == 3 and record["prior"] == "source"
    assert f"auto kept {record['kept']}: {record['why']}" in str(run)
    kept = tmp_path / "run" / "candidates" / record["kept"]
    assert file_sha256(run.adapter) == file_sha256(kept / "adapter.safetensors")
    assert run.folder == tmp_path / "run" and not (run.folder / "plan.json").exists()
    # What is returned is what the file gives.
    model = load(source_run.file, adapter=run.adapter)
    torch.testing.assert_close(class_probabilities(model, find_images(target_images), Runtime()), run.after)


@pytest.mark.parametrize("kept", ["source", "neo", "dept+"])
def test_whichever_is_chosen_is_the_product(
    kept: str, source_run: TrainRun, target_images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(auto, "choose", lambda *given, **named: Choice(kept, "said so.", []))
    run = adapt(source_run.file, target_images, out=tmp_path / "run", **QUICK)
    assert run.result["method"] == kept
    if kept == "source":
        assert torch.equal(run.before, run.after)


def test_a_second_run_is_the_same(source_run: TrainRun, target_images: Path, tmp_path: Path) -> None:
    one, two = (adapt(source_run.file, target_images, out=tmp_path / name, **QUICK) for name in "ab")
    assert torch.equal(one.after, two.after) and one.result["auto"] == two.result["auto"]


def test_a_model_that_is_given_stays_as_it_is(source_run: TrainRun, target_images: Path, tmp_path: Path) -> None:
    model = load_model(source_run.file)
    before = state_of(model)
    run = adapt(model, target_images, out=tmp_path / "run", **QUICK)
    assert same_bits(before, state_of(model)) and run.model is not model


def test_an_interrupted_run_goes_on_in_the_candidate_it_was_in(
    source_run: TrainRun, target_images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = adapt(source_run.file, target_images, out=tmp_path / "whole", **QUICK)
    with monkeypatch.context() as patch, pytest.raises(Interrupted):
        patch.setattr("dept.runs.folder.stop_signal", StopAfter(5))  # NEO makes three steps of its own
        adapt(source_run.file, target_images, out=tmp_path / "run", **QUICK)
    assert (tmp_path / "run" / "plan.json").exists() and not (tmp_path / "run" / "result.json").exists()
    with pytest.raises(UsageError, match="already holds a run"):
        adapt(source_run.file, target_images, out=tmp_path / "run", **QUICK)
    with pytest.raises(UsageError, match="started with other settings"):
        adapt(source_run.file, target_images, out=tmp_path / "run", resume=True, **QUICK | {"max_iters": 4})
    resumed = adapt(source_run.file, target_images, out=tmp_path / "run", resume=True, **QUICK)
    assert torch.equal(whole.after, resumed.after) and whole.result["auto"] == resumed.result["auto"]


def test_a_run_that_stops_after_its_candidates_reads_them_back(
    source_run: TrainRun, target_images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def crash(*given: Any, **named: Any) -> Choice:
        raise KeyboardInterrupt

    whole = adapt(source_run.file, target_images, out=tmp_path / "whole", **QUICK)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(auto, "choose", crash)
        adapt(source_run.file, target_images, out=tmp_path / "run", **QUICK)
    resumed = adapt(source_run.file, target_images, out=tmp_path / "run", resume=True, **QUICK)
    torch.testing.assert_close(whole.after, resumed.after)
    torch.testing.assert_close(whole.before, resumed.before)
    assert file_sha256(whole.adapter) == file_sha256(resumed.adapter)


def test_overwriting_forgets_old_candidates(source_run: TrainRun, target_images: Path, tmp_path: Path) -> None:
    adapt(source_run.file, target_images, out=tmp_path / "run", **QUICK)
    run = adapt(source_run.file, target_images, out=tmp_path / "run", overwrite=True, **QUICK | {"max_iters": 2})
    config = json.loads((tmp_path / "run" / "candidates" / "dept+" / "config.json").read_text())
    assert run.result["auto"]["steps"] == 2 and config["protocol"]["config"]["max_iters"] == 2


def test_absent_classes_bring_in_the_candidate_that_assumes_nothing(
    source_run: TrainRun, target_images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choice, "shares_differ", lambda *given: True)
    run = adapt(source_run.file, target_images, out=tmp_path / "run", **QUICK | {"prior": "unknown"})
    assert [row["name"] for row in run.result["auto"]["candidates"]] == ["source", "neo", "notela"]
    assert run.result["auto"]["kept"] in ("source", "notela")
    assert run.result["expected"]["shares"] == "unknown" and "only labels tell" in str(run)
    declared = adapt(source_run.file, target_images, out=tmp_path / "b", **QUICK)
    assert "notela" not in {row["name"] for row in declared.result["auto"]["candidates"]}


def test_scored_images_do_not_change_the_choice_or_the_adapter(
    source_run: TrainRun, target_images: Path, target_labelled: Path, tmp_path: Path
) -> None:
    blind = adapt(source_run.file, target_images, out=tmp_path / "a", **QUICK)
    scored = adapt(source_run.file, target_images, out=tmp_path / "b", score_on=target_labelled, **QUICK)
    assert file_sha256(blind.adapter) == file_sha256(scored.adapter)
    assert blind.result["auto"] == scored.result["auto"] and blind.result["expected"] == scored.result["expected"]
    assert scored.scored is not None and len(scored.after) == len(scored.scored) == 12 and len(blind.after) == 10
    model = load(source_run.file, adapter=scored.adapter)
    assert scored.result["after"]["top1"] == evaluate(model, target_labelled, device="cpu")["top1"]
    assert read_run(tmp_path / "b").inputs["score"] == str(target_labelled)
    assert "Accuracy" in str(scored) and "Accuracy" not in str(blind)


def test_models_without_room_for_prompts(target_images: Path, tmp_path: Path) -> None:
    file = save_model(tiny_resnet(), tmp_path / "resnet.safetensors")
    run = adapt(file, target_images, out=tmp_path / "run", **QUICK | {"prior": "uniform"})
    assert [row["name"] for row in run.result["auto"]["candidates"]] == ["source", "neo", "shot"]


def test_a_run_that_cannot_begin_leaves_the_folder_free(
    source_run: TrainRun, target_images: Path, tmp_path: Path
) -> None:
    for _ in range(2):
        with pytest.raises(DataError, match="does not exist"):
            adapt(source_run.file, tmp_path / "nothing", out=tmp_path / "run", **QUICK)
    adapt(source_run.file, target_images, out=tmp_path / "run", **QUICK)


def test_the_report_names_the_candidates(source_run: TrainRun, target_images: Path, tmp_path: Path) -> None:
    run = adapt(source_run.file, target_images, out=tmp_path / "run", **QUICK)
    remarks = " ".join(make_page(run.folder, ReportOptions(projection="pca")).remarks)
    assert f"auto kept {run.result['auto']['kept']}: " in remarks and "neo: " in remarks and "dept+: " in remarks


def test_wrong_settings(source_run: TrainRun, target_images: Path, tmp_path: Path, capsys: Any) -> None:
    for settings, message in (
        ({"lr": 0.1}, "has no setting 'lr'"),
        ({"preset": "paper"}, "has no presets"),
        ({"budget": "soon"}, "such as 90s, 5m or 1h"),
        ({"prior": "sauce"}, "source, uniform, unknown or a JSON file"),
    ):
        with pytest.raises(UsageError, match=message):
            adapt(source_run.file, target_images, out=tmp_path / "run", **settings)  # type: ignore[arg-type]
    assert not (tmp_path / "run").exists()
    argv = ["adapt", str(source_run.file), str(target_images), "--out", str(tmp_path / "run"), "--budget", "x"]
    assert main(argv) == 2 and "--budget must be a time" in capsys.readouterr().err


def test_budget() -> None:
    assert [parse_budget(text) for text in ("", "90s", "1.5m", "2h")] == [0, 90, 90, 7200]
    # 30 s for three passes over 100 images: 0.1 s an image. A step of 10 with four forwards, and the views, costs 5 s.
    assert affordable(200, 30, 100, 10, "dept+") == 14  # 60 s are for NEO and its like, 70 s for the renderings
    assert affordable(1, 30, 100, 10, "dept+") == 1


def test_a_budget_shortens_the_run(source_run: TrainRun, target_images: Path, tmp_path: Path) -> None:
    run = adapt(source_run.file, target_images, out=tmp_path / "run", budget="0.001s", **QUICK)
    assert run.result["auto"]["steps"] == 1
