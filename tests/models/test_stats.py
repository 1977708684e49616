from __future__ import annotations

from pathlib import Path

import pytest
import torch

from dept.cli.stats import run
from dept.core.losses import bounded_features
from dept.core.select import select
from dept.data.images import find_labelled
from dept.data.loader import Batch, Runtime, TestPasses, Views
from dept.errors import DataError, UsageError
from dept.io import read_meta
from dept.models.files import save_model
from dept.models.model import Model
from dept.models.stats import compute_stats, feature_statistics, fisher_diagonal, load_stats, save_stats
from support import moved as moved_names
from support import random_batch, scramble, state_of, tiny_model


@pytest.fixture
def sharp() -> Model:
    model = tiny_model()
    scramble(model, scale=0.2)
    return model


def test_moments_against_two_passes(sharp: Model) -> None:
    batches = [random_batch("t", size, seed=size) for size in (4, 3)]
    batches[1] = Batch(batches[1].views, torch.arange(4, 7))
    labels = torch.tensor([0, 2, 2, 0, 0, 2, 2])
    got = feature_statistics(sharp, batches, labels)
    raw = torch.cat([sharp.read(b.views[0]).features for b in batches]).detach().double()
    h = bounded_features(raw)
    mean = h.mean(dim=0)
    expected = {
        "feature_mean": raw.mean(dim=0),
        "moment1": mean,
        "moment2": ((h - mean) ** 2).mean(dim=0),
        "moment3": ((h - mean) ** 3).mean(dim=0),
        "class_means": torch.stack([h[labels == 0].mean(dim=0), torch.zeros(32).double(), h[labels == 2].mean(dim=0)]),
        "class_counts": torch.tensor([3.0, 0, 4]).double(),
    }
    assert got.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(got[name], tensor.float(), rtol=1e-5, atol=1e-6)


def test_fisher_against_a_slow_loop(sharp: Model) -> None:
    batches = [random_batch("t", size, seed=size) for size in (4, 3)]
    before = state_of(sharp)
    got = fisher_diagonal(sharp, batches)
    assert moved_names(before, sharp) == set() and all(p.grad is None for p in sharp.parameters())
    assert list(got) == select(sharp, "norm")
    for name in ("backbone.blocks.0.norm1.weight", "backbone.norm.bias"):
        parameter = sharp.get_parameter(name)
        total = torch.zeros_like(parameter)
        for batch in batches:
            logits = sharp(batch.views[0])
            rows = [-logits[i].log_softmax(dim=0)[int(logits[i].argmax())] for i in range(len(logits))]
            (gradient,) = torch.autograd.grad(sum(rows) / len(rows), parameter)
            total += gradient**2
        torch.testing.assert_close(got[name], total / 2, rtol=1e-4, atol=1e-9)


def test_file_round_trip_and_refusals(sharp: Model, source_images: Path, tmp_path: Path) -> None:
    images = find_labelled(source_images, sharp.classes)
    tensors, meta = compute_stats(sharp, images, Runtime(), fisher_images=10)
    assert meta["kind"] == "stats" and meta["images"] == 24 and meta["fisher_images"] == 10
    path = save_stats(tensors, meta, tmp_path / "stats.safetensors")
    back = load_stats(path, sharp)
    assert back.keys() == tensors.keys() and all(torch.equal(back[n], t) for n, t in tensors.items())
    assert back["class_counts"].tolist() == [8, 8, 8]
    with pytest.raises(DataError, match=r"made for 3 classes and 2 x 3 prompts"):
        load_stats(path, sharp.with_prompts(4, 2))
    with torch.no_grad():
        sharp.head.bias.add_(1)
    with pytest.raises(DataError, match="another head"):
        load_stats(path, sharp)
    with torch.no_grad():
        sharp.backbone.norm.bias.add_(1)
    with pytest.raises(DataError, match="another backbone"):
        load_stats(path, sharp)
    with pytest.raises(DataError, match="no labels"):
        compute_stats(sharp, images.unlabelled(), Runtime())
    with pytest.raises(UsageError, match="`fisher_images` must be at least 1, found -5"):
        compute_stats(sharp, images, Runtime(), fisher_images=-5)
    save_stats(tensors, {"kind": "stats"}, path)
    with pytest.raises(DataError, match="written by another version of dept"):
        load_stats(path, sharp)


def test_fisher_images_are_drawn_across_classes(sharp: Model, source_images: Path) -> None:
    images = find_labelled(source_images, sharp.classes)
    tensors, _ = compute_stats(sharp, images, Runtime(), fisher_images=8)
    first = TestPasses(images.take(range(8)), Views(sharp.card.preprocess), Runtime())
    one_class = fisher_diagonal(sharp, first())
    assert any(not torch.equal(tensors[f"fisher.{name}"], value) for name, value in one_class.items())


def test_command(sharp: Model, source_images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, out = tmp_path / "my model.safetensors", tmp_path / "my stats.safetensors"
    save_model(sharp, model)
    run([str(model), str(source_images), "--out", str(out), "--device", "cpu"])
    assert read_meta(out)["kind"] == "stats"
    assert f"dept adapt '{model}' IMAGES --method cfa --stats '{out}'" in capsys.readouterr().out
    load_stats(out, sharp)
