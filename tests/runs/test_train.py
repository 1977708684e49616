from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn.functional import cosine_similarity

import dept.runs.train as training
from dept.core.adapter import pick
from dept.data.images import find_labelled
from dept.data.loader import LabelledBatch, Runtime
from dept.data.subsets import split
from dept.errors import DataError, Interrupted, UsageError
from dept.inference import evaluate
from dept.io import read_tensors
from dept.methods.base import Progress
from dept.models.files import load_model
from dept.models.model import Model, create_model, fingerprint
from dept.models.stats import compute_stats, save_stats
from dept.runs.adapt import adapt
from dept.runs.train import MultiSourceTraining, SourceTraining, TrainRun, sized, train
from support import (
    ARCH,
    PROJECTION,
    TIMM,
    StopAfter,
    events,
    moved,
    same_bits,
    slow_projection,
    state_of,
    tiny_config,
    tiny_model,
    tiny_resnet,
    write_labelled,
)

TINY: dict[str, Any] = {"batch": 8, "epochs": 2, "lr": 5e-3, "device": "cpu", **PROJECTION}


def labelled_batch(views: int, size: int = 6, seed: int = 0) -> LabelledBatch:
    generator = torch.Generator().manual_seed(seed)
    made = tuple(torch.randn(size, 3, 32, 32, generator=generator) for _ in range(views))
    return LabelledBatch(made, torch.arange(size), torch.arange(size) % 3)


def model_bits(run: TrainRun) -> dict[str, Tensor]:
    return read_tensors(run.file, "model")[0]


# ---- a whole run ----


def test_the_run_folder(source_run: TrainRun, source_images: Path) -> None:
    names = {path.name for path in source_run.folder.iterdir()}
    assert {"config.json", "events.jsonl", "result.json", "model.safetensors"} <= names
    assert "resume.safetensors" not in names
    result = json.loads((source_run.folder / "result.json").read_text())
    assert (result["images"], result["held_out"], result["epochs"]) == (22, 2, 2)
    assert result["protocol"]["augment"]["crop_scale"] == [0.6, 1.0]
    assert result["tunable_model"] == sum(
        p.numel() for n, p in source_run.model.named_parameters() if not n.startswith(("projections.", "auxiliary."))
    )
    text = str(source_run)
    assert "22 images (2 held out)" in text and f"dept adapt {source_run.file}" in text


def test_events(source_run: TrainRun) -> None:
    log = events(source_run.folder)
    assert [e["event"] for e in log] == ["start", *["step"] * 3, "held_out", *["step"] * 3, "held_out", "end"]
    assert log[1]["terms"].keys() == {"loss", "cross_entropy", "cls", "prompt", "prompt_diversity"}
    assert [e["step"] for e in log if e["event"] == "held_out"] == [3, 6]


def test_the_file_holds_the_best_model_with_its_projections(source_run: TrainRun, source_images: Path) -> None:
    model = load_model(source_run.file)
    assert len(model.projections) == 2 and model.classes == ("blue", "green", "red")
    _, held_out = split(find_labelled(source_images), 0.1, seed=0)
    scores = [e["accuracy"] for e in events(source_run.folder) if e["event"] == "held_out"]
    assert source_run.result["accuracy"] == max(scores)
    assert evaluate(model, held_out, device="cpu")["top1"] == pytest.approx(max(scores))
    assert model.card.history["training"]["held_out_accuracy"] == max(scores)


def test_it_learns(source_images: Path, tmp_path: Path) -> None:
    settings = {**TINY, "epochs": 10, "lr": 0.02, "held_out": 0.25}
    run = train(tiny_model(stages=0).train(), source_images, out=tmp_path / "run", **settings)
    log = [e["terms"]["cross_entropy"] for e in events(run.folder) if e["event"] == "step"]
    assert sum(log[-3:]) < 0.8 * sum(log[:3])
    assert run.result["accuracy"] > 0.6


def test_bf16_is_for_the_run_only(source_images: Path, tmp_path: Path) -> None:
    runs = [train(tiny_model(), source_images, out=tmp_path / str(amp), amp=amp, **TINY) for amp in (False, True)]
    assert [run.result["protocol"]["amp"] for run in runs] == [False, True]
    exact, rough = (model_bits(run)["head.weight"] for run in runs)
    assert rough.dtype == torch.float32 and not torch.equal(exact, rough)
    assert torch.allclose(exact, rough, atol=0.1 * float(exact.abs().max()))
    assert not runs[1].model.amp


def test_the_best_epoch_is_kept_not_the_last(
    source_images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Held-out accuracy is made to be 0.5, 1, 0.5: the file must hold the tensors after the second epoch."""
    states: list[dict[str, Tensor]] = []

    def judged(model: Model, images: Any, runtime: Any) -> Tensor:
        states.append(state_of(model))
        right = len(images) if len(states) == 2 else len(images) // 2
        labels = torch.tensor(images.labels)
        given = torch.where(torch.arange(len(images)) < right, labels, (labels + 1) % 3)
        return torch.nn.functional.one_hot(given, 3).float()

    monkeypatch.setattr(training, "class_probabilities", judged)
    run = train(tiny_model().train(), source_images, out=tmp_path / "run", held_out=0.25, **TINY | {"epochs": 3})
    assert (run.result["best_epoch"], run.result["accuracy"]) == (1, 1.0)
    assert same_bits(model_bits(run), states[1]) and not same_bits(states[1], states[2])
    assert same_bits(state_of(run.model), states[1])


def test_same_seed_same_file(source_run: TrainRun, source_images: Path, tmp_path: Path) -> None:
    settings = {k: v for k, v in TINY.items() if k != "device"}
    again = train(tiny_model().train(), source_images, out=tmp_path / "run", device="cpu", workers=2, **settings)
    assert same_bits(model_bits(again), model_bits(source_run))


@pytest.mark.parametrize("stop", [2, 3, 4])
def test_resume_ends_in_the_same_bits(
    source_run: TrainRun, source_images: Path, stop: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("dept.runs.folder.stop_signal", StopAfter(stop))
        with pytest.raises(Interrupted) as stopped:
            train(tiny_model().train(), source_images, out=tmp_path / "run", **TINY)
    assert stopped.value.step == stop and not (tmp_path / "run" / "model.safetensors").exists()
    resumed = train(tiny_model().train(), source_images, out=tmp_path / "run", resume=True, **TINY)
    assert same_bits(model_bits(resumed), model_bits(source_run))
    ours, theirs = ({k: v for k, v in run.result.items() if k != "environment"} for run in (resumed, source_run))
    assert json.dumps(ours) == json.dumps(theirs)


@pytest.mark.parametrize("stop", [None, 4])
def test_batch_norm_statistics_are_saved_with_the_best_epoch_and_on_resume(
    source_images: Path, stop: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Running means are not parameters, but a model of the best epoch, or a resumed one, needs its own."""
    states: list[dict[str, Tensor]] = []
    real = training.class_probabilities

    def judged(model: Model, images: Any, runtime: Any) -> Tensor:
        states.append(state_of(model))
        right = torch.nn.functional.one_hot(torch.tensor(images.labels), 3).float()
        return right if len(states) == 1 else 1 - right  # the first epoch is the best

    if stop is None:
        monkeypatch.setattr(training, "class_probabilities", judged)
        run = train(tiny_resnet().train(), source_images, out=tmp_path / "run", **TINY)
        assert run.result["best_epoch"] == 0 and same_bits(model_bits(run), states[0])
        return
    whole = train(tiny_resnet().train(), source_images, out=tmp_path / "whole", **TINY)
    assert str(whole).endswith("NEW_IMAGES --out runs/site")  # prompts cannot enter a ResNet
    with monkeypatch.context() as patch:
        patch.setattr("dept.runs.folder.stop_signal", StopAfter(stop))
        with pytest.raises(Interrupted):
            train(tiny_resnet().train(), source_images, out=tmp_path / "run", **TINY)
    resumed = train(tiny_resnet().train(), source_images, out=tmp_path / "run", resume=True, **TINY)
    assert real is training.class_probabilities
    assert same_bits(model_bits(resumed), model_bits(whole))


def test_a_loaded_model_is_trained_in_training_mode(source_images: Path, tmp_path: Path) -> None:
    """A model from a file is in evaluation mode; batch norm must learn from the first epoch on."""
    runs = []
    for number, model in enumerate((tiny_resnet().train(), tiny_resnet().eval())):
        runs.append(train(model, source_images, out=tmp_path / str(number), **TINY | {"epochs": 1}))
    assert same_bits(model_bits(runs[0]), model_bits(runs[1]))


# ---- the method ----


def test_every_term_of_the_first_step() -> None:
    model = tiny_model()
    method = SourceTraining(model, tiny_config(SourceTraining))
    assert method.views == "ss"
    batch = labelled_batch(2)
    terms = method.loss(batch)
    with torch.no_grad():
        log_p = model(batch.views[1]).log_softmax(dim=1)
        smooth = 0.9 * torch.eye(3)[batch.labels] + 0.1 / 3
    assert float(terms["cross_entropy"].detach()) == pytest.approx(float(-(smooth * log_p).sum(1).mean()), abs=1e-6)
    assert terms.keys() == {"cross_entropy", "cls", "prompt", "prompt_diversity"}


def test_the_regulariser_recomputed() -> None:
    """Teacher (the same weights at first, centre 0) on the first view, student on the second; β 0.1, 0.1, λ 0.005."""
    model = tiny_model()
    method = SourceTraining(model, tiny_config(SourceTraining))
    batch = labelled_batch(2)
    with torch.no_grad():
        teacher, student = (model.read(view, aggregated=True) for view in batch.views)
        heads = list(model.projections)
        target = (slow_projection(heads[-1], teacher.features) / 0.07).softmax(dim=1)
        guess = (slow_projection(heads[-1], student.features) / 0.1).log_softmax(dim=1)
        consistency = diversity = 0.0
        for weight, head, ours, theirs in zip(
            torch.tensor([1.0, 2.0]).softmax(dim=0), heads, student.prompts, teacher.prompts, strict=True
        ):
            a, b = slow_projection(head, ours), slow_projection(head, theirs)
            consistency += float(weight * (1 - cosine_similarity(a, b, dim=-1)).mean())
            diversity += float(weight * (1 - cosine_similarity(a[:, :, None], a[:, None], dim=-1)).mean())
    terms = {name: float(term.detach()) for name, term in method.loss(batch).items()}
    assert terms["cls"] == pytest.approx(0.1 * -float((target * guess).sum(dim=1).mean()), abs=2e-6)
    assert terms["prompt"] == pytest.approx(0.1 * consistency, abs=2e-6)
    assert terms["prompt_diversity"] == pytest.approx(-0.005 * diversity, abs=2e-6)


def test_everything_moves_with_two_learning_rates() -> None:
    model = tiny_model()
    method = SourceTraining(model, tiny_config(SourceTraining))
    before = state_of(model)
    assert [group.lr for group in method.groups] == pytest.approx([5e-3, 5e-4, 5e-3])
    assert [group.clip_norm for group in method.groups] == [1.0, 1.0, 0.0]
    method.at(Progress(5, 10, 0))
    method.step(labelled_batch(2))
    still = set(before) - moved(before, model)
    assert all(name.endswith("original0") for name in still), sorted(still)


@pytest.mark.parametrize("make", [tiny_model, tiny_resnet])
def test_freezing_the_backbone(make: Any, source_images: Path, tmp_path: Path) -> None:
    model = make().train()
    sha, head = fingerprint(model), model.head.weight.detach().clone()
    run = train(model, source_images, out=tmp_path / "run", freeze_backbone=True, **TINY)
    assert fingerprint(run.model) == sha and not torch.equal(run.model.head.weight, head)


def test_plain_models_train_on_one_weak_view() -> None:
    model = tiny_model(stages=0)
    method = SourceTraining(model, tiny_config(SourceTraining))
    assert method.views == "w" and len(model.projections) == 0
    assert method.loss(labelled_batch(1)).keys() == {"cross_entropy"}


def test_paper_preset_is_plain_cross_entropy() -> None:
    config = SourceTraining.preset("paper")
    assert (config.self_supervised, config.label_smoothing) == (False, 0.0)
    model = tiny_model()
    method = SourceTraining(model, config)
    assert method.views == "s" and len(model.projections) == 0
    batch = labelled_batch(1)
    with torch.no_grad():
        slow = -model(batch.views[0]).log_softmax(dim=1)[range(6), batch.labels].mean()
    assert float(method.loss(batch)["cross_entropy"].detach()) == pytest.approx(float(slow), abs=1e-6)


NO_TERMS = {"w_cls": 0.0, "w_prompt": 0.0, "w_div": 0.0}


@pytest.mark.parametrize(("stages", "changes"), [(0, {}), (2, {"self_supervised": False}), (2, NO_TERMS)])
def test_without_distillation_there_is_no_teacher_to_keep(stages: int, changes: dict[str, Any]) -> None:
    """A teacher is a copy of all trained tensors, in memory and in every resume file."""
    method = SourceTraining(tiny_model(stages=stages), tiny_config(SourceTraining, **changes))
    assert method.loss(labelled_batch(len(method.views))).keys() == {"cross_entropy"}
    assert not [name for name in method.state_dict() if "teacher" in name]
    taught = SourceTraining(tiny_model(), tiny_config(SourceTraining))
    assert set(taught.distillation.teacher.tensors) == set(taught.trained_names)


@pytest.mark.parametrize(("warmup", "total", "expected"), [(-1, 1000, 6), (-1, 20, 2), (4, 20, 4), (0, 20, 0)])
def test_warm_up(warmup: int, total: int, expected: int) -> None:
    """-1: one step per prompt token (2 stages x 3), at most a tenth of the run."""
    method = SourceTraining(tiny_model(), tiny_config(SourceTraining, warmup=warmup))
    scales = [method.lr_scale(Progress(step, total, 0)) for step in range(total)]
    assert scales.index(1.0) == expected
    assert scales[: expected + 1] == pytest.approx([step / expected for step in range(expected)] + [1.0])
    if expected:
        method.at(Progress(0, total, 0))
        assert all(group["lr"] == 0.0 for group in method.optimizer.param_groups)


@pytest.mark.parametrize("config", [SourceTraining.Config(), SourceTraining.preset("official")])
def test_constants_are_the_released_ones(config: SourceTraining.Config) -> None:
    assert (config.lr, config.new_lr_scale, config.epochs, config.label_smoothing) == (5e-4, 10.0, 10, 0.1)
    assert (config.w_cls, config.w_prompt, config.w_div, config.crop_scale) == (0.1, 0.1, 0.005, (0.6, 1.0))


# ---- what the preset `official` does otherwise than the defaults ----


def official(**changes: Any) -> SourceTraining.Config:
    return replace(SourceTraining.preset("official"), **PROJECTION, **changes)  # type: ignore[return-value]


def test_the_released_recipe_does_not_clip() -> None:
    """A gradient of any size arrives in full: one step of plain SGD is lr times it."""
    model = tiny_model()
    method = SourceTraining(model, official(momentum=0.0, nesterov=False, weight_decay=0.0))
    assert [group.clip_norm for group in method.groups] == [0.0, 0.0, 0.0]
    before = model.head.bias.detach().clone()
    model.head.bias.grad = torch.full_like(model.head.bias, 7.0)
    method.descend()
    assert torch.allclose(before - model.head.bias.detach(), torch.full((3,), 5e-3 * 7.0), atol=1e-7)


@pytest.mark.parametrize("total", [1000, 20, 4])
def test_the_released_warm_up_is_as_long_as_there_are_prompts(total: int) -> None:
    """2 stages x 3 prompts: 6 steps, even if the run has no more than 4."""
    method = SourceTraining(tiny_model(), official())
    scales = [method.lr_scale(Progress(step, total, 0)) for step in range(min(total, 6))]
    assert scales == pytest.approx([step / 6 for step in range(min(total, 6))])
    if total > 6:
        assert method.lr_scale(Progress(6, total, 0)) == 1.0


def test_a_fresh_head_starts_as_released() -> None:
    """U(±1/√32) for weights and biases; the head of a model that has learned something stays."""
    bound = 32**-0.5
    given = tiny_model()
    before = state_of(given)
    SourceTraining(given, official())
    assert moved(before, given) == {"head.weight", "head.bias"}
    for tensor in (given.head.weight, given.head.bias):
        assert 0.3 * bound < float(tensor.detach().abs().mean()) < 0.7 * bound
        assert float(tensor.detach().abs().max()) <= bound
    drawn = given.head.weight.detach().clone()
    SourceTraining(given, official(), seed=1)
    assert torch.equal(given.head.weight, drawn)
    ours = tiny_model()
    SourceTraining(ours, tiny_config(SourceTraining))
    assert torch.equal(ours.head.weight, before["head.weight"])


def test_a_pretrained_head_is_kept(tmp_path: Path) -> None:
    file = tmp_path / "weights.safetensors"
    save_file(timm.create_model(ARCH, num_classes=3, **TIMM).state_dict(), file)
    model = create_model(ARCH, 3, weights=file, num_classes=3, **TIMM)
    before = state_of(model)
    SourceTraining(model, official())
    assert not moved(before, model)


def test_the_released_teacher_starts_with_prompts_and_projections_of_its_own() -> None:
    model = tiny_model()
    method = SourceTraining(model, official())
    teacher, student = method.distillation.teacher.tensors, pick(model, method.trained_names)
    differing = {name for name, tensor in teacher.items() if not torch.equal(tensor, student[name])}
    zeros = {name for name, tensor in teacher.items() if name.startswith("projections") and not tensor.any()}
    assert differing | zeros == {name for name in teacher if name.startswith(("prompts", "projections"))}
    assert 0 < float(teacher["prompts"].abs().max()) <= (6 / (32 * 4)) ** 0.5
    ours = SourceTraining(tiny_model(), tiny_config(SourceTraining))
    start = ours.distillation.teacher.tensors
    assert all(torch.equal(tensor, start[name]) for name, tensor in pick(ours.model, start).items())
    again = SourceTraining(tiny_model(), official()).distillation.teacher.tensors
    assert same_bits(teacher, again)


def test_several_domains_have_a_teacher_of_their_own_too() -> None:
    config = MultiSourceTraining.Config(**asdict(official()), domain_prompts=1)
    method = MultiSourceTraining(tiny_model(), config, names=("a", "b"), owners=[0, 1])
    teacher, student = method.distillation.teacher.tensors, pick(method.model, method.trained_names)
    for name in method.prompt_names():
        assert teacher[name].shape == student[name].shape and not torch.equal(teacher[name], student[name])


def test_a_released_run_resumes_to_the_same_bits(
    source_images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def trained(name: str, **more: Any) -> TrainRun:
        return train(tiny_model().train(), source_images, out=tmp_path / name, preset="official", **TINY, **more)

    with monkeypatch.context() as patch:
        patch.setattr("dept.runs.folder.stop_signal", StopAfter(2))
        with pytest.raises(Interrupted):
            trained("halves")
    assert same_bits(model_bits(trained("halves", resume=True)), model_bits(trained("whole")))


def test_the_held_out_part_is_never_trained_on(
    source_images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[str, set[str]] = {}
    real_offline, real_judge = training.offline, training.class_probabilities
    monkeypatch.setattr(
        training,
        "offline",
        lambda m, images, *a, **k: seen.update(train={*images.names()}) or real_offline(m, images, *a, **k),
    )
    monkeypatch.setattr(
        training, "class_probabilities",
        lambda m, images, r: seen.update(held={*images.names()}) or real_judge(m, images, r),
    )  # fmt: skip
    train(tiny_model().train(), source_images, out=tmp_path / "run", held_out=0.25, **TINY | {"epochs": 1})
    assert len(seen["train"]) == 18 and len(seen["held"]) == 6 and not seen["train"] & seen["held"]


def test_refusals(source_images: Path, target_labelled: Path, tmp_path: Path) -> None:
    other = tiny_model(("cat", "dog"))
    with pytest.raises(DataError, match=r"\[blue, green, red\].*\[cat, dog\]"):
        train(other, source_images, out=tmp_path / "run", **TINY)
    with pytest.raises(UsageError, match="has no setting 'colour'"):
        train(tiny_model(), source_images, out=tmp_path / "run", colour=1, **TINY)
    write_labelled(tmp_path / "photos" / "deep", 2)
    with pytest.raises(DataError, match="only one class, 'deep'"):
        train(tiny_model(("deep",)), tmp_path / "photos", out=tmp_path / "run", **TINY)


def test_dropout_is_drawn_from_the_seed_and_resumes_to_the_same_bits(
    source_images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stochastic depth draws from the global generator, whose state is nobody's business."""

    def trained(name: str, **more: Any) -> TrainRun:
        model = tiny_model(drop_path_rate=0.5).train()
        torch.manual_seed(hash(name))
        return train(model, source_images, out=tmp_path / name, **TINY, **more)

    with monkeypatch.context() as patch:
        patch.setattr("dept.runs.folder.stop_signal", StopAfter(3))
        with pytest.raises(Interrupted):
            trained("halves")
    whole = model_bits(trained("whole"))
    assert same_bits(whole, model_bits(trained("again"))) and same_bits(
        whole, model_bits(trained("halves", resume=True))
    )


@pytest.mark.parametrize(
    ("task", "outputs", "method"), [("rotation", 4, "ttt"), ("hypothesis", 3, "hdmi"), ("contrastive", 128, "ttt++")]
)
@pytest.mark.parametrize("stages", [0, 2])
def test_a_second_task_leaves_a_head_that_a_method_uses(
    task: str, outputs: int, method: str, stages: int, source_images: Path, target_images: Path, tmp_path: Path
) -> None:
    model = tiny_model(stages=stages, prompts=3 if stages else 0).train()
    run = train(model, source_images, out=tmp_path / "run", aux=task, **TINY)
    steps = [json.loads(line) for line in (run.folder / "events.jsonl").read_text().splitlines()]
    assert all(task in event["terms"] for event in steps if event["event"] == "step")
    stored = load_model(run.file)
    assert stored.auxiliary is not None and stored.auxiliary.out_features == outputs
    assert stored.auxiliary_task == task
    stats = save_stats(*compute_stats(stored, find_labelled(source_images), Runtime()), tmp_path / "stats.safetensors")
    site = {"batch": 4, "device": "cpu", "stats": str(stats), "max_iters": 3}
    done = adapt(run.file, target_images, out=tmp_path / "site", method=method, **site)
    assert not any(name.startswith("auxiliary") for name in done.model.adapter.tensors)


def test_broken_images_are_skipped_and_told(tmp_path: Path) -> None:
    source = write_labelled(tmp_path / "images", 2)
    (source / "red" / "bad.png").write_bytes(b"not an image")
    run = train(tiny_model().train(), source, out=tmp_path / "my run", **TINY | {"batch": 4, "epochs": 1})
    assert len(run.result["skipped"]) == 1 and "Skipped 1 files that cannot be read" in str(run)
    assert f"dept adapt '{run.file}'" in str(run)


@pytest.mark.parametrize(
    ("images", "batch", "epochs"),
    [(30, 16, 150), (100, 16, 43), (702, 32, 14), (1_500, 64, 13), (2_000, 128, 19), (70_000, 128, 10)],
)
def test_batch_and_length_fit_the_number_of_images(images: int, batch: int, epochs: int) -> None:
    config, notes = sized(SourceTraining.Config(), images)
    assert (config.batch, config.epochs) == (batch, epochs) and bool(notes) == (images < 70_000)
    assert -(-images // batch) * epochs >= 300


def test_what_was_asked_for_is_not_resized() -> None:
    for asked in (SourceTraining.Config(batch=64), SourceTraining.Config(epochs=3), SourceTraining.Config(max_iters=5)):
        assert sized(asked, 100) == (asked, [])


def test_a_preset_is_literal_and_the_note_is_printed(source_images: Path, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"device": "cpu", **PROJECTION}
    events: list[dict[str, Any]] = []

    def stop(event: dict[str, Any]) -> None:
        events.append(event)
        raise KeyboardInterrupt

    for name, more in (("a", {}), ("b", {"preset": "official"}), ("c", {"fit_length": False})):
        with pytest.raises(KeyboardInterrupt):
            train(tiny_model(), source_images, out=tmp_path / name, listener=stop, **settings, **more)
    assert [event["total"] for event in events] == [300, 10, 10]
    assert "because the usual 10 epochs" in events[0]["notes"][0] and events[1]["notes"] == []
