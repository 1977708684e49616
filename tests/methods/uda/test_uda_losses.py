"""The pure parts against values worked out by hand (recipe sheet, sections 9 and 11)."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from dept.methods.uda.adversarial import discriminator, domain_loss, reversal_coefficient, reverse_gradient
from dept.methods.uda.base import inverse_decay
from dept.methods.uda.can import contrastive_discrepancy, kernel_discrepancy, mean_distance, spherical_kmeans
from dept.methods.uda.cdan import RandomisedMap, entropy_weights, outer_product
from dept.methods.uda.mcc import class_confusion
from dept.methods.uda.swd import sliced_wasserstein


@pytest.mark.parametrize(("step", "value"), [(0, 0.0), (100, 0.049958), (1000, 0.462117), (5000, 0.986614)])
def test_reversal_coefficient(step: int, value: float) -> None:
    assert reversal_coefficient(step) == pytest.approx(value, abs=1e-6)


def test_gradient_reversal_is_the_identity_with_a_flipped_scaled_gradient() -> None:
    x = torch.tensor([1.0, -2.0, 3.0], requires_grad=True)
    out = reverse_gradient(x, 0.25)
    assert torch.equal(out, x)
    (out * torch.tensor([1.0, 2.0, 4.0])).sum().backward()
    assert x.grad is not None and torch.allclose(x.grad, torch.tensor([-0.25, -0.5, -1.0]))


def test_domain_loss() -> None:
    source, target = torch.tensor([[2.0], [0.0]]), torch.tensor([[-1.0]])
    by_hand = 0.5 * ((math.log1p(math.exp(-2)) + math.log(2)) / 2 + math.log1p(math.exp(-1)))
    assert float(domain_loss(source, target)) == pytest.approx(by_hand, abs=1e-6)
    assert float(domain_loss(torch.zeros(3, 1), torch.zeros(3, 1))) == pytest.approx(math.log(2), abs=1e-6)


def test_domain_loss_with_unit_weights_is_the_unweighted_one() -> None:
    source, target = torch.randn(4, 1), torch.randn(4, 1)
    assert torch.allclose(domain_loss(source, target, torch.ones(8)), domain_loss(source, target))
    only_first = torch.tensor([8.0, 0, 0, 0, 0, 0, 0, 0])
    expected = math.log1p(math.exp(-float(source[0])))
    assert float(domain_loss(source, target, only_first)) == pytest.approx(expected, abs=1e-5)


def test_discriminator_gives_one_logit() -> None:
    assert discriminator(6, 8)(torch.randn(4, 6)).shape == (4, 1)


def test_class_confusion() -> None:
    assert float(class_confusion(torch.tensor([[2.0, 0.0], [0.0, 2.0]]))) == pytest.approx(0.209987, abs=1e-6)


@pytest.mark.parametrize("classes", [2, 5, 12])
def test_class_confusion_of_uniform_predictions(classes: int) -> None:
    assert float(class_confusion(torch.zeros(7, classes), 3.0)) == pytest.approx((classes - 1) / classes, abs=1e-6)


def test_class_confusion_equals_the_slow_formula() -> None:
    logits = torch.randn(5, 4, dtype=torch.float64)
    y = (logits / 2.5).softmax(dim=1)
    w = [1 + math.exp(float((row * row.log()).sum())) for row in y]
    w = [5 * value / sum(w) for value in w]
    c = [[sum(w[b] * float(y[b, i] * y[b, j]) for b in range(5)) for j in range(4)] for i in range(4)]
    off = sum(c[i][j] / sum(c[i]) for i in range(4) for j in range(4) if i != j)
    assert float(class_confusion(logits, 2.5)) == pytest.approx(off / 4, abs=1e-12)


def test_entropy_weights() -> None:
    weights = entropy_weights(torch.tensor([[0.5, 0.5], [0.9, 0.1]]).log())
    assert weights.tolist() == pytest.approx([1.5, 1.722467], abs=1e-6)


def test_outer_product() -> None:
    joined = outer_product(torch.tensor([[1.0, 2.0]]), torch.tensor([[0.25, 0.75, 0.0]]))
    assert joined.tolist() == [[0.25, 0.5, 0.75, 1.5, 0.0, 0.0]]


def test_randomised_map() -> None:
    sketch = RandomisedMap(3, 2, 4)
    f, g = torch.randn(5, 3), torch.randn(5, 2).softmax(dim=1)
    expected = torch.stack(
        [
            sum(f[:, i] * sketch.features[i, k] for i in range(3))
            * sum(g[:, j] * sketch.classes[j, k] for j in range(2))
            / 2.0
            for k in range(4)
        ],
        dim=1,
    )
    assert torch.allclose(sketch(f, g), expected, atol=1e-6)


def test_randomised_map_keeps_inner_products_of_outer_products() -> None:
    sketch = RandomisedMap(3, 2, 200_000)
    f, g = torch.tensor([[1.0, 0.5, -0.5], [0.5, 1.0, 0.0]]), torch.tensor([[0.9, 0.1], [0.6, 0.4]])
    full = outer_product(f, g)
    mapped = sketch(f, g)
    assert torch.allclose(mapped @ mapped.T, full @ full.T, atol=0.05)


def test_sliced_wasserstein() -> None:
    one, two = torch.tensor([[0.1], [0.9], [0.5]]), torch.tensor([[0.2], [0.4], [0.6]])
    assert float(sliced_wasserstein(one, two, torch.ones(1, 1))) == pytest.approx(0.036667, abs=1e-6)


def test_sliced_wasserstein_does_not_see_the_order_of_rows() -> None:
    rows, directions = torch.randn(6, 3).softmax(dim=1), torch.randn(3, 16)
    assert float(sliced_wasserstein(rows, rows[torch.randperm(6)], directions)) == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize(("step", "value"), [(0, 1.0), (1000, 0.401601), (5000, 0.059682)])
def test_learning_rate_of_can(step: int, value: float) -> None:
    assert inverse_decay(step, 0.0005, 2.25) == pytest.approx(value, abs=1e-6)


def test_learning_rate_of_tll() -> None:
    assert inverse_decay(1000, 0.001, 0.75) == pytest.approx(2**-0.75)


# ---- CAN ----


def two_classes(gap: float = 4.0) -> tuple[Tensor, Tensor]:
    features = torch.cat([torch.randn(4, 3), torch.randn(4, 3) + gap])
    return features, torch.tensor([0] * 4 + [1] * 4)


def test_intra_class_term_is_zero_when_features_coincide() -> None:
    features, labels = two_classes()
    for c in (0, 1):
        assert float(kernel_discrepancy(features[labels == c], features[labels == c])) == pytest.approx(0, abs=1e-6)
    # One class alone has no other to stand apart from: the whole discrepancy is the intra term.
    only = torch.zeros(4, dtype=torch.long)
    assert float(contrastive_discrepancy(features[:4], only, features[:4], only, 2)) == pytest.approx(0, abs=1e-6)


def test_kernel_discrepancy_by_hand() -> None:
    # Source {0}, target {1}: one pair of distance 1, so γ = 1 and k_ss = k_tt = 5.
    kernels = sum(math.exp(-1 / 2.0**power) for power in range(-2, 3))
    value = kernel_discrepancy(torch.zeros(1, 1), torch.ones(1, 1))
    assert float(value) == pytest.approx(10 - 2 * kernels, abs=1e-5)


def test_discrepancy_is_divided_by_all_classes_and_all_pairs() -> None:
    features, labels = two_classes()
    target = features + 0.5
    mmd = {
        (i, j): float(kernel_discrepancy(features[labels == i], target[labels == j])) for i in (0, 1) for j in (0, 1)
    }
    expected = (mmd[0, 0] + mmd[1, 1]) / 12 - (mmd[0, 1] + mmd[1, 0]) / (12 * 11)
    assert float(contrastive_discrepancy(features, labels, target, labels, 12)) == pytest.approx(expected, abs=1e-6)


def test_discrepancy_without_a_shared_class_is_zero_with_a_graph() -> None:
    features = torch.randn(3, 2, requires_grad=True)
    value = contrastive_discrepancy(features, torch.zeros(3), torch.randn(2, 2), torch.full((2,), -1), 4)
    value.backward()
    assert not value.detach().any() and features.grad is not None and not features.grad.any()


def test_kmeans_names_clusters_after_the_initial_centres() -> None:
    centers = torch.eye(3)
    angles = 0.05 * torch.randn(30, 3, generator=torch.Generator().manual_seed(0))
    truth = torch.arange(30) % 3
    scale = torch.linspace(0.1, 10, 30)[:, None]  # lengths do not matter
    labels, distance, found = spherical_kmeans(scale * (centers[truth] + angles), centers)
    assert torch.equal(labels, truth) and mean_distance(found, centers) < 0.01
    assert float(distance.max()) < 0.05 and float(distance.min()) >= 0


def test_kmeans_relabels_one_to_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here the clusters drift so far that the first two swap places; the matching gives them the right names."""
    rows = [[3, 0, 0], [0, 0, -2], [-1, -3, -3], [0, -1, -2], [2, 1, 1]]
    features = torch.tensor(rows, dtype=torch.float32)
    labels, _, centers = spherical_kmeans(features, torch.eye(3))
    assert labels.tolist() == [0, 1, 1, 1, 0]
    assert torch.equal((F.normalize(features, dim=1) @ centers.T).argmax(dim=1), labels)  # centers have the same names
    monkeypatch.setattr("dept.methods.uda.can.optimize.linear_sum_assignment", lambda cost: ([0, 1, 2], [0, 1, 2]))
    assert spherical_kmeans(features, torch.eye(3))[0].tolist() == [1, 0, 0, 0, 1]  # without it


def released_kmeans(features: np.ndarray, initial: np.ndarray) -> np.ndarray:
    """The published clustering, written with loops: the center (C, D) of every cluster, not yet renamed."""
    centers, change = initial, 1.0

    def distance(one: np.ndarray, two: np.ndarray) -> float:
        return 0.5 * (1 - one @ two / np.linalg.norm(one) / np.linalg.norm(two))

    while change >= 0.005:
        nearest = [min(range(len(centers)), key=lambda c: distance(f, centers[c])) for f in features]
        moved = initial.copy()
        for c in set(nearest):
            moved[c] = sum(f for f, own in zip(features, nearest, strict=True) if own == c)
        change = float(np.mean([distance(a, b) for a, b in zip(moved, centers, strict=True)]))
        centers = moved
    return centers / np.linalg.norm(centers, axis=1, keepdims=True)


def test_released_kmeans_against_loops() -> None:
    """Features of very different length; a cluster that is full, then empty, and back at its start."""
    returned = differing = 0
    for seed in range(20):
        rng = np.random.default_rng(seed)
        features = rng.normal(size=(10, 3)) * rng.uniform(0.1, 10, (10, 1))
        initial = rng.normal(size=(5, 3))
        initial /= np.linalg.norm(initial, axis=1, keepdims=True)
        expected = released_kmeans(features, initial)
        given = torch.tensor(features), torch.tensor(initial)
        found = spherical_kmeans(*given, raw=True)[2].numpy()
        # Renamed: every center is there, maybe at another place.
        assert np.abs(found[:, None] - expected[None]).max(axis=2).min(axis=0).max() < 1e-9
        started = np.linalg.norm(expected - initial, axis=1) < 1e-9
        first = {int(c) for c in (features @ initial.T).argmax(axis=1)}
        returned += any(started[c] for c in first)
        differing += not np.allclose(found, spherical_kmeans(*given)[2].numpy())
    assert returned and differing


def test_kmeans_keeps_an_empty_cluster() -> None:
    labels, distance, _ = spherical_kmeans(torch.tensor([[1.0, 0.0], [1.0, 0.1]]), torch.eye(2))
    assert labels.tolist() == [0, 0] and distance.isfinite().all()
