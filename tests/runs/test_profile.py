"""The card of a source model: measured by training, added by `dept stats`, checked when a file is read."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch

import dept.runs.profile as profiles
from dept.cli.main import main
from dept.data.images import find_labelled
from dept.data.loader import Runtime, normalised
from dept.data.views import Preprocess
from dept.errors import DataError
from dept.io import read_meta, read_tensors, write_tensors
from dept.models.files import load_model, save_model
from dept.models.profile import Profile
from dept.runs.adapt import adapt
from dept.runs.loops import class_probabilities
from dept.runs.profile import measure_profile
from dept.runs.train import TrainRun
from support import tiny_model

RUNTIME = Runtime("cpu")


def test_training_writes_the_profile(source_run: TrainRun) -> None:
    found = load_model(source_run.file).card.profile
    assert found is not None and found.accuracy == pytest.approx(source_run.result["accuracy"])
    assert found.images == source_run.result["held_out"]
    assert 0 <= found.error80 <= found.error90 <= 1 and found.temperature > 0


def test_the_profile_against_the_model(target_labelled: Path) -> None:
    model = tiny_model()
    images = find_labelled(target_labelled)
    found = measure_profile(model, images, RUNTIME)
    probabilities = class_probabilities(model, images, RUNTIME)
    right = (probabilities.argmax(dim=1) == torch.tensor(images.labels)).double().mean()
    assert found.accuracy == pytest.approx(float(right)) and len(found.feature_mean) == model.head.in_features
    assert measure_profile(model, images, RUNTIME) == found


def test_errors_are_those_of_corrupted_images(target_labelled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profiles, "SMALLEST_SIDE", 1)
    seen: list[str] = []
    monkeypatch.setattr(profiles, "_corrupted", lambda pixels, name, index: seen.append(name) or pixels)
    found = measure_profile(tiny_model(), find_labelled(target_labelled), RUNTIME)
    # Images that corruption leaves alone: the estimate is right there but for ties at the threshold.
    assert set(seen) == set(profiles.CORRUPTIONS) and found.error90 <= 0.1


@pytest.mark.parametrize("channels", [1, 3])
def test_pixels_are_those_that_were_normalised_and_corruption_changes_them(channels: int) -> None:
    pre = Preprocess(32, 32, mean=(0.4, 0.5, 0.6)[:channels], std=(0.2, 0.3, 0.4)[:channels])
    pixels = torch.randint(0, 256, (2, 32, 32, channels), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    assert torch.equal(profiles._pixels(normalised(pixels, pre), pre), pixels)
    changed = profiles._corrupted(pixels, "contrast", torch.tensor([0, 1]))
    assert changed.shape == pixels.shape and not torch.equal(changed, pixels)


def test_stats_adds_the_card_to_a_model_that_has_none(
    target_labelled: Path, target_images: Path, tmp_path: Path, capsys: Any
) -> None:
    file = save_model(tiny_model(), tmp_path / "model.safetensors")
    before = adapt(file, target_images, out=tmp_path / "a", method="neo", batch=4, device="cpu")
    assert "does not say how frequent" in str(before) and before.result["expected"]["accuracy"] is None
    tensors = read_tensors(file, "model")[0]
    argv = ["stats", str(file), str(target_labelled), "--device", "cpu", "--out", str(tmp_path / "stats.safetensors")]
    assert main([*argv, "--card"]) == 0
    assert f"Card written to {file}: " in (said := capsys.readouterr().out) and "not written" not in said
    after = read_tensors(file, "model")[0]
    assert all(torch.equal(tensor, after[name]) for name, tensor in tensors.items())
    run = adapt(file, target_images, out=tmp_path / "b", method="neo", batch=4, device="cpu")
    assert "does not say how frequent" not in str(run) and "a rough estimate without labels" in str(run)
    low, high = run.result["expected"]["accuracy"]
    assert 0 <= low <= high <= 1


def test_images_without_some_classes_do_not_set_the_class_shares(
    target_labelled: Path, tmp_path: Path, capsys: Any
) -> None:
    file = save_model(tiny_model(), tmp_path / "model.safetensors")
    some = Path(shutil.copytree(target_labelled, tmp_path / "some"))
    shutil.rmtree(sorted(some.iterdir())[0])
    assert main(["stats", str(file), str(some), "--card", "--out", str(tmp_path / "stats.safetensors")]) == 0
    assert "Class shares were not written, because classes are missing." in capsys.readouterr().out
    card = load_model(file).card
    assert card.profile is not None and not card.prior


@pytest.mark.parametrize(
    "change",
    [
        {"accuracy": 2},
        {"temperature": 0},
        {"threshold": float("nan")},
        {"feature_mean": [1.0]},
        {"images": 0},
        {"x": 1},
    ],
)
def test_a_profile_that_cannot_be_is_refused(change: dict[str, Any], tmp_path: Path) -> None:
    model = tiny_model()
    good = Profile(3, 0.5, 1.0, 0.5, 0.1, 0.2, (0.0,) * model.head.in_features)
    model.card = replace(model.card, profile=good)
    file = save_model(model, tmp_path / "model.safetensors")
    assert load_model(file).card.profile == good
    tensors, meta = read_tensors(file, "model")
    write_tensors(file, tensors, meta | {"profile": json.loads(json.dumps(asdict(good) | change))})
    with pytest.raises(DataError):
        load_model(file)
    assert read_meta(file)["kind"] == "model"
