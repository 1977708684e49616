from __future__ import annotations

import json
import math
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

import dept.data.decoding as decoding
import dept.runs.adapt as adapting
import dept.runs.outlook as outlook
from dept.cli.main import main
from dept.data.images import ImageSet, find_images, find_labelled
from dept.data.loader import FirstPass, Runtime, TestPasses, Views
from dept.errors import DataError, DeptError, Interrupted, UsageError
from dept.health import choice
from dept.health.choice import Scored, recentred_shares
from dept.health.expected import Expected
from dept.health.prior import Prior
from dept.health.stopping import Look, Stopping
from dept.inference import evaluate
from dept.io import read_meta, read_tensors
from dept.methods.base import Method
from dept.methods.dept import DePT
from dept.methods.shot import SHOT
from dept.methods.tent import Tent
from dept.metrics import label_free
from dept.models.files import load, load_adapter, load_model
from dept.models.model import fingerprint
from dept.models.stats import save_stats
from dept.runs.adapt import AdaptOptions, AdaptRun, adapt
from dept.runs.job import make_config
from dept.runs.read import read_run
from dept.runs.train import TrainRun
from dept.runs.words import adapted
from support import (
    PROJECTION,
    StopAfter,
    events,
    same_bits,
    scramble,
    spread_predictions,
    state_of,
    tiny_model,
    tiny_resnet,
    write_labelled,
    write_unlabelled,
)

BRIEF: dict[str, Any] = {"batch": 4, "max_iters": 1, "device": "cpu"}
TINY: dict[str, Any] = {"method": "dept", "batch": 4, "epochs": 2, "device": "cpu", **PROJECTION}


@pytest.fixture(scope="module")
def finished(
    source_run: TrainRun, target_images: Path, target_labelled: Path, tmp_path_factory: pytest.TempPathFactory
) -> AdaptRun:
    """One ordinary run: 10 images, 6 steps, scored after each epoch."""
    out = tmp_path_factory.mktemp("adapt") / "run"
    return adapt(source_run.file, target_images, out=out, score_on=target_labelled, eval_every=1, seed=2, **TINY)


def tensors(file: Path) -> dict[str, torch.Tensor]:
    return read_tensors(file, "adapter")[0]


def test_the_run_folder(finished: AdaptRun) -> None:
    names = {path.name for path in finished.folder.iterdir()}
    assert {"config.json", "events.jsonl", "result.json", "adapter.safetensors"} <= names
    assert "resume.safetensors" not in names
    result = json.loads((finished.folder / "result.json").read_text())
    assert result["images"] == 10 and result["method"] == "dept" and result["skipped"] == []
    assert result["adapter_bytes"] == finished.adapter.stat().st_size
    assert result["protocol"]["seed"] == 2 and result["protocol"]["config"]["batch"] == 4
    assert result["protocol"]["evaluated_on"] == "scored images"
    assert {"dept", "torch", "timm", "python", "device"} <= result["environment"].keys()


def test_events(finished: AdaptRun) -> None:
    log = events(finished.folder)
    assert [e["event"] for e in log] == ["start", "score", *["step"] * 3, "score", *["step"] * 3, "score", "end"]
    assert log[0]["total"] == 6
    steps = [e for e in log if e["event"] == "step"]
    assert [e["step"] for e in steps] == list(range(6)) and [e["epoch"] for e in steps] == [0, 0, 0, 1, 1, 1]
    assert steps[0]["terms"].keys() == {
        "loss", "pseudo_label", "cls", "prompt", "prompt_diversity", "class_diversity",
    }  # fmt: skip
    assert steps[0]["lr"] == 5e-3 and steps[3]["lr"] == pytest.approx(2.5e-3)
    scores = [e for e in log if e["event"] == "score"]
    assert [e["step"] for e in scores] == [0, 3, 6]
    assert scores[0]["top1"].keys() == {"student", "teacher"}
    assert scores[-1]["top1"].keys() == {"student", "teacher", "student_knn", "teacher_knn"}
    assert all(event["mean_per_class"].keys() == event["top1"].keys() for event in scores)
    assert all("time" in e for e in log)


def test_scores_are_those_of_the_files(finished: AdaptRun, source_run: TrainRun, target_labelled: Path) -> None:
    before = evaluate(load(source_run.file), target_labelled, device="cpu")
    after = evaluate(load(source_run.file, adapter=finished.adapter), target_labelled, device="cpu")
    for ours, theirs in ((finished.result["before"], before), (finished.result["after"], after)):
        assert ours["top1"] == theirs["top1"] and ours["nll"] == pytest.approx(theirs["nll"], abs=1e-5)
    assert before["nll"] != after["nll"]
    assert finished.result["readouts"]["student"] == pytest.approx(after["top1"])
    per_class = finished.result["readouts_mean_per_class"]
    assert per_class.keys() == finished.result["readouts"].keys()
    assert per_class["student"] == pytest.approx(after["mean_per_class"])


def test_the_adapter_holds_what_moved_and_its_origin(finished: AdaptRun, source_run: TrainRun) -> None:
    assert set(tensors(finished.adapter)) == {"prompts", "head.weight", "head.bias"}
    meta = read_meta(finished.adapter)
    assert meta["method"] == "dept" and meta["seed"] == 2 and meta["images"] == 10
    assert meta["backbone_sha256"] == fingerprint(load_model(source_run.file))
    assert meta["metrics"].keys() == {"before", "after"} and meta["config"]["batch"] == 4


def test_printing_a_run_tells_what_to_do_next(finished: AdaptRun) -> None:
    text = str(finished)
    assert "10 images" in text and f"--adapter {finished.adapter}" in text and "Accuracy" in text
    assert "effective classes" in text and "KiB" in text


def test_same_seed_same_file_other_seed_other_file(
    finished: AdaptRun, source_run: TrainRun, target_images: Path, tmp_path: Path
) -> None:
    same = adapt(source_run.file, target_images, out=tmp_path / "same", seed=2, workers=2, **TINY)
    other = adapt(source_run.file, target_images, out=tmp_path / "other", seed=3, **TINY)
    assert same_bits(tensors(same.adapter), tensors(finished.adapter))  # scoring and workers change nothing
    assert not same_bits(tensors(other.adapter), tensors(finished.adapter))


# ---- labels ----


def test_labels_never_reach_the_adaptation(
    source_run: TrainRun, target_labelled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The method's loop gets images without labels or class names, even when the images given have them."""
    given: list[ImageSet] = []
    real = adapting.offline

    def spy(method: Any, images: ImageSet, *args: Any, **kwargs: Any) -> Any:
        given.append(images)
        assert not kwargs.get("labelled")
        return real(method, images, *args, **kwargs)

    monkeypatch.setattr(adapting, "offline", spy)
    images = find_labelled(target_labelled)
    assert images.labels is not None
    adapt(source_run.file, images, out=tmp_path / "a", score_on=images, **TINY | {"epochs": 1})
    adapt(source_run.file, target_labelled, out=tmp_path / "b", ratio=0.5, max_iters=1, **TINY)
    assert [(len(g), g.labels, g.classes) for g in given] == [(12, None, ()), (6, None, ())]


def test_wrong_labels_change_scores_but_not_the_adapter(
    source_run: TrainRun, target_labelled: Path, tmp_path: Path
) -> None:
    images = find_labelled(target_labelled)
    lies = ImageSet(images.root, images.paths, tuple((label + 1) % 3 for label in images.labels), images.classes)
    honest = adapt(source_run.file, images, out=tmp_path / "a", score_on=images, **TINY | {"epochs": 1})
    lying = adapt(source_run.file, lies, out=tmp_path / "b", score_on=lies, **TINY | {"epochs": 1})
    assert same_bits(tensors(honest.adapter), tensors(lying.adapter))
    assert honest.result["before"]["per_class"] != lying.result["before"]["per_class"]


def test_without_score_nothing_about_accuracy_is_said(
    source_run: TrainRun, target_images: Path, tmp_path: Path
) -> None:
    run = adapt(source_run.file, target_images, out=tmp_path / "run", max_iters=1, **TINY)
    assert "before" not in run.result and "Accuracy" not in str(run)
    assert run.result["protocol"]["evaluated_on"] == "target images (transductive)"
    assert read_meta(run.adapter)["metrics"] == {}
    assert [e["event"] for e in events(run.folder)] == ["start", "step", "end"]


# ---- ratio ----


def test_ratio_takes_a_share_and_more_epochs(source_run: TrainRun, target_labelled: Path, tmp_path: Path) -> None:
    share = {"ratio": 0.5, "subset": "stratified"}
    run = adapt(source_run.file, target_labelled, out=tmp_path / "run", score_on=target_labelled, **share, **TINY)
    assert run.result["images"] == 6 and run.result["before"]["n"] == 12  # scored on all
    protocol = run.result["protocol"]
    assert (protocol["ratio"], protocol["subset"]) == (0.5, "stratified")
    assert (protocol["config"]["epochs"], protocol["config"]["bank_refresh"]) == (4, 2)
    assert sum(e["event"] == "step" for e in events(run.folder)) == 4 * 2


def test_a_ratio_needs_no_labels(source_run: TrainRun, target_images: Path, tmp_path: Path) -> None:
    run = adapt(source_run.file, target_images, out=tmp_path / "run", ratio=0.3, max_iters=1, **TINY)
    assert run.result["images"] == 3 and run.result["protocol"]["subset"] == "uniform"


def test_stratified_ratio_of_an_unlabelled_folder_is_a_data_error(
    source_run: TrainRun, target_images: Path, tmp_path: Path
) -> None:
    with pytest.raises(DataError, match="classes of"):
        adapt(source_run.file, target_images, out=tmp_path / "run", ratio=0.5, subset="stratified", **TINY)


# ---- stopping and resuming ----


@pytest.mark.parametrize("stop", [1, 3, 5])
def test_resume_ends_in_the_same_bits(
    finished: AdaptRun,
    stop: int,
    source_run: TrainRun,
    target_images: Path,
    target_labelled: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    arguments: dict[str, Any] = {"out": tmp_path / "run", "score_on": target_labelled, "eval_every": 1, "seed": 2}
    with monkeypatch.context() as patch:
        patch.setattr("dept.runs.folder.stop_signal", StopAfter(stop))
        with pytest.raises(Interrupted) as stopped:
            adapt(source_run.file, target_images, **arguments, **TINY)
    assert stopped.value.step == stop and stopped.value.folder == tmp_path / "run"
    assert (tmp_path / "run" / "resume.safetensors").exists() and not (tmp_path / "run" / "result.json").exists()
    resumed = adapt(source_run.file, target_images, resume=True, **arguments, **TINY)
    assert same_bits(tensors(resumed.adapter), tensors(finished.adapter))
    assert torch.equal(resumed.before, finished.before) and torch.equal(resumed.after, finished.after)
    assert not (tmp_path / "run" / "resume.safetensors").exists()
    steps, expected = (
        [(e["step"], e["terms"]) for e in events(folder) if e["event"] == "step"]
        for folder in (resumed.folder, finished.folder)
    )
    assert steps == expected


def test_ctrl_c_stops_after_a_whole_step_and_saves(source_run: TrainRun, target_images: Path, tmp_path: Path) -> None:
    """A real SIGINT, in the middle of step 2."""
    before = signal.getsignal(signal.SIGINT)

    def listener(event: dict[str, Any]) -> None:
        if event["event"] == "step" and event["step"] == 1:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(Interrupted) as stopped:
        adapt(source_run.file, target_images, out=tmp_path / "run", listener=listener, **TINY)
    assert stopped.value.step == 2 and read_meta(tmp_path / "run" / "resume.safetensors")["next_step"] == 2
    assert signal.getsignal(signal.SIGINT) is before


def test_ctrl_c_during_the_last_step_finishes_the_run(
    source_run: TrainRun, target_images: Path, tmp_path: Path
) -> None:
    def listener(event: dict[str, Any]) -> None:
        if event["event"] == "step" and event["step"] == 1:
            signal.raise_signal(signal.SIGINT)

    run = adapt(source_run.file, target_images, out=tmp_path / "run", listener=listener, max_iters=2, **TINY)
    assert (run.folder / "result.json").exists() and not (run.folder / "resume.safetensors").exists()


def test_a_crash_between_checkpoints_resumes_from_the_last(
    finished: AdaptRun, source_run: TrainRun, target_images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class EveryOther:
        def due(self, event: Any) -> bool:
            return event.progress.step == 1

    def crash(event: dict[str, Any]) -> None:
        if event["event"] == "step" and event["step"] == 4:
            raise RuntimeError("power cut")

    monkeypatch.setattr("dept.runs.folder.Checkpoints", EveryOther)
    with pytest.raises(RuntimeError, match="power cut"):
        adapt(source_run.file, target_images, out=tmp_path / "run", seed=2, listener=crash, **TINY)
    with (tmp_path / "run" / "events.jsonl").open("a") as file:
        file.write('{"event": "st')  # the last line was cut short
    resumed = adapt(source_run.file, target_images, out=tmp_path / "run", seed=2, resume=True, workers=1, **TINY)
    assert same_bits(tensors(resumed.adapter), tensors(finished.adapter))
    steps = [event["step"] for event in events(resumed.folder) if event["event"] == "step"]
    assert steps == list(range(len(steps))) and len(steps) > 4  # every step once, also those made twice


def test_resume_with_other_settings_is_refused(
    source_run: TrainRun, target_images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("dept.runs.folder.stop_signal", StopAfter(1))
        with pytest.raises(Interrupted):
            adapt(source_run.file, target_images, out=tmp_path / "run", **TINY)
    with pytest.raises(UsageError, match=r"started with other settings \(lr differ\).*another `out`"):
        adapt(source_run.file, target_images, out=tmp_path / "run", resume=True, lr=0.5, **TINY)
    with pytest.raises(UsageError, match="started with other settings"):
        adapt(source_run.file, target_images, out=tmp_path / "run", resume=True, seed=9, **TINY)


def test_an_occupied_folder_is_refused_or_overwritten(
    source_run: TrainRun, target_images: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    adapt(source_run.file, target_images, out=out, max_iters=2, **TINY)
    with pytest.raises(UsageError, match=r"already holds a run \(.*result.json.*Use `overwrite`"):
        adapt(source_run.file, target_images, out=out, max_iters=2, **TINY)
    with pytest.raises(UsageError, match="nothing to resume"):
        adapt(source_run.file, target_images, out=out, max_iters=2, resume=True, **TINY)
    with pytest.raises(ValueError, match="is empty: write them with `dept stats"):
        adapt(source_run.file, target_images, out=out, method="cfa", overwrite=True)
    assert (out / "result.json").exists(), "a run that cannot start has replaced nothing"
    adapt(source_run.file, target_images, out=out, max_iters=1, overwrite=True, **TINY)
    assert sum(e["event"] == "step" for e in events(out)) == 1


def test_scored_images_must_have_the_models_classes(
    source_run: TrainRun, target_labelled: Path, tmp_path: Path
) -> None:
    """A set found without the model's order of classes would be scored against the wrong ones."""
    shutil.copytree(target_labelled / "red", tmp_path / "some" / "red")
    for images in (find_labelled(tmp_path / "some"), find_images(tmp_path / "some")):
        with pytest.raises(DataError, match=r"the model's classes \[blue, green, red\], in this order; they have"):
            adapt(source_run.file, tmp_path / "some", out=tmp_path / "run", score_on=images, **TINY)
        with pytest.raises(DataError, match="must be labelled with the model's classes"):
            evaluate(load_model(source_run.file), images)


@pytest.mark.parametrize("wrong", [{"batch": 0}, {"epochs": 0}, {"max_iters": -1}, {"steps_per_batch": 0}])
def test_numbers_of_nothing_are_refused(
    source_run: TrainRun, target_images: Path, tmp_path: Path, wrong: dict[str, int]
) -> None:
    with pytest.raises(ValueError, match=f"^{next(iter(wrong))} must be at least"):
        adapt(source_run.file, target_images, out=tmp_path / "run", **TINY | wrong)


# ---- methods, settings, models ----


def test_source_changes_nothing(
    source_run: TrainRun, target_images: Path, target_labelled: Path, tmp_path: Path
) -> None:
    run = adapt(
        source_run.file, target_images, out=tmp_path / "run", method="source", score_on=target_labelled, device="cpu"
    )
    assert run.result["tunable_model"] == 0 and torch.equal(run.before, run.after)
    assert run.result["label_free"]["changed"] == 0.0 and tensors(run.adapter) == {}
    assert load(source_run.file, adapter=run.adapter)


def test_tent_adapter_reloads_on_the_source_model(source_run: TrainRun, target_images: Path, tmp_path: Path) -> None:
    run = adapt(source_run.file, target_images, out=tmp_path / "run", method="tent", lr=0.05, batch=4, device="cpu")
    assert all(name.startswith("backbone.") for name in tensors(run.adapter))
    reloaded = load(source_run.file, adapter=run.adapter)
    images = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        assert torch.equal(reloaded(images), run.model.eval()(images))
        assert not torch.equal(reloaded(images), load(source_run.file)(images))


def test_half_stores_half_the_bytes(source_run: TrainRun, target_images: Path, tmp_path: Path) -> None:
    full = adapt(source_run.file, target_images, out=tmp_path / "full", max_iters=2, **TINY)
    half = adapt(source_run.file, target_images, out=tmp_path / "half", max_iters=2, half=True, **TINY)
    count = 2 * 3 * 32 + 3 * 32 + 3
    saved = full.result["adapter_bytes"] - half.result["adapter_bytes"]
    assert abs(saved - 2 * count) <= 32
    assert all(t.dtype == torch.float16 for t in tensors(half.adapter).values())
    model = load_model(source_run.file)
    loaded = load_adapter(half.adapter, model)
    for name, tensor in loaded.tensors.items():
        assert tensor.dtype == torch.float32
        assert torch.allclose(tensor, tensors(full.adapter)[name], atol=1e-3)


def test_a_model_without_prompts_gets_fresh_ones_with_a_note(target_images: Path, tmp_path: Path) -> None:
    plain = tiny_model(stages=0)
    arguments = {"stages": 2, "prompts": 3, "max_iters": 1, **TINY}
    run = adapt(plain, target_images, out=tmp_path / "run", **arguments)
    assert run.model.stages == 2 and run.model.prompts_per_stage == 3
    assert "They begin as tokens of a blank image" in run.result["notes"][0] and "Note:" in str(run)
    assert events(run.folder)[0]["notes"] == run.result["notes"]
    assert run.model.backbone is plain.backbone


def test_a_default_length_is_raised_to_what_the_method_needs(
    source_run: TrainRun, target_images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DePT, "enough_steps", 20)
    settings: dict[str, Any] = {"method": "dept", "batch": 16, "device": "cpu", **PROJECTION}
    fitted = adapt(source_run.file, target_images, out=tmp_path / "a", **settings)
    sentence = "20 steps, because 15 epochs of 10 images are only 15."
    assert fitted.result["notes"] == [sentence] and f"Note: {sentence}" in str(fitted)
    assert fitted.result["protocol"]["config"]["max_iters"] == 20
    kept = adapt(source_run.file, target_images, out=tmp_path / "b", fit_length=False, **settings)
    sentence = "Only 15 steps (15 epochs × 10 images). dept usually needs about 20: try `max_iters` 20."
    assert kept.result["notes"] == [sentence] and kept.result["protocol"]["config"]["max_iters"] == 0


def test_a_length_that_was_asked_for_is_kept(source_run: TrainRun, target_images: Path, tmp_path: Path) -> None:
    chosen = adapt(source_run.file, target_images, out=tmp_path / "a", method="dept", **BRIEF, **PROJECTION)
    other = adapt(source_run.file, target_images, out=tmp_path / "b", method="tent", device="cpu")
    assert chosen.result["notes"] == other.result["notes"] == []
    preset = adapt(source_run.file, target_images, out=tmp_path / "c", method="dept", preset="official", batch=16,
                   device="cpu", **PROJECTION)  # fmt: skip
    assert preset.result["protocol"]["config"]["max_iters"] == 0  # a preset is literal


def test_the_gain_is_over_the_model_that_was_given(target_labelled: Path, tmp_path: Path) -> None:
    """Fresh prompts are noise: measured against the model with them, the gain would flatter."""
    plain = tiny_model(stages=0)
    scramble(plain, scale=0.1)
    kept = state_of(plain)
    expected = evaluate(plain, target_labelled, device="cpu")
    arguments = {"stages": 2, "prompts": 50, "max_iters": 2, "eval_every": 1, **TINY}
    run = adapt(plain, target_labelled, out=tmp_path / "run", score_on=target_labelled, **arguments)
    assert run.result["before"]["nll"] == pytest.approx(expected["nll"], abs=1e-6)
    prompted = plain.with_prompts(2, 50)
    assert evaluate(prompted, target_labelled, device="cpu")["nll"] != pytest.approx(expected["nll"], abs=1e-3)
    assert same_bits(state_of(plain), kept)


def test_the_protocol_names_what_the_numbers_depend_on(
    source_run: TrainRun, stats_file: Path, target_images: Path, tmp_path: Path
) -> None:
    tensors, meta = read_tensors(stats_file, "stats")
    other = save_stats(tensors | {"moment1": tensors["moment1"] + 0.1}, meta, tmp_path / "other.safetensors")
    runs = []
    for name, file, amp in (("a", stats_file, False), ("b", other, False), ("c", other, True)):
        source = spread_predictions(load_model(source_run.file))
        asked = {"method": "cfa", "stats": str(file), "amp": amp, **BRIEF}
        runs.append(adapt(source, target_images, out=tmp_path / name, **asked))
    records = [run.result["protocol"] for run in runs]
    assert len({record["stats_sha256"] for record in records[:2]}) == 2
    assert [record["amp"] for record in records] == [False, False, True]
    assert not runs[2].model.amp  # what is done with it afterwards is not this run's business


@pytest.mark.parametrize("method", ["tent", "sar"])
def test_nothing_to_tune_is_a_sentence(method: str, target_images: Path, tmp_path: Path) -> None:
    model = tiny_model(stages=0)
    for name, module in list(model.backbone.named_modules()):
        if isinstance(module, torch.nn.LayerNorm):
            model.backbone.set_submodule(name, torch.nn.Identity())
    with pytest.raises(ValueError, match=f"'{method}' has nothing to tune"):
        adapt(model, target_images, out=tmp_path / "run", method=method, **BRIEF)


def test_a_model_in_training_mode_is_adapted_in_evaluation_mode(target_labelled: Path, tmp_path: Path) -> None:
    """Batch norm in training mode would use the batch's statistics and move the running ones."""
    model = tiny_resnet().train()
    sha = fingerprint(model)
    run = adapt(model, target_labelled, out=tmp_path / "run", method="source", score_on=target_labelled, device="cpu")
    assert fingerprint(model) == sha
    assert run.result["before"]["nll"] == pytest.approx(evaluate(model, target_labelled, device="cpu")["nll"], abs=1e-5)


def test_settings_override_preset_and_unknown_ones_are_refused() -> None:
    config = make_config(DePT, None, "paper", {"lr": 0.5})
    assert isinstance(config, DePT.Config) and (config.lr, config.reduction) == (0.5, "sum")
    assert make_config(Tent, Tent.Config(lr=3.0), None, {"batch": 2}) == Tent.Config(lr=3.0, batch=2)
    with pytest.raises(UsageError, match=r"Method 'tent' has no setting 'w_cls'\. Its settings: .*batch"):
        make_config(Tent, None, None, {"w_cls": 1.0})


def test_options_can_be_given_as_keywords_or_as_an_object(
    source_run: TrainRun, target_images: Path, tmp_path: Path
) -> None:
    options = AdaptOptions(seed=7, device="cpu")
    run = adapt(source_run.file, target_images, out=tmp_path / "run", method="source", options=options, half=True)
    assert run.result["protocol"]["seed"] == 7
    assert json.loads((run.folder / "config.json").read_text())["options"]["half"] is True


def test_broken_images_are_skipped_and_reported(source_run: TrainRun, tmp_path: Path) -> None:
    folder = write_labelled(tmp_path / "images", 1)
    (folder / "red" / "bad.png").write_bytes(b"not an image")
    run = adapt(source_run.file, folder, out=tmp_path / "run", method="source", device="cpu")
    assert run.result["images"] == 3 and len(run.result["skipped"]) == 1
    assert run.result["skipped"][0][0].endswith("bad.png") and "Skipped 1 files" in str(run)
    assert "skipped_scored" not in run.result and "scored files" not in str(run)


def test_broken_scored_images_are_reported_too(source_run: TrainRun, target_images: Path, tmp_path: Path) -> None:
    scored = write_labelled(tmp_path / "images", 1)
    (scored / "red" / "bad.png").write_bytes(b"not an image")
    run = adapt(source_run.file, target_images, out=tmp_path / "run", method="source", score_on=scored, device="cpu")
    stored = json.loads((run.folder / "result.json").read_text())
    assert stored["skipped"] == [] and [Path(path).name for path, _ in stored["skipped_scored"]] == ["bad.png"]
    assert "Skipped 1 scored files" in str(run) and "Skipped 1 files" not in str(run)


def test_label_free_by_hand() -> None:
    before = torch.tensor([[0.8, 0.2], [0.6, 0.4], [0.3, 0.7], [0.1, 0.9]])
    after = torch.tensor([[1.0, 0.0], [0.4, 0.6], [0.3, 0.7], [0.1, 0.9]])
    free = label_free(before, after, ("a", "b"))
    assert free["changed"] == 0.25
    assert free["before"]["confidence"] == pytest.approx(0.75)
    assert free["before"]["effective_classes"] == pytest.approx(2.0)
    assert free["after"]["effective_classes"] == pytest.approx(1.7548, abs=1e-4)  # exp(H(1/4, 3/4))
    rows = [(0.8, 0.2), (0.6, 0.4), (0.3, 0.7), (0.1, 0.9)]
    from math import log

    slow = sum(-p * log(p) for row in rows for p in row) / 4
    assert free["before"]["entropy"] == pytest.approx(slow, abs=1e-6)


def test_describe_without_scores() -> None:
    free = label_free(torch.eye(2), torch.eye(2), ("a", "b"))
    result = {
        "method": "dept", "images": 3, "tunable_model": 1234, "tunable_total": 5678, "notes": [], "skipped": [],
        "label_free": free, "adapter_bytes": 2048,
    }  # fmt: skip
    text = adapted(result, Path("runs/x"), Path("runs/x/adapter.safetensors"), "MODEL")
    assert "1,234 parameters tuned (5,678 with heads that only training needs)." in text
    assert "1,234 parameters tuned." in adapted(
        result | {"tunable_total": 1234}, Path("runs/x"), Path("runs/x/a"), "MODEL"
    )
    assert "(2 KiB)" in text and "Accuracy" not in text and "Warning" not in text
    one_class = label_free(torch.eye(2), torch.tensor([[1.0, 0.0], [0.6, 0.4]]), ("a", "b"))
    text = adapted(result | {"label_free": one_class}, Path("runs/x"), Path("runs/x/a"), "MODEL")
    assert "Warning: predictions collapsed from 2.0 to 1.0 effective classes" in text
    text = adapted(result, Path("my runs/x"), Path("my runs/x/adapter.safetensors"), "my model")
    assert "dept predict 'my model' IMAGES --adapter 'my runs/x/adapter.safetensors'" in text
    assert text.endswith("dept report 'my runs/x'")


def test_checkpointing_adapts_to_nearly_the_same_bits(
    source_run: TrainRun, target_images: Path, tmp_path: Path
) -> None:
    plain, recomputed = (
        adapt(source_run.file, target_images, out=tmp_path / str(flag), method="dept", checkpoint=flag, **BRIEF)
        for flag in (False, True)
    )
    torch.testing.assert_close(plain.after, recomputed.after, rtol=0, atol=1e-5)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_run_whose_image_vanishes_goes_on_when_it_is_back(
    source_run: TrainRun, target_images: Path, tmp_path: Path, workers: int
) -> None:
    images = Path(shutil.copytree(target_images, tmp_path / "images"))
    settings = {"method": "tent", "workers": workers, **BRIEF, "max_iters": 9}
    whole = adapt(source_run.file, images, out=tmp_path / "whole", **settings)
    hidden, file = tmp_path / "hidden.png", next(images.rglob("*.png"))

    def vanish(event: dict[str, Any]) -> None:
        if event["event"] == "step" and event["step"] == 2:
            file.rename(hidden)

    with pytest.raises(DataError, match=rf"{file.name} cannot be read .* steps so far are saved. Use `resume`"):
        adapt(source_run.file, images, out=tmp_path / "run", listener=vanish, **settings)
    hidden.rename(file)
    resumed = adapt(source_run.file, images, out=tmp_path / "run", resume=True, **settings)
    assert same_bits(tensors(resumed.adapter), tensors(whole.adapter))
    assert [e["step"] for e in events(resumed.folder) if e["event"] == "step"] == list(range(9))


def test_an_overwritten_run_that_fails_leaves_the_old_adapter(
    source_run: TrainRun, target_images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = adapt(source_run.file, target_images, out=tmp_path / "run", method="tent", **BRIEF)
    before = run.adapter.read_bytes()
    with monkeypatch.context() as patch, pytest.raises(Interrupted):
        patch.setattr("dept.runs.folder.stop_signal", StopAfter(1))
        adapt(source_run.file, target_images, out=run.folder, overwrite=True, method="tent", seed=1, epochs=2, batch=4)
    assert run.adapter.read_bytes() == before
    assert not (run.folder / "result.json").exists(), "the run that is there now is not finished"
    read = read_run(run.folder)
    assert read.adapter is None and read.protocol["seed"] == 1, "the old adapter is none of the new run"


def test_images_that_change_during_a_run_are_noticed(
    source_run: TrainRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = write_unlabelled(tmp_path / "images", 6)
    settings = {"method": "tent", "batch": 3, "device": "cpu"}
    assert adapt(source_run.file, images, out=tmp_path / "a", **settings).result["notes"] == []

    def replace_one(event: dict[str, Any]) -> None:
        if event["event"] == "step" and event["step"] == 0:
            first = next(images.rglob("*.png"))
            first.write_bytes(first.read_bytes())

    run = adapt(source_run.file, images, out=tmp_path / "b", listener=replace_one, **settings)
    assert any("images have changed since the run began" in note for note in run.result["notes"])


def test_a_model_that_overflows_is_not_written(
    source_run: TrainRun, target_images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last step of a run is checked like any other."""
    monkeypatch.setattr("dept.methods.config.MOST", math.inf)  # a learning rate that is refused otherwise
    with pytest.raises(DeptError, match=r"not finite|no longer finite"):
        adapt(source_run.file, target_images, out=tmp_path, method="tent", lr=1e38, max_iters=1, device="cpu")
    assert not (tmp_path / "adapter.safetensors").exists()


def test_images_are_decoded_once_before_the_first_step(
    source_run: TrainRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The read-out before a run finds the bad files too, also where the same folder is adapted to and scored on."""
    images = write_labelled(tmp_path / "images", per_class=3)
    (images / "red" / "broken.png").write_bytes(b"no image")
    opened: list[Path] = []

    def open_image(path: Path, plain: Any = decoding.open_image) -> Any:
        opened.append(path)
        return plain(path)

    monkeypatch.setattr(decoding, "open_image", open_image)
    for number, scored in enumerate((None, images)):
        opened.clear()
        counts: list[int] = []

        def count(event: dict[str, Any], counts: list[int] = counts) -> None:
            counts.append(len(opened))

        run = adapt(
            source_run.file, images, out=tmp_path / f"{number}", method="tent", score_on=scored, listener=count, **BRIEF
        )
        assert counts[0] == 10  # when the run starts
        assert run.result["images"] == 9 and len(run.before) == 9
        assert [Path(name).name for name, _ in run.result["skipped"]] == ["broken.png"]


def test_the_first_pass_gives_the_batches_of_the_readable_images(tmp_path: Path) -> None:
    images = write_unlabelled(tmp_path, 7)
    names = find_images(images).paths
    for bad in (names[0], names[4]):
        bad.write_bytes(b"no image")
    runtime, views = Runtime(eval_batch=2), Views(tiny_model().card.preprocess)
    first = FirstPass(find_images(images), views, runtime)
    made = list(first)
    expected = list(TestPasses(first.readable, views, runtime)())
    assert [path.name for path, _ in first.readable.skipped] == [names[0].name, names[4].name]
    assert len(made) == len(expected) == 3
    for one, two in zip(made, expected, strict=True):
        assert torch.equal(one.index, two.index) and torch.equal(one.views[0], two.views[0])


def test_an_adapter_that_counts_as_harmful_is_rejected(
    source_run: TrainRun,
    target_images: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    harmful = Expected("harmful", -0.2, -0.3, -0.1, "source")
    monkeypatch.setattr(outlook, "expected_gain", lambda *given, **more: harmful)
    argv = ["adapt", str(source_run.file), str(target_images), "--method", "neo", "--device", "cpu"]
    assert main([*argv, "--out", str(tmp_path / "run")]) == 4
    said = capsys.readouterr().out
    assert said.startswith("Harmful, as far as can be told without labels: accuracy changed by -30.0 to -10.0 points")
    assert "It was rejected. --accept" in said
    assert {path.name for path in (tmp_path / "run").glob("adapter*")} == {"adapter.rejected.safetensors"}
    assert read_run(tmp_path / "run").adapter == tmp_path / "run" / "adapter.rejected.safetensors"
    assert main([*argv, "--out", str(tmp_path / "run"), "--overwrite", "--accept"]) == 0
    assert {path.name for path in (tmp_path / "run").glob("adapter*")} == {"adapter.safetensors"}


def test_the_verdict_is_withheld_where_class_shares_seem_to_differ_and_nobody_vouches_for_them(
    source_run: TrainRun, target_images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choice, "shares_differ", lambda *given: True)
    run = adapt(source_run.file, target_images, out=tmp_path / "a", method="neo", **BRIEF)
    assert run.result["expected"]["shares"] == "unknown" and "only labels tell" in str(run)
    declared = adapt(source_run.file, target_images, out=tmp_path / "b", method="neo", prior="uniform", **BRIEF)
    assert declared.result["expected"]["shares"] == "uniform"


def test_declared_class_shares_reach_the_method(source_run: TrainRun, target_images: Path, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"method": "dept+", **BRIEF}
    shares = tmp_path / "shares.json"
    shares.write_text(json.dumps({source_run.model.classes[0]: 0.9, source_run.model.classes[1]: 0.1}))
    runs = {
        prior: adapt(source_run.file, target_images, out=tmp_path / str(number), prior=prior, **settings)
        for number, prior in enumerate(("unknown", "uniform", str(shares)))
    }
    unknown, uniform, file = (run.adapter.read_bytes() for run in runs.values())
    assert unknown != file and uniform != file
    assert [run.result["protocol"].get("class_shares") for run in runs.values()] == [None, "uniform", "file"]


def test_the_lean_that_remains_is_measured_with_the_head_of_the_source(
    source_run: TrainRun, target_images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Scored] = []
    monkeypatch.setattr(outlook, "plausible", lambda scored, prior: (prior, bool(asked.append(scored))))
    run = adapt(source_run.file, target_images, out=tmp_path / "a", method="neo", prior_count=0.0, **BRIEF)
    bias = load_model(source_run.file).head.bias
    assert asked[0].after == recentred_shares(run.before, bias)
    assert asked[0].before == pytest.approx(run.result["label_free"]["before"]["shares"])


@pytest.mark.parametrize(("kind", "judged"), [(Tent, True), (SHOT, False)])
def test_shares_do_not_end_a_method_that_pulls_at_them(kind: type[Method], judged: bool) -> None:
    model, even = tiny_model(), Prior((1 / 3,) * 3, "uniform", declared=True)
    seen = outlook.Outlook(model, torch.rand(30, 3).softmax(dim=1), even)
    keeper = outlook.Keeper(seen, kind(model), lambda: torch.arange(30) % 3)
    assert keeper.rule.prior == (even if judged else None)


def test_a_wrong_prior_is_refused_before_the_run(source_run: TrainRun, target_images: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="source, uniform, unknown or a JSON file"):
        adapt(source_run.file, target_images, out=tmp_path / "a", method="neo", prior="sauce", **BRIEF)
    assert not (tmp_path / "a").exists()


def test_the_best_state_is_kept_and_the_run_ends_early(
    source_run: TrainRun, target_images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = iter([Look(True, False), Look(True, False), Look(False, True)])
    monkeypatch.setattr(Stopping, "look", lambda rule, labels: next(looks))
    run = adapt(source_run.file, target_images, out=tmp_path / "a", keep="best", **TINY | {"epochs": 4})
    assert (run.result["steps"], run.result["kept_steps"]) == (4, 3)  # 12 planned, looked at after 2, 3 and 4
    assert "The state after 3 of 4 steps was kept." in str(run)
    assert run.result["protocol"]["readout"].endswith("nearest to the expected class shares")
    assert not (run.folder / "resume.safetensors").exists()
    longer = adapt(source_run.file, target_images, out=tmp_path / "b", **TINY | {"epochs": 4})
    monkeypatch.setattr(Stopping, "look", lambda rule, labels: Look(keep=True, end=False))
    kept = adapt(source_run.file, target_images, out=tmp_path / "c", keep="best", **TINY | {"epochs": 4})
    assert kept.result["kept_steps"] == 12
    same_bits(tensors(longer.adapter), tensors(kept.adapter))
    assert any(not torch.equal(tensor, tensors(kept.adapter)[name]) for name, tensor in tensors(run.adapter).items())
    monkeypatch.setattr(Stopping, "look", lambda rule, labels: Look(keep=False, end=True))
    none = str(adapt(source_run.file, target_images, out=tmp_path / "d", keep="best", **TINY | {"epochs": 4}))
    assert "The state after 0 of 2 steps was kept, which is the source model" in none and "dept check" not in none


def test_a_resumed_run_keeps_the_same_state(
    source_run: TrainRun, target_images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = TINY | {"epochs": 4, "keep": "best"}
    whole = adapt(source_run.file, target_images, out=tmp_path / "a", **settings)
    with monkeypatch.context() as patch, pytest.raises(Interrupted):
        patch.setattr("dept.runs.folder.stop_signal", StopAfter(5))
        adapt(source_run.file, target_images, out=tmp_path / "b", **settings)
    resumed = adapt(source_run.file, target_images, out=tmp_path / "b", resume=True, **settings)
    assert resumed.result["kept_steps"] == whole.result["kept_steps"]
    same_bits(tensors(whole.adapter), tensors(resumed.adapter))
