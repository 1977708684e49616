"""Cells of every kind on a tiny generated PACS tree."""

from __future__ import annotations

import json
import operator
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import save_file

from dept.bench.execute import Executor
from dept.bench.runner import Cell, Stored, run_cells
from dept.bench.shift import Shift, shifts
from dept.bench.stored import choose
from dept.bench.suite import Row, Source, Suite
from dept.bench.table import make_table
from dept.data.corruptions import EXTRA
from dept.data.datasets.derived import Domains
from dept.data.datasets.table import PACS_CLASSES
from dept.data.subsets import sample
from dept.errors import DataError, UsageError
from dept.inference import evaluate_ensemble
from dept.io import read_meta, read_tensors
from dept.models.files import load, load_model
from dept.models.model import Model
from support import ARCH, PROJECTION, TIMM

SMALL = {"batch": 7, "max_iters": 2}
RUN = SMALL | PROJECTION
TRAINING = {"epochs": 1, "batch": 14} | PROJECTION
WNIDS = ("n01440764", "n01443537", "n01484850", "n01491361", "n01494475")  # the first five of ImageNet
TINY = {"timm": {name: value for name, value in TIMM.items() if name != "img_size"}}


def source(stages: int) -> Source:
    return Source(ARCH, stages, 3 if stages else 0, size=32, config=TRAINING, extra=TINY)


SUITE = Suite(
    name="tiny",
    title="tiny",
    data="pacs",
    shifts=shifts("photo->sketch"),
    sources={"plain": source(0), "G": source(2), "start": replace(source(0), config=None)},
    rows=(
        Row("Source", "source", "plain"),
        Row("Tent", "tent", "plain", preset="offline", config=RUN),
        Row("CFA", "cfa", "plain", "online", config={"batch": 7}, extra={"stats": True}),
        Row("EATA, offline", "eata", "plain", config=RUN, extra={"stats": True}),
        Row("DePT", "dept", "G", config=RUN | {"max_iters": 4}, extra={"ratio": 0.5, "eval_every": 1}),
        Row("DePT, online", "dept", "G", "online", preset="online", config={"batch": 7} | PROJECTION),
        Row("MCC", "mcc", "start", "uda", config=SMALL),
    ),
    most=21,
)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("data")
    rng = np.random.default_rng(0)
    for domain, count in (("photo", 6), ("sketch", 4)):
        for number, name in enumerate(PACS_CLASSES):
            folder = root / "pacs" / domain / name
            folder.mkdir(parents=True)
            for image in range(count):
                pixels = rng.integers(0, 60, (40, 40, 3)) + 25 * number
                Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{image}.png")
    return root


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    file = tmp_path_factory.mktemp("weights") / "vit.safetensors"
    save_file(timm.create_model(ARCH, **TIMM).state_dict(), file)
    return file


@pytest.fixture(scope="module")
def executor(data: Path, weights: Path, tmp_path_factory: pytest.TempPathFactory) -> Executor:
    work = tmp_path_factory.mktemp("work")
    return Executor(SUITE, Domains(data, work / "data", allow_partial=True), weights, work, device="cpu")


def cell(executor: Executor, label: str, seed: int = 0) -> Cell:
    row = SUITE.row(label)
    return SUITE.cell(row, SUITE.shifts[0], seed, executor.weights_id)


def test_every_kind_of_cell_gives_a_scored_result(executor: Executor, tmp_path: Path) -> None:
    cells = SUITE.cells(executor.weights_id)
    assert [c.setting for c in cells[:2]] == ["plain", "G"] and len(cells) == 2 + len(SUITE.rows)
    outcomes = list(run_cells(cells, executor.run, tmp_path))
    assert [outcome.error for outcome in outcomes] == [""] * len(cells)
    for outcome in outcomes[2:]:
        result = outcome.result
        assert result is not None
        assert result["after"]["n"] == 21 == len(result["predictions"]["after"])
        hits = map(operator.eq, result["predictions"]["after"], result["predictions"]["labels"])
        assert result["after"]["top1"] == pytest.approx(sum(hits) / 21, abs=1e-6)
        assert result["gain"] == pytest.approx(result["after"]["top1"] - result["before"]["top1"], abs=1e-6)
        assert result["protocol"]["list_sha256"] and result["environment"]["torch"]
    ratio = next(o.result for o in outcomes if o.cell.protocol.get("ratio"))
    assert ratio is not None and ratio["images"] < 21  # half of the images teach, all of them score
    curve = ratio["curve"]["student"]
    assert curve["steps"] == [0, 2, 4] and curve["top1"][-1] == pytest.approx(ratio["after"]["top1"])
    assert curve["mean_per_class"][-1] == pytest.approx(ratio["after"]["mean_per_class"])
    assert all(outcome.fresh is False for outcome in run_cells(cells, executor.run, tmp_path))


def test_an_ensemble_averages_the_single_sources(executor: Executor) -> None:
    row = Row("SHOT, ensemble", "shot", "plain", "ensemble", preset="offline", config=SMALL)
    suite = replace(SUITE, shifts=shifts("photo+sketch->sketch"), rows=(row,))
    trained = [str(one.shift) for one in suite.cells(executor.weights_id)[:-1]]
    assert trained == ["photo", "sketch"]  # a model of each, none of the union
    own = replace(executor, suite=suite)
    result = own.run(suite.cells(executor.weights_id)[-1])
    models = []
    for file in executor.work.glob("tiny/*/adapter.safetensors"):
        if json.loads((file.parent / "config.json").read_text())["protocol"]["method"] == "shot":
            source = next(
                made
                for made in executor.work.glob("tiny/*/model.safetensors")
                if read_meta(made)["backbone_sha256"] == read_meta(file)["backbone_sha256"]
            )
            models.append(load(source, adapter=file))
    images = sample(executor.domains.load("pacs", "sketch"), 21, seed=0)
    assert len(models) == 2 == len(result["members"])
    assert evaluate_ensemble(models, images, device="cpu")["nll"] == pytest.approx(result["after"]["nll"], abs=1e-6)
    assert result["protocol"]["backbone_sha256"].keys() == {"photo", "sketch"}
    table = make_table(choose(suite, [Stored(suite.cells(executor.weights_id)[-1], result)]))
    assert table.lines[0].entries[0].mean == pytest.approx(100 * result["after"]["top1"]) and not table.notes


def test_a_cell_repeats_bit_by_bit_even_if_its_source_model_is_gone(executor: Executor) -> None:
    wanted = cell(executor, "DePT, online")
    first = executor.run(wanted)
    executor.source_model(wanted).unlink()
    executor.latest.clear()
    second = executor.run(wanted)
    assert first == second
    assert first != executor.run(cell(executor, "DePT, online", seed=1))


def test_a_shard_waits_for_the_source_model_that_another_one_trains(
    executor: Executor, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = cell(executor, "DePT")
    file = executor.source_model(wanted)
    away = file.rename(file.with_name("away"))
    trainings: list[Cell] = []
    monkeypatch.setattr(Executor, "_train", lambda self, source: trainings.append(source))
    with ThreadPoolExecutor(1) as pool:
        with executor._alone(executor._source(wanted)[1]):
            waiting = pool.submit(executor.source_model, wanted)
            with pytest.raises(TimeoutError):
                waiting.result(timeout=0.3)
            away.rename(file)
        assert waiting.result(timeout=10) == file
    assert not trainings
    executor.run(executor._source(wanted)[1])  # the cell of the training itself, whose turn comes later
    assert not trainings


def test_every_seed_can_have_a_source_model_of_its_own(executor: Executor, tmp_path: Path) -> None:
    rows = (SUITE.row("Source"), SUITE.row("Tent"))
    shared = replace(SUITE, rows=rows, seeds=(0, 1))
    own = replace(shared, sources=SUITE.sources | {"plain": replace(SUITE.sources["plain"], per_seed=True)})
    cells = own.cells(executor.weights_id)
    assert [(one.method, one.seed) for one in cells] == [
        *(("source-training", seed) for seed in (0, 1)),
        *((row.method, seed) for seed in (0, 1) for row in rows),
    ]
    # Seed 0 has the cells that it has anyway; a suite that does not ask for it trains one model for all.
    usual = shared.cells(executor.weights_id)
    assert {one.key for one in usual if one.seed == 0} == {one.key for one in cells if one.seed == 0}
    assert sum(one.method == "source-training" for one in usual) == 1
    done = list(run_cells(cells, replace(executor, suite=own).run, tmp_path))
    assert [outcome.error for outcome in done] == [""] * 6
    models = {outcome.result["protocol"]["backbone_sha256"] for outcome in done[2:] if outcome.result}
    assert len(models) == 2
    table = make_table(choose(own, [Stored(outcome.cell, outcome.result) for outcome in done if outcome.result]))
    assert [line.entries[0].seeds for line in table.lines] == [2, 2] and not table.notes
    for line, pair in zip(table.lines, (done[2::2], done[3::2]), strict=True):
        scores = [100 * outcome.result["after"]["top1"] for outcome in pair if outcome.result]
        assert line.entries[0].mean == pytest.approx(sum(scores) / 2)


def test_an_online_cell_counts_every_image_once_and_tells_its_segments(executor: Executor) -> None:
    stream = replace(cell(executor, "DePT, online"), shift=Shift(("photo",), ("sketch", "photo")))
    stream = replace(stream, protocol=stream.protocol | {"stream": {"reset": "never", "order": "sorted"}})
    result = executor.run(stream)
    assert list(result["segments"]) == ["sketch", "photo"] and result["images"] == 42
    parts = [segment["after"] for segment in result["segments"].values()]
    assert np.mean(parts) == pytest.approx(result["after"]["top1"], abs=1e-6)
    assert result["protocol"]["reset"] == "never"


def test_online_rows_of_a_column_share_the_source_predictions(
    executor: Executor, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = executor.run(cell(executor, "DePT, online"))
    with monkeypatch.context() as patch:
        patch.delattr("dept.bench.execute.collect")  # what would compute them
        assert executor.run(cell(executor, "DePT, online")) == first
        with pytest.raises(NameError, match="collect"):  # another stream has its own
            executor.run(replace(cell(executor, "DePT, online"), shift=Shift(("photo",), ("photo",))))
    for seed in (1, 2, 3):
        executor.run(cell(executor, "DePT, online", seed))
    assert len(executor.latest) == 2


def test_a_source_model_answers_a_stream_in_one_pass(executor: Executor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("dept.bench.execute.run_scenario")
    online = cell(executor, "DePT, online")
    result = executor.run(replace(online, method="source", protocol=online.protocol | {"preset": None}))
    assert result["gain"] == 0.0 and len(result["predictions"]["after"]) == 21


def test_the_weights_are_hashed_once(executor: Executor, monkeypatch: pytest.MonkeyPatch) -> None:
    fresh, calls = replace(executor), []
    monkeypatch.setattr("dept.bench.execute.file_sha256", lambda file: calls.append(file) or "0" * 64)
    assert len({fresh.weights_id for _ in range(3)}) == len(calls) == 1


def test_a_cell_of_other_weights_is_refused(executor: Executor) -> None:
    strange = cell(executor, "Tent")
    strange = replace(strange, protocol=strange.protocol | {"source": "0123456789ab"})
    with pytest.raises(DataError, match="other weights"):
        executor.run(strange)


def test_source_images_of_another_size_are_prepared_by_a_rule_of_their_own(executor: Executor) -> None:
    """Corrupted images may be the model's size already while the source's are not."""
    asked = cell(executor, "CFA")
    file = executor.source_model(asked).with_name("stats.safetensors")
    found = []
    for how in (True, {"resize": 40}):
        file.unlink(missing_ok=True)
        executor._stats(replace(asked, protocol=asked.protocol | {"stats": how}))
        found.append(read_tensors(file, "stats")[0]["moment1"])
    file.unlink()
    assert not torch.equal(*found)


def test_a_row_may_have_views_of_its_own(executor: Executor) -> None:
    usual, own = cell(executor, "DePT"), {"crop_scale": (0.9, 1.0), "blur": 0.0}
    mild = replace(usual, protocol=usual.protocol | {"augmentation": own})
    strengths = [executor.run(asked)["protocol"]["augment"] for asked in (usual, mild)]
    assert strengths[1] == strengths[0] | own
    files = [executor.folder(asked) / "adapter.safetensors" for asked in (usual, mild)]
    assert not torch.equal(*(read_tensors(file, "adapter")[0]["head.weight"] for file in files))


def test_a_source_model_says_how_weak_views_are_made_of_images_of_its_size(executor: Executor) -> None:
    start = replace(SUITE.sources["start"], extra=TINY | {"resize": 32, "weak_resize": 37})
    suite = replace(SUITE, sources=SUITE.sources | {"start": start})
    asked = suite.cell(suite.row("MCC"), suite.shifts[0], 0, executor.weights_id)
    used = replace(executor, suite=suite).run(asked)["protocol"]
    assert (used["preprocess"]["resize"], used["augment"]["weak_resize"]) == (32, 37)


def test_held_out_photos_come_corrupted_four_times(executor: Executor) -> None:
    images = executor.domains.load("pacs", "photo/held-out")
    assert len(images) == 4 * 4 and {path.parts[-4] for path in images.paths} == set(EXTRA)
    stamps = [path.stat().st_mtime_ns for path in images.paths]
    assert [p.stat().st_mtime_ns for p in executor.domains.load("pacs", "photo/held-out").paths] == stamps


def test_two_images_per_class_become_source_and_stream(tmp_path: Path) -> None:
    for name in WNIDS[:2]:
        (tmp_path / "imagenet-val" / name).mkdir(parents=True)
        for image in "ab":
            Image.new("RGB", (40, 40), "red").save(tmp_path / "imagenet-val" / name / f"{image}.png")
    domains = Domains(tmp_path, tmp_path / "work")
    clean, noisy = domains.load("imagenet-c-mini", "clean"), domains.load("imagenet-c-mini", "contrast/5")
    assert [path.name for path in clean.paths] == ["a.png", "a.png"] and clean.labels == noisy.labels == (0, 1)
    assert [path.name for path in noisy.paths] == ["b.JPEG", "b.JPEG"]


def test_stand_in_images_come_corrupted_in_turn(tmp_path: Path) -> None:
    for label in range(5):
        (tmp_path / "imagenet-val" / WNIDS[label]).mkdir(parents=True)
        for image in "ab":
            Image.new("RGB", (40, 40), "red").save(tmp_path / "imagenet-val" / WNIDS[label] / f"{image}.png")
    chosen_on = Domains(tmp_path, tmp_path / "work").load("imagenet-c-mini", "clean/corrupted")
    assert {path.name for path in chosen_on.paths} == {"a.JPEG"}, "no image of a stream"
    assert [path.parts[-4] for path in chosen_on.paths] == [EXTRA[0], EXTRA[0], *EXTRA[1:]]
    assert [path.parts[-2] for path in chosen_on.paths] == [WNIDS[label] for label in chosen_on.labels or ()]
    assert chosen_on.labels == (0, 4, 1, 2, 3)


def test_missing_data_are_sentences(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="data must name the folder"):
        Domains(None, tmp_path).load("pacs", "photo")
    with pytest.raises(DataError, match="does not exist"):
        Domains(tmp_path / "none", tmp_path).load("pacs", "photo")
    with pytest.raises(DataError, match="PACS was not found"):
        Domains(tmp_path, tmp_path).load("pacs", "photo")
    with pytest.raises(DataError, match="ImageNet was not found"):
        Domains(tmp_path, tmp_path).load("imagenet-c-mini", "clean")


def test_a_chosen_suite_is_smaller_and_says_so_in_its_keys() -> None:
    part = SUITE.chosen(methods=["dept"], seeds=[1], limit=5)
    assert [row.label for row in part.rows] == ["DePT", "DePT, online"] and part.most == 5
    whole = {c.key for c in SUITE.cells("w")}
    assert {c.key for c in part.cells("w") if c.method == "dept"}.isdisjoint(whole)
    assert SUITE.chosen(methods=["CFA"], shifts=["sketch"]).shifts == SUITE.shifts
    assert SUITE.chosen(max_iters=3).rows[1].config["max_iters"] == 3
    with pytest.raises(UsageError, match="no row or method 'deep'"):
        SUITE.chosen(methods=["deep"])


def test_an_image_that_does_not_decode_is_left_out(executor: Executor, data: Path, tmp_path: Path) -> None:
    shutil.copytree(data, tmp_path / "data")
    for path in (tmp_path / "data" / "pacs" / "sketch").glob("*/0.png"):
        path.write_bytes(b"no image")
    other = replace(executor, domains=Domains(tmp_path / "data", tmp_path, allow_partial=True), work=tmp_path / "work")
    for label in ("Tent", "MCC"):
        result = other.run(cell(other, label))
        seen, known = (len(result["predictions"][name]) for name in ("after", "labels"))
        assert seen == known == cell(other, label).protocol["most"] - len(result["skipped"]) and result["skipped"]


def test_results_are_plain_json(executor: Executor) -> None:
    assert json.loads(json.dumps(executor.run(cell(executor, "CFA"))))["method"] == "cfa"


def test_a_wrong_normalisation_is_refused_unless_forced(executor: Executor, monkeypatch: pytest.MonkeyPatch) -> None:
    def other(file: Path) -> Model:
        model = load_model(file)
        model.card = replace(model.card, preprocess=replace(model.card.preprocess, mean=(0.485, 0.456, 0.406)))
        return model

    monkeypatch.setattr("dept.bench.execute.load_model", other)
    wanted = cell(executor, "Source")
    with pytest.raises(UsageError, match="contradicts the config"):
        executor.run(wanted)
    assert "mean" in replace(executor, force=True).run(wanted)["protocol"]["forced"][0]
