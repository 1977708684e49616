from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import dept
import dept.runs.train as training
from dept.core.domains import OWN, SHARED
from dept.core.losses import cross_entropy
from dept.data.images import find_labelled
from dept.data.loader import LabelledBatch, Runtime
from dept.data.sources import find_sources
from dept.errors import DataError, Interrupted, UsageError
from dept.io import read_meta, read_tensors
from dept.methods.multi_source import MultiSourceTraining
from dept.methods.source_training import SourceTraining
from dept.models.domains import image_signature, join, weigh_domains
from dept.models.files import load, load_model, save_model
from dept.models.model import Model
from dept.runs.adapt import adapt
from dept.runs.stream import open_stream
from dept.runs.train import TrainRun, train
from support import (
    PROJECTION,
    StopAfter,
    events,
    same_bits,
    scramble,
    state_of,
    tiny_config,
    tiny_model,
    write_labelled,
)

NAMES = ("photo", "dark", "noisy")
LOOKS: list[dict[str, Any]] = [{}, {"dim": 0.4}, {"noise": 70}]
TINY: dict[str, Any] = {"batch": 7, "epochs": 2, "lr": 5e-3, "held_out": 0.25, "device": "cpu", **PROJECTION}
OWNERS = [0, 0, 1, 1, 2, 2]


@pytest.fixture(scope="module")
def domains(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Three domains of 12, 9 and 6 images."""
    root = tmp_path_factory.mktemp("domains")
    sizes = (4, 3, 2)
    return [
        write_labelled(root / name, size, seed=seed, **look)
        for seed, (name, size, look) in enumerate(zip(NAMES, sizes, LOOKS, strict=True))
    ]


@pytest.fixture(scope="module")
def run(domains: list[Path], tmp_path_factory: pytest.TempPathFactory) -> TrainRun:
    return train(tiny_model(prompts=5).train(), domains, out=tmp_path_factory.mktemp("runs") / "multi", **TINY)


def made(model: Model | None = None, **changes: Any) -> MultiSourceTraining:
    config = tiny_config(MultiSourceTraining, **{"lr": 0.05, "warmup": 0, **changes})
    assert isinstance(config, MultiSourceTraining.Config)
    return MultiSourceTraining(model or scrambled(), config, names=NAMES, owners=OWNERS, seed=0)


def scrambled() -> Model:
    model = tiny_model(prompts=5)
    scramble(model, scale=0.2)
    return model


def labelled_batch(index: list[int], views: int = 2, seed: int = 0) -> LabelledBatch:
    generator = torch.Generator().manual_seed(seed)
    given = tuple(torch.randn(len(index), 3, 32, 32, generator=generator) for _ in range(views))
    return LabelledBatch(given, torch.tensor(index), torch.arange(len(index)) % 3)


def bits(run: TrainRun) -> dict[str, Tensor]:
    return read_tensors(run.file, "model")[0]


def momentum(method: MultiSourceTraining, name: str) -> Tensor:
    assert method.optimizer is not None
    parameter = dict(method.model.named_parameters())[name]
    return method.optimizer.state[parameter]["momentum_buffer"]


# ---- the method ----


def test_prompts_are_split_and_fresh() -> None:
    model = tiny_model(prompts=5)
    before = model.prompts.detach().clone()
    method = made(model)
    domains = model.domains
    assert domains is not None and domains.sizes() == {"shared_prompts": 3, "domain_prompts": 2}  # half, rounded down
    assert torch.equal(domains.shared, before[:, :3])
    bound = (6 / (32 * (5 + 1))) ** 0.5
    assert all(prompts.abs().max() <= bound for prompts in domains.own)
    assert not torch.equal(domains.own[0], domains.own[1])
    again = made(tiny_model(prompts=5)).model.domains
    assert same_bits(state_of(domains), state_of(again))
    assert "prompts" not in method.trained_names and not model.prompts.requires_grad
    assert set(method.prompt_names()) <= set(method.trained_names)


@pytest.mark.parametrize("asked", [1, 2, 4])
def test_the_number_of_domain_prompts_is_a_setting(asked: int) -> None:
    domains = made(domain_prompts=asked).model.domains
    assert domains.sizes() == {"shared_prompts": 5 - asked, "domain_prompts": asked}


@pytest.mark.parametrize("preset", ["official", "paper"])
def test_an_absent_domain_is_left_alone_by_momentum_and_weight_decay(preset: str) -> None:
    """One step with all domains fills the momentum; then one without the second domain."""
    method = made(**MultiSourceTraining.presets[preset], weight_decay=0.1, momentum=0.9)
    views = len(method.views)
    start = state_of(method.model)
    method.step(labelled_batch([0, 1, 2, 3, 4, 5], views))
    before, slot = state_of(method.model), momentum(method, f"{OWN}1").clone()
    assert slot.abs().max() > 0 and not torch.equal(before[f"{OWN}1"], start[f"{OWN}1"])
    method.step(labelled_batch([0, 5, 4, 1], views, seed=1))
    after = state_of(method.model)
    assert dict(method.model.named_parameters())[f"{OWN}1"].grad is None
    assert torch.equal(after[f"{OWN}1"], before[f"{OWN}1"]) and torch.equal(momentum(method, f"{OWN}1"), slot)
    for name in (SHARED, f"{OWN}0", f"{OWN}2"):
        assert not torch.equal(after[name], before[name]), name
    assert torch.equal(after["prompts"], start["prompts"])


def test_gradients_of_a_domain_come_from_its_samples_only() -> None:
    """Against a slow formula: every domain read alone, its losses summed, over the size of the whole batch."""
    method = made(self_supervised=False, label_smoothing=0.0)
    model, batch = method.model, labelled_batch([4, 0, 2, 1, 5], views=1)
    method.loss(batch)["cross_entropy"].backward()
    found = {name: dict(model.named_parameters())[name].grad for name in method.prompt_names()}
    shared_total = torch.zeros_like(model.domains.shared)
    for number in range(3):
        rows = [row for row, index in enumerate(batch.index.tolist()) if OWNERS[index] == number]
        shared, own = (t.detach().clone().requires_grad_() for t in (model.domains.shared, model.domains.own[number]))
        prompts = torch.cat([shared, own], dim=1)
        logits = model.read(batch.views[0][rows], adapter=dept.Adapter({"prompts": prompts})).logits
        (cross_entropy(logits, batch.labels[rows]) * len(rows) / 5).backward()
        torch.testing.assert_close(found[f"{OWN}{number}"], own.grad, rtol=1e-4, atol=1e-6)
        shared_total += shared.grad
    torch.testing.assert_close(found[SHARED], shared_total, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("frozen", [False, True])
def test_the_teacher_has_prompts_of_every_domain(frozen: bool) -> None:
    """Other teacher prompts of one domain change that domain's targets, and nobody else's."""
    batches = {0: labelled_batch([0, 1]), 1: labelled_batch([2, 3])}

    def terms(disturbed: bool) -> dict[int, float]:
        method = made(ema=1.0, freeze_backbone=frozen)
        if disturbed:
            method.distillation.teacher.tensors[f"{OWN}1"] += 1.0
        return {number: float(method.loss(batch)["prompt"].detach()) for number, batch in batches.items()}

    plain, other = terms(False), terms(True)
    assert other[0] == plain[0] and other[1] != plain[1]


def test_the_teacher_follows_every_domain() -> None:
    method = made(ema=0.9)
    before = method.distillation.teacher.tensors[f"{OWN}2"].clone()
    method.step(labelled_batch([4, 5]))
    moved = method.model.domains.own[2].detach().clone()
    method.step(labelled_batch([0, 1]))
    torch.testing.assert_close(method.distillation.teacher.tensors[f"{OWN}2"], 0.9 * before + 0.1 * moved)


def test_the_rotation_task_reads_an_image_with_its_domains_prompts() -> None:
    def rotation(number: int) -> float:
        method = made(aux="rotation", self_supervised=False)
        with torch.no_grad():
            method.model.domains.own[number][..., 0].add_(1.0)  # of all channels alike, LayerNorm would take it away
        return float(method.loss(labelled_batch([0, 1], views=1))["rotation"].detach())

    assert rotation(1) == rotation(2) != rotation(0)


def test_counts() -> None:
    method = made()
    model = method.model
    prompts = 2 * 32 * (3 + 3 * 2)
    rest = sum(p.numel() for n, p in model.named_parameters() if n.startswith(("backbone.", "head.")))
    assert method.counts()["tunable_model"] == prompts + rest


# ---- a run ----


def test_the_file_is_an_ordinary_model_that_knows_its_domains(run: TrainRun) -> None:
    meta, tensors = read_meta(run.file), bits(run)
    assert meta["domains"] == {"names": list(NAMES), "shared_prompts": 3, "domain_prompts": 2}
    own = torch.stack([tensors[f"{OWN}{number}"] for number in range(3)])
    assert own.shape == (3, 2, 2, 32) and tensors["prompts"].shape == (2, 5, 32)
    assert torch.equal(tensors["prompts"][:, :3], tensors[SHARED])
    torch.testing.assert_close(tensors["prompts"][:, 3:], own.mean(dim=0))
    assert not torch.equal(own[0], own[1])
    model = load_model(run.file)
    assert model.domains is not None and model.domains.names == NAMES and model.prompts_per_stage == 5
    assert same_bits(state_of(model), state_of(run.model))
    assert run.model.prompts.requires_grad and not any(p.requires_grad for p in run.model.domains.parameters())


def test_the_result(run: TrainRun) -> None:
    result = json.loads((run.folder / "result.json").read_text())
    assert (result["images"], result["held_out"]) == (20, 7)  # 9 + 7 + 4 and 3 + 2 + 2
    assert [(row["name"], row["images"], row["held_out"]) for row in result["domains"]] == [
        ("photo", 9, 3),
        ("dark", 7, 2),
        ("noisy", 4, 2),
    ]
    assert result["accuracy"] == pytest.approx(sum(row["accuracy"] for row in result["domains"]) / 3)
    protocol = result["protocol"]
    assert protocol["method"] == "multi-source-training" and protocol["domains"].keys() == set(NAMES)
    assert protocol["config"]["batch"] == 6 and protocol["config"]["domain_prompts"] == 2  # 7 is no multiple of 3
    assert result["epochs"] == 2 and result["notes"] == []
    text = str(run)
    assert "20 images (7 held out)" in text and "dark: 7 images" in text and "with its own prompts" in text


def test_every_step_draws_from_every_domain(
    run: TrainRun, domains: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[list[int]] = []
    real = MultiSourceTraining.step

    def spied(self: MultiSourceTraining, batch: LabelledBatch) -> dict[str, float]:
        seen.append(sorted(self.owners[batch.index].tolist()))
        return real(self, batch)

    monkeypatch.setattr(MultiSourceTraining, "step", spied)
    again = train(tiny_model(prompts=5).train(), domains, out=tmp_path / "run", workers=2, **TINY)
    assert seen == [[0, 0, 1, 1, 2, 2]] * 8  # two epochs of ceil(20 / 6) steps
    assert same_bits(bits(again), bits(run))  # and the number of workers does not matter


@pytest.mark.parametrize("stop", [3, 4, 6])
def test_resume_ends_in_the_same_bits(
    run: TrainRun, domains: list[Path], stop: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("dept.runs.folder.stop_signal", StopAfter(stop))
        with pytest.raises(Interrupted):
            train(tiny_model(prompts=5).train(), domains, out=tmp_path / "run", **TINY)
    resumed = train(tiny_model(prompts=5).train(), domains, out=tmp_path / "run", resume=True, **TINY)
    assert same_bits(bits(resumed), bits(run))
    ours, theirs = ({k: v for k, v in one.result.items() if k != "environment"} for one in (resumed, run))
    assert json.dumps(ours) == json.dumps(theirs)


def test_the_seed_matters(run: TrainRun, domains: list[Path], tmp_path: Path) -> None:
    other = train(tiny_model(prompts=5).train(), domains, out=tmp_path / "run", seed=1, **TINY)
    assert not torch.equal(bits(other)[f"{OWN}0"], bits(run)[f"{OWN}0"])


def test_held_out_images_are_seen_as_their_domain_and_the_mean_accuracy_selects(
    domains: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Accuracies (1, 1, 0) in the first epoch, (0, 0.5, 1) in the second: the mean prefers the first."""
    looked: list[Tensor] = []
    expected: list[Tensor] = []
    right = iter([1.0, 1.0, 0.0, 0.0, 0.5, 1.0, *[0.0] * 6])

    def judged(model: Model, images: Any, runtime: Any) -> Tensor:
        looked.append(model.prompts.detach().clone())
        expected.append(model.domains.joined(torch.eye(3)[(len(looked) - 1) % 3]))
        labels, share = torch.tensor(images.labels), next(right)
        hit = torch.arange(len(images)) < share * len(images)
        return torch.nn.functional.one_hot(torch.where(hit, labels, (labels + 1) % 3), 3).float()

    monkeypatch.setattr(training, "class_probabilities", judged)
    done = train(tiny_model(prompts=5).train(), domains, out=tmp_path / "run", **TINY)
    assert all(torch.equal(one, other) for one, other in zip(looked[:6], expected[:6], strict=True))
    assert (done.result["best_epoch"], done.result["accuracy"]) == (0, pytest.approx(2 / 3))
    scores = [event for event in events(done.folder) if event["event"] == "held_out"]
    assert scores[0]["domains"] == {"photo": 1.0, "dark": 1.0, "noisy": 0.0}
    assert scores[1]["accuracy"] == pytest.approx(0.5)


def test_a_config_for_one_source_and_presets_serve_several(domains: list[Path], tmp_path: Path) -> None:
    config = replace(SourceTraining.preset("paper"), batch=6, max_iters=1, held_out=0.25)
    run = train(tiny_model(prompts=5).train(), domains[:2], out=tmp_path / "a", config=config, device="cpu")
    assert run.result["protocol"]["config"]["self_supervised"] is False
    assert run.model.domains is not None and run.model.domains.sizes()["domain_prompts"] == 2


# ---- one union ----


@pytest.mark.parametrize("kind", ["plain", "prompted"])
def test_erm_on_the_union(kind: str, domains: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every image of every domain once per epoch, like one folder; the split is still per domain."""
    seen: list[int] = []
    real = SourceTraining.step

    def spied(self: SourceTraining, batch: LabelledBatch) -> dict[str, float]:
        seen.extend(batch.index.tolist())
        return real(self, batch)

    monkeypatch.setattr(SourceTraining, "step", spied)
    model = tiny_model(stages=0) if kind == "plain" else tiny_model(prompts=5)
    changes: dict[str, Any] = {} if kind == "plain" else {"domain_prompts": 0}
    run = train(model.train(), domains, out=tmp_path / "run", **TINY | {"epochs": 1, "batch": 8}, **changes)
    assert sorted(seen) == list(range(20))
    assert run.model.domains is None and "domains" not in read_meta(run.file)
    assert run.result["protocol"]["method"] == "source-training"
    assert [row["held_out"] for row in run.result["domains"]] == [3, 2, 2]
    assert "accuracy_mean_prompts" not in run.result["domains"][0] and "own prompts" not in str(run)


def test_training_again_on_one_source_forgets_the_domains(run: TrainRun, source_images: Path, tmp_path: Path) -> None:
    again = train(load_model(run.file).train(), source_images, out=tmp_path / "run", **TINY | {"epochs": 1})
    assert again.model.domains is None and "domains" not in read_meta(again.file)
    assert not any(name.startswith("domains.") for name in bits(again))


# ---- bad input ----


def test_refusals(domains: list[Path], tmp_path: Path) -> None:
    def refused(*sources: Path, **changes: Any) -> Any:
        model = tiny_model(prompts=changes.pop("prompts", 5)).train()
        return train(model, list(sources), out=tmp_path / "run", **TINY | changes)

    with pytest.raises(UsageError, match=r"`batch` 2 is smaller than the number of source domains \(3\)"):
        refused(*domains, batch=2)
    with pytest.raises(UsageError, match=r"5 of the 5 prompts .* to itself.*domain_prompts to 0"):
        refused(*domains, domain_prompts=5)
    with pytest.raises(UsageError, match="0 of the 1 prompts"):
        refused(*domains, prompts=1)
    with pytest.raises(UsageError, match="has no setting 'domain_prompts'"):
        refused(domains[0], domain_prompts=2)
    (tmp_path / "empty" / "red").mkdir(parents=True)
    with pytest.raises(DataError, match="holds no images"):
        refused(domains[0], tmp_path / "empty")
    assert not (tmp_path / "run").exists()


def test_a_domain_that_lacks_classes_trains_with_a_note(domains: list[Path], tmp_path: Path) -> None:
    images = find_labelled(domains[1])
    partial = images.take([index for index, label in enumerate(images.labels or ()) if label != 1])
    heard: list[dict[str, Any]] = []
    sources = {"photo": domains[0], "partial": partial}
    settings = TINY | {"max_iters": 1}
    run = train(tiny_model(prompts=5).train(), sources, out=tmp_path / "run", listener=heard.append, **settings)
    (note,) = heard[0]["notes"]
    assert "partial" in note and "no image of green" in note and run.result["notes"] == [note]


# ---- adaptation ----


def test_adaptation_starts_from_the_mean(run: TrainRun, target_images: Path, tmp_path: Path) -> None:
    done = adapt(
        run.file, target_images, out=tmp_path / "run", method="dept", batch=4, max_iters=1, device="cpu", lr=0.0
    )
    assert torch.equal(load_model(run.file).prompts, done.model.prompts)  # nothing moves at rate 0
    tensors, meta = read_tensors(done.adapter, "adapter")
    assert tensors.keys() == {"prompts", "head.weight", "head.bias"} and tensors["prompts"].shape == (2, 5, 32)
    record = done.result["domains"]
    assert record["names"] == list(NAMES) and record["rule"] == "mean" and record["weights"] == [0.333333] * 3
    assert done.result["protocol"]["domains"] == record and meta["domains"] == record
    assert "mean of the source domains photo, dark, noisy" in str(done)
    load(run.file, adapter=done.adapter)


def test_a_model_of_one_source_says_nothing_of_domains(
    source_run: TrainRun, target_images: Path, tmp_path: Path
) -> None:
    done = adapt(source_run.file, target_images, out=tmp_path / "run", method="source", device="cpu")
    assert "domains" not in done.result and "domains" not in done.result["protocol"]
    assert "domains" not in read_meta(done.adapter) and "domains" not in read_meta(source_run.file)
    with pytest.raises(UsageError, match="needs a model with prompts of several source domains"):
        adapt(
            source_run.file, target_images, out=tmp_path / "b", method="neo", domain_weights="signature", device="cpu"
        )


def test_streams_predictions_and_scores_work_as_with_any_model(run: TrainRun, target_labelled: Path) -> None:
    model = load_model(run.file)
    assert dept.evaluate(model, target_labelled, device="cpu")["n"] == 12
    assert len(dept.predict(model, target_labelled, device="cpu")) == 12
    stream = open_stream(model, method="dept", batch=4, device="cpu")
    reply = stream.feed(sorted(target_labelled.rglob("*.png"))[:4])
    assert reply.event is not None and reply.logits.shape == (4, 3)


@pytest.mark.parametrize("same", [0, 1, 2])
def test_a_target_equal_to_a_source_domain_gets_most_of_it(
    same: int, run: TrainRun, domains: list[Path], tmp_path: Path
) -> None:
    settings: dict[str, Any] = {"method": "tent", "lr": 0.5, "batch": 4, "max_iters": 2, "device": "cpu"}
    done = adapt(run.file, domains[same], out=tmp_path / "run", domain_weights="signature", **settings)
    record = done.result["domains"]
    assert max(record["weights"]) == record["weights"][same] > 0.5
    assert sum(record["weights"]) == pytest.approx(1, abs=1e-5)
    assert record["distances"][same] == min(record["distances"]) and record["temperature"] == 0.5
    assert done.result["protocol"]["domains"] == record
    assert f"by signature: photo {record['weights'][0]:.2f}, dark {record['weights'][1]:.2f}" in str(done)
    # The prompts that were used are those of the record, and the adapter brings them along, though tent tunes none.
    stored = load_model(run.file)
    assert torch.equal(done.model.prompts, stored.domains.joined(torch.tensor(record["weights"])))
    loaded = load(run.file, adapter=done.adapter)
    assert torch.equal(loaded.prompts, done.model.prompts) and not torch.equal(stored.prompts, loaded.prompts)


def test_signatures_need_no_labels_and_are_those_of_the_final_backbone(run: TrainRun, domains: list[Path]) -> None:
    model = load_model(run.file)
    parts = find_sources(domains).split(0.25, seed=0)[0].parts
    for stored, part in zip(model.domains.signatures, parts, strict=True):
        torch.testing.assert_close(image_signature(model, part.unlabelled(), Runtime()), stored)


def test_a_small_temperature_picks_the_nearest_domain(run: TrainRun, domains: list[Path]) -> None:
    images = find_labelled(domains[1])

    def weights(temperature: float) -> list[float]:
        record = weigh_domains(load_model(run.file), images, Runtime(), rule="signature", temperature=temperature)
        assert record is not None
        return record["weights"]

    assert weights(0.01)[1] > 0.999 and max(weights(1e6)) == pytest.approx(1 / 3, abs=1e-3)
    with pytest.raises(UsageError, match="`domain_temperature` must be above 0, found 0"):
        weights(0)


def test_weights_are_refused_for_prompts_that_have_moved(run: TrainRun, target_images: Path, tmp_path: Path) -> None:
    done = adapt(run.file, target_images, out=tmp_path / "a", method="dept", batch=4, max_iters=1, lr=0.1, device="cpu")
    adapted = load(run.file, adapter=done.adapter)
    with pytest.raises(UsageError, match="no longer the mean of its source domains"):
        adapt(adapted, target_images, out=tmp_path / "b", method="neo", domain_weights="signature", device="cpu")


def test_a_model_whose_prompts_have_moved_is_stored_without_domains(run: TrainRun, tmp_path: Path) -> None:
    model = load_model(run.file)
    with torch.no_grad():
        model.prompts.add_(0.1)
    again = load_model(save_model(model, tmp_path / "moved.safetensors"))
    assert again.domains is None and torch.equal(again.prompts, model.prompts)
    join(model)
    assert load_model(save_model(model, tmp_path / "joined.safetensors")).domains is not None
