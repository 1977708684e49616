"""TTT++ against its formulas, pair by pair, and its source statistics against all features at once."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from dept.data.images import find_labelled
from dept.data.loader import Runtime, TestPasses, Views
from dept.methods.ttt_plus import TTTPlus, contrast
from dept.models import stats
from dept.models.model import Model
from dept.models.stats import compute_stats, load_stats, save_stats
from support import moved, random_batch, state_of, teach, tiny_model


@pytest.fixture
def taught() -> Model:
    """A model with a projection."""
    return teach(tiny_model(), "contrastive").eval()


@pytest.fixture
def source(taught: Model, source_images: Path) -> dict[str, torch.Tensor]:
    return compute_stats(taught, find_labelled(source_images), Runtime())[0]


def test_contrast_pair_by_pair() -> None:
    points = torch.randn(6, 4, generator=torch.Generator().manual_seed(1))  # two views of three images
    total = 0.0
    for i in range(6):
        near = {j: math.exp(float(F.cosine_similarity(points[i], points[j], dim=0)) / 0.5) for j in range(6) if j != i}
        total -= math.log(near[(i + 3) % 6] / sum(near.values())) / 6
    assert float(contrast(points)) == pytest.approx(total, abs=1e-5)


def test_loss_is_that_of_the_slow_formula(taught: Model, source: dict[str, torch.Tensor]) -> None:
    """The second batch's moments are those of both batches."""
    method = TTTPlus(
        taught, TTTPlus.Config(w_contrast=2.0, w_features=0.3, w_projections=0.4, queue_size=8), stats=source
    )
    first, batch = random_batch("sw", 5, seed=1), random_batch("sw", 4, seed=2)
    assert taught.auxiliary is not None
    method.loss(first)
    terms = {name: float(term.detach()) for name, term in method.loss(batch).items()}
    with torch.no_grad():
        strong, weak, earlier = (taught.read(view).features for view in (*batch.views, first.views[1]))
        seen = torch.cat([weak, earlier[:4]])  # eight with those of the batch
        expected = {"contrast": 2.0 * float(contrast(taught.auxiliary(torch.cat([strong, weak]))))}
        for name, weight, kind, points in (
            ("features", 0.3, "feature", seen),
            ("projections", 0.4, "projection", taught.auxiliary(seen)),
        ):
            cov = torch.cov(points.T) - source[f"{kind}_covariance"]
            gap = points.mean(dim=0) - source[f"{kind}_mean"]
            noise = source[f"{kind}_noise"]
            width = points.shape[1]
            expected[name] = weight * float(
                cov.square().sum() / (4 * width**2) / noise[0] + 0.5 * gap.square().mean() / noise[1]
            )
    assert terms == pytest.approx(expected, rel=1e-3)


def test_statistics_are_those_of_all_features(
    taught: Model, source_images: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Batches of 4: moments of all images, and mean distances of batches from the first."""
    monkeypatch.setattr(stats, "MOMENT_BATCH", 4)
    images = find_labelled(source_images)
    found = compute_stats(taught, images, Runtime(), seed=3)[0]
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(3)).tolist()
    batches = TestPasses(images.take(order), Views(taught.card.preprocess), Runtime(eval_batch=4))()
    assert taught.auxiliary is not None
    with torch.no_grad():
        features = [taught.read(batch.views[0]).features.double() for batch in batches]
        projections = [taught.auxiliary.double()(part) for part in features]
    for kind, parts in (("feature", features), ("projection", projections)):
        assert torch.allclose(found[f"{kind}_mean"].double(), torch.cat(parts).mean(dim=0), atol=1e-5)
        assert torch.allclose(found[f"{kind}_covariance"].double(), torch.cov(torch.cat(parts).T), atol=1e-5)
        width, rest = parts[0].shape[1], parts[1:]
        assert len(rest) > 1
        apart = [((torch.cov(one.T) - torch.cov(parts[0].T)) ** 2).sum() / (4 * width**2) for one in rest]
        gaps = [((one.mean(dim=0) - parts[0].mean(dim=0)) ** 2).mean() for one in rest]
        expected = torch.stack([torch.stack(apart).mean(), torch.stack(gaps).mean()])
        assert torch.allclose(found[f"{kind}_noise"].double(), expected, rtol=1e-3)


def test_encoder_moves_classifier_and_projection_stay(taught: Model, source: dict[str, torch.Tensor]) -> None:
    before = state_of(taught)
    method = TTTPlus(taught, stats=source)
    method.step(random_batch("sw"))
    names = moved(before, taught)
    assert {"prompts", "backbone.patch_embed.proj.weight"} <= names
    assert not any(name.startswith(("head.", "auxiliary.")) for name in names)


def test_the_queue_forgets_the_oldest(taught: Model, source: dict[str, torch.Tensor]) -> None:
    method = TTTPlus(taught, TTTPlus.Config(queue_size=7), stats=source)
    for seed in range(3):
        method.loss(random_batch("sw", 3, seed=seed))
    assert method.queue.shape == (7, taught.head.in_features) and not method.queue.requires_grad
    with torch.no_grad():
        latest = taught.read(random_batch("sw", 3, seed=2).views[1]).features
    assert torch.allclose(method.queue[:3], latest, atol=1e-5)


def test_statistics_of_another_projection_are_not_used(taught: Model, source_images: Path, tmp_path: Path) -> None:
    path = save_stats(*compute_stats(taught, find_labelled(source_images), Runtime()), tmp_path / "stats.safetensors")
    assert "projection_mean" in load_stats(path, taught)
    assert taught.auxiliary is not None
    with torch.no_grad():
        taught.auxiliary.weight.mul_(2)
    with pytest.raises(ValueError, match="have none for the projection of this model"):
        TTTPlus(taught, stats=load_stats(path, taught))


def test_what_is_missing_is_said(taught: Model, source: dict[str, torch.Tensor]) -> None:
    with pytest.raises(ValueError, match="aux=contrastive"):
        TTTPlus(tiny_model(), stats=source)
    with pytest.raises(ValueError, match=r"these source statistics have none.*dept stats"):
        TTTPlus(taught, stats={"moment1": source["moment1"]})
