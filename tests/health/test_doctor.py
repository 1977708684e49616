"""`dept doctor` on generated images: a sound site, and a broken one."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from dept.cli.main import main
from dept.data.images import ImageSet, find_images
from dept.data.loader import Batch, Runtime, TestPasses, Views
from dept.health.doctor import CHECKS, examine
from dept.models.files import load_model, save_model
from dept.models.model import Model
from dept.models.profile import Profile
from dept.runs.rehearsal import peak_megabytes, rehearse
from support import spread_predictions, tiny_model, tiny_resnet, write_unlabelled


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_unlabelled(tmp_path_factory.mktemp("data") / "site", 40)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that says something else about every image."""
    return save_model(spread_predictions(tiny_model()), tmp_path_factory.mktemp("model") / "model.safetensors")


def test_a_sound_site(file: Path, site: Path) -> None:
    found = examine(load_model(file), find_images(site), Runtime(), most=500)
    named = {one.check for one in found.findings}
    assert named <= {"predictions", "class shares"}  # the model is not trained
    assert set(found.passed) | named == set(CHECKS) and len(found.sampled) == found.images == 40
    assert -1 < found.statistics["normalised_mean"] < 1 and found.seconds_per_image > 0


def test_the_statistics_are_those_of_normalised_pixels(file: Path, site: Path) -> None:
    model = load_model(file)
    found = examine(model, find_images(site), Runtime(eval_batch=7), most=500)
    batches = TestPasses(find_images(site), Views(model.card.preprocess), Runtime(eval_batch=40))()
    (views,) = [batch.views[0] for batch in batches]
    assert found.statistics["normalised_mean"] == pytest.approx(float(views.mean()), abs=1e-5)
    assert found.statistics["normalised_std"] == pytest.approx(float(views.std(correction=0)), abs=1e-5)


def test_a_sample_is_seeded(file: Path, site: Path) -> None:
    images = find_images(site)
    one, two, other = (examine(load_model(file), images, Runtime(), most=9, seed=seed) for seed in (0, 0, 1))
    assert one.sampled.paths == two.sampled.paths != other.sampled.paths and len(one.sampled) == 9 and one.images == 40
    assert one.statistics == two.statistics


def test_a_broken_site(file: Path, site: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for index, path in enumerate(find_images(site).paths[:20]):
        dim = (np.asarray(Image.open(path).convert("L")) // 16).astype(np.uint8)
        Image.fromarray(dim).save(tmp_path / f"{index}.png")
    Image.new("L", (40, 40), 9).save(tmp_path / "blank.png")
    (tmp_path / "broken.png").write_bytes(b"no image")
    model = load_model(file)
    model.card = replace(model.card, preprocess=replace(model.card.preprocess, mean=(123.0,) * 3, std=(58.0,) * 3))
    wrong = save_model(model, tmp_path / "wrong.safetensors")
    assert main(["doctor", str(file), str(tmp_path), "--json", "--no-measure", "--device", "cpu"]) == 3
    found = {one["check"]: one for one in json.loads(capsys.readouterr().out)["findings"]}
    assert found.keys() >= {"readable files", "blank images", "colour", "brightness", "number of images"}
    assert found["brightness"]["level"] == "problem"
    assert main(["doctor", str(wrong), str(tmp_path), "--no-measure", "--device", "cpu"]) == 3
    said = capsys.readouterr().out
    assert "Problem (normalisation)" in said and "Mend the problems first. Then:  dept adapt" in said


def test_the_command_and_what_it_costs(file: Path, site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["doctor", str(file), str(site), "--device", "cpu", "--limit", "12", "--json"])
    record = json.loads(capsys.readouterr().out)
    assert code == (3 if record["problem"] else 0) and (record["images"], record["sampled"]) == (40, 12)
    assert record["command"] == f"dept adapt {file} {site} --out runs/site"
    assert record["cost"]["steps"] == 300 and record["cost"]["seconds"] > 0
    assert main(["doctor", str(file), str(site), "--limit", "0"]) == 2 and "--limit must be" in capsys.readouterr().err
    assert main(["doctor", str(file), str(site / "gone")]) == 3


def test_costs_grow_with_steps_and_images(site: Path) -> None:
    images = find_images(site)
    cost = rehearse(tiny_resnet(), images, 1000, Runtime(), seconds_per_image=1.0)
    assert cost.steps == 15 * 32 and cost.method == "shot" and 5000 < cost.seconds < 6000
    assert cost.megabytes is not None and cost.megabytes == pytest.approx(peak_megabytes("cpu"), rel=0.2)
    assert rehearse(tiny_resnet(), images, 100, Runtime(), seconds_per_image=1.0).steps == 300


def test_the_size_of_the_shift(file: Path, site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, images = load_model(file), find_images(site)
    assert examine(model, images, Runtime(), most=500).shift is None
    mean = torch.cat([model.read(batch.views[0]).features for batch in _test_passes(model, images)]).mean(dim=0)
    profile = Profile(100, 0.9, 1.0, 0.5, 0.1, 0.2, tuple(mean.tolist()))
    model.card = replace(model.card, profile=profile)
    found = examine(model, images, Runtime(), most=500).shift
    assert found is not None and found.moved < 1e-3 and found.chance == pytest.approx((1 / 40 + 1 / 100) ** 0.5)
    model.card = replace(model.card, profile=replace(profile, feature_mean=tuple((mean + 1).tolist())))
    far = examine(model, images, Runtime(), most=500).shift
    assert far is not None and far.moved > 1 and far.source_accuracy == 0.9
    assert examine(model, images, Runtime(), most=9).shift is None  # too few to tell
    assert main(["doctor", str(save_model(model, file.with_name("card.safetensors"))), str(site), "--no-measure"]) in (
        0,
        3,
    )
    assert "right on 90.0 % of its source images and on " in capsys.readouterr().out


def test_what_was_not_checked_is_not_passed(file: Path, site: Path) -> None:
    few = examine(load_model(file), find_images(site), Runtime(), most=9)
    assert not {"channel order", "predictions", "class shares"} & {*few.passed} and "blank images" in few.passed
    grey = tiny_model(in_chans=1)
    assert "colour" not in examine(grey, find_images(site), Runtime(), most=40).passed


def _test_passes(model: Model, images: ImageSet) -> Iterable[Batch]:
    return TestPasses(images, Views(model.card.preprocess), Runtime())()
