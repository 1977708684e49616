from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from dept.core.losses import bounded_features
from dept.methods.cfa import CFA, class_distance, moment_distance
from dept.models.model import Model, fingerprint
from dept.models.stats import feature_statistics, load_stats, save_stats
from support import random_batch, scramble, tiny_model


@pytest.fixture
def sharp() -> Model:
    model = tiny_model(stages=0, prompts=0)
    scramble(model, scale=0.2)
    return model


def stats_file(model: Model, images: Tensor, path: Path) -> str:
    """Statistics of `images` with the model's own predictions as labels."""
    batch = random_batch("t", len(images))
    labels = model(images).argmax(dim=1)
    tensors = feature_statistics(model, [type(batch)((images,), batch.index)], labels)
    meta = {"kind": "stats", "arch": "tiny", "stages": 0, "prompts": 0}
    return str(save_stats(tensors, meta | {"backbone_sha256": fingerprint(model)}, path))


def cfa(model: Model, path: str, **changes: float) -> CFA:
    return CFA(model, CFA.Config(**changes), stats=load_stats(path, model))  # type: ignore[arg-type]


def test_bounded_features_are_tanh_of_standardised_ones() -> None:
    h = torch.randn(5, 8, dtype=torch.float64) * 7 + 3
    standard = (h - h.mean(dim=1, keepdim=True)) / (h.var(dim=1, unbiased=False, keepdim=True) + 1e-5).sqrt()
    torch.testing.assert_close(bounded_features(h), standard.tanh())


def test_moment_distance_against_a_slow_formula() -> None:
    h, source = torch.rand(6, 4).double(), [torch.rand(4).double() for _ in range(3)]
    expected = 0.0
    for order in (1, 2, 3):
        total = 0.0
        for d in range(4):
            column = h[:, d].tolist()
            mean = sum(column) / 6
            moment = mean if order == 1 else sum((x - mean) ** order for x in column) / 6
            total += (moment - float(source[order - 1][d])) ** 2
        expected += total**0.5 / 2**order
    assert float(moment_distance(h, source)) == pytest.approx(expected)


def test_class_distance_by_hand() -> None:
    h = torch.tensor([[1.0, 0.0], [0.0, 0.0], [0.0, 0.6]])
    means = torch.tensor([[0.5, 0.0], [9.0, 9.0], [0.0, 0.2], [5.0, 5.0]])
    labels, counts = torch.tensor([0, 0, 2]), torch.tensor([1.0, 1, 1, 0])
    # class 0: its mean is (.5, 0), distance 0; class 2: distance .4; classes 1 and 3 are absent
    assert float(class_distance(h, labels, means, counts)) == pytest.approx((0 + 0.4 / 2) / 2)


def test_classes_without_source_images_are_left_out() -> None:
    h, means = torch.rand(3, 2), torch.zeros(2, 2)
    labels = torch.tensor([0, 1, 1])
    only = class_distance(h, labels, means, torch.tensor([4.0, 0.0]))
    assert float(only) == pytest.approx(float(h[0].norm()) / 2)
    assert float(class_distance(h, labels, means, torch.zeros(2))) == 0.0


def test_zero_when_the_batch_is_the_source_and_finite_gradient(sharp: Model, tmp_path: Path) -> None:
    batch = random_batch("t", 8)
    method = cfa(sharp, stats_file(sharp, batch.views[0], tmp_path / "s.safetensors"))
    terms = method.loss(batch)
    assert float(terms["moments"].detach()) < 1e-5 and float(terms["classes"].detach()) < 1e-5
    gradients = torch.autograd.grad(sum(terms.values()), list(method.model.backbone.norm.parameters()))
    assert all(bool(g.isfinite().all()) for g in gradients)
    # exact agreement: the gradient is defined there, too
    h = torch.rand(4, 3, requires_grad=True)
    exact = moment_distance(h, [h.detach().mean(dim=0)])
    (gradient,) = torch.autograd.grad(exact, h)
    assert float(exact.detach()) == 0.0 and not gradient.any()


def test_a_step_brings_the_moments_closer(sharp: Model, tmp_path: Path) -> None:
    source, target = random_batch("t", 8, seed=3), random_batch("t", 8, seed=4)
    method = cfa(sharp, stats_file(sharp, source.views[0], tmp_path / "s.safetensors"), lr=0.01)
    first = method.step(target)["loss"]
    for _ in range(5):
        last = method.step(target)["loss"]
    assert last < first


def test_the_global_gradient_norm_is_clipped(sharp: Model, tmp_path: Path) -> None:
    path = stats_file(sharp, random_batch("t", 8, seed=3).views[0], tmp_path / "s.safetensors")
    for clip, most in ((0.01, 0.01), (0.0, 1e9)):
        method = cfa(sharp, path, momentum=0.0, lr=1.0, clip=clip)
        before = method.adapter()
        method.step(random_batch("t", 8, seed=4))
        after = method.adapter()
        step = torch.cat([(after.tensors[n] - t).flatten() for n, t in before.tensors.items()]).norm()
        assert 0 < float(step) <= most * 1.001
        assert clip or float(step) > 0.01
        method.reset()


def test_statistics_are_required_and_travel_with_the_state(sharp: Model, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="dept stats MODEL SOURCE"):
        CFA(sharp)
    path = stats_file(sharp, random_batch("t", 8, seed=3).views[0], tmp_path / "s.safetensors")
    method = cfa(sharp, path)
    state = method.state_dict()
    assert {f"source.moment{j}" for j in (1, 2, 3)} | {"source.class_means", "source.class_counts"} <= set(state)


def test_online_prediction_is_before_the_update(sharp: Model, tmp_path: Path) -> None:
    path = stats_file(sharp, random_batch("t", 8, seed=3).views[0], tmp_path / "s.safetensors")
    method = cfa(sharp, path, lr=0.1)
    batch = random_batch("t", 8, seed=4)
    expected = sharp(batch.views[0]).detach()
    assert torch.equal(method.observe(batch.views[0], batch)[0], expected)
    assert not torch.equal(sharp(batch.views[0]), expected)


def test_a_batch_of_one(sharp: Model, tmp_path: Path) -> None:
    path = stats_file(sharp, random_batch("t", 8, seed=3).views[0], tmp_path / "s.safetensors")
    method = cfa(sharp, path)
    method.step(random_batch("t", 1))
    assert all(bool(t.isfinite().all()) for t in method.adapter().tensors.values())
