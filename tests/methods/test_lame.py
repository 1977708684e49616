"""LAME against its update, written out image by image; and the stream, which is all it runs in."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor

from dept import methods
from dept.cli.main import main
from dept.methods.lame import LAME, nearest_kernel, rbf_kernel, relabelled
from dept.models.model import Model
from dept.runs.train import TrainRun
from support import random_batch, spread_predictions, tiny_model


@pytest.fixture
def model() -> Model:
    return spread_predictions(tiny_model(stages=0, prompts=0))


def slow_kernel(features: Tensor, k: int, kind: str) -> list[list[float]]:
    units = [row / row.norm() for row in features.double()]
    far = [[float((a - b).norm()) for b in units] for a in units]
    others = [sorted((far[i][j], j) for j in range(len(units)) if j != i)[:k] for i in range(len(units))]
    if kind == "knn":
        return [[float(j in [other for _, other in others[i]]) for j in range(len(units))] for i in range(len(units))]
    width = sum(own[-1][0] for own in others) / len(units)
    return [[math.exp(-(d**2) / (2 * width**2)) for d in row] for row in far]


def slow_labels(logits: Tensor, kernel: list[list[float]], rounds: int) -> Tensor:
    p = logits.double().softmax(dim=1)
    labels = p
    for _ in range(rounds):
        rows = []
        for i, weights in enumerate(kernel):
            pull = sum((w * labels[j] for j, w in enumerate(weights)), torch.zeros_like(p[0]))
            new = p[i] * pull.exp()
            rows.append(new / new.sum())
        labels = torch.stack(rows)
    return labels


@pytest.mark.parametrize("kind", ["knn", "rbf"])
@pytest.mark.parametrize("rounds", [1, 3, 100])
def test_predictions_are_those_of_the_slow_formula(model: Model, kind: str, rounds: int) -> None:
    images = random_batch("t", 12).views[0]
    with torch.no_grad():
        features, logits, _ = model.read(images)
    expected = slow_labels(logits, slow_kernel(features, 3, kind), rounds)
    method = LAME(model, LAME.Config(neighbours=3, kernel=kind, iterations=rounds))  # type: ignore[arg-type]
    torch.testing.assert_close(method.predict(images).softmax(dim=1).double(), expected, rtol=1e-3, atol=1e-4)


def test_kernels_by_hand() -> None:
    """Directions at 0, 10 and 90 degrees: the first two have each other, the third has the second."""
    angles = torch.tensor([0.0, 10.0, 90.0]).deg2rad()
    features = 5 * torch.stack([angles.cos(), angles.sin()], dim=1)
    assert nearest_kernel(features, 1).tolist() == [[0, 1, 0], [1, 0, 0], [0, 1, 0]]
    chord = [2 * math.sin(math.radians(angle) / 2) for angle in (10, 80)]
    width = (2 * chord[0] + chord[1]) / 3
    kernel = rbf_kernel(features, 1)
    assert kernel.diagonal().tolist() == [1, 1, 1]
    assert float(kernel[0, 1]) == pytest.approx(math.exp(-((chord[0] / width) ** 2) / 2), rel=1e-5)
    assert nearest_kernel(features, 9).tolist() == [[0, 1, 1], [1, 0, 1], [1, 1, 0]]
    assert rbf_kernel(torch.ones(4, 2), 5).tolist() == torch.ones(4, 4).tolist()  # no distance to scale by


def test_two_images_by_hand() -> None:
    """One surer of class 0, one undecided: each adds the other's prediction to its own logits."""
    logits, kernel = torch.tensor([[2.0, 0.0], [0.0, 0.0]]), torch.tensor([[0.0, 1.0], [1.0, 0.0]])
    once = relabelled(logits, kernel, 1)
    p = 1 / (1 + math.exp(-2))
    torch.testing.assert_close(once, torch.tensor([[2.5, 0.5], [p, 1 - p]]))


def test_it_stops_when_the_labels_have_settled(monkeypatch: pytest.MonkeyPatch) -> None:
    logits = torch.randn(6, 3, generator=torch.Generator().manual_seed(0))
    kernel, rounds = torch.ones(6, 6), []
    softmax = Tensor.softmax
    monkeypatch.setattr(Tensor, "softmax", lambda *a, **k: rounds.append(1) or softmax(*a, **k))
    settled = relabelled(logits, kernel, 100)
    assert 2 < len(rounds) < 50
    torch.testing.assert_close(relabelled(logits, kernel, 1000), settled)


def test_it_changes_predictions_and_nothing_else(model: Model) -> None:
    batch = random_batch("t", 16)
    source = model(batch.views[0]).detach()
    method = LAME(model)
    logits, terms = method.observe(batch.views[0], batch)
    assert terms == {} and not method.adapter().tensors
    assert not torch.allclose(logits.softmax(dim=1), source.softmax(dim=1), atol=1e-2)
    torch.testing.assert_close(model(batch.views[0]), source)
    one = batch.views[0][:1]
    assert torch.equal(method.predict(one), model(one))


def test_it_streams_and_is_refused_offline(
    source_run: TrainRun, target_images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = [str(source_run.file), str(target_images), "--method", "lame", "--out"]
    assert main(["stream", *command, str(tmp_path / "stream"), "--batch", "5"]) == 0
    assert len((tmp_path / "stream" / "predictions.jsonl").read_text().splitlines()) == 10
    capsys.readouterr()
    assert main(["adapt", *command, str(tmp_path / "adapt")]) == 2
    assert "only re-labels the batch it predicts" in capsys.readouterr().err
    with pytest.raises(ValueError, match="no adapter to write"):
        methods.get("lame", "offline")
