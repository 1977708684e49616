"""DePT+ against its formulas, written out image by image."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from dept.data.loader import Batch
from dept.methods.base import Progress
from dept.methods.dept_plus import (
    LEAST_SHARE,
    DePTPlus,
    neighbours_labels,
    seen_shares,
    trust,
    unevenness,
    variety,
)
from dept.methods.neo import NEO
from dept.methods.shot import centroid_labels
from dept.models.model import Model
from support import FixedPasses, random_batch, spread_predictions, tiny_config, tiny_model

IMAGES = 30


@pytest.fixture
def model() -> Model:
    return spread_predictions(tiny_model())


def plus(model: Model, **changes: Any) -> DePTPlus:
    return DePTPlus(model, tiny_config(DePTPlus, **changes))  # type: ignore[arg-type]


def slow_entropy(p: list[float]) -> float:
    return -sum(x * math.log(x + 1e-8) for x in p)


def test_loss_is_that_of_the_slow_formula(model: Model) -> None:
    """Every step of it in loops: re-centred head, centroids, mean prediction completed by that of all images."""
    passes, batch = FixedPasses(IMAGES), random_batch("ws", 5, seed=3)
    batch = Batch(batch.views, torch.tensor([7, 2, 28, 11, 3]))
    with torch.no_grad():
        features = torch.cat([model.read(part.views[0]).features for part in passes()])
        own, strong = (model.read(view).features for view in batch.views)
    head = model.head
    bias = [float(b - w @ features.mean(dim=0)) for w, b in zip(head.weight.data, head.bias.data, strict=True)]

    def slow_softmax(h: torch.Tensor) -> list[float]:
        powers = [math.exp(float(w @ h) + b) for w, b in zip(head.weight.data, bias, strict=True)]
        return [power / sum(powers) for power in powers]

    p, q, s = ([slow_softmax(h) for h in given] for given in (features, own, strong))
    labels = slow_centroid_labels(features, p)
    share = 5 / 12  # three classes, four images of each are enough
    entropy = sum(map(slow_entropy, q)) / 5
    label, other = (
        -sum(math.log(row[labels[i]]) for row, i in zip(given, batch.index.tolist(), strict=True)) / 5
        for given in (q, s)
    )
    mean = [sum(r[c] for r in q) / 5 * share + (1 - share) * sum(r[c] for r in p) / IMAGES for c in range(3)]
    method = plus(model, w_label=0.5, w_class=2.0, w_class_start=2.0, w_strong=0.7, trust=False)
    method.begin(passes)
    method.at(Progress(4, 10, 0))
    terms = method.step(batch)
    assert terms["entropy"] == pytest.approx(entropy, abs=1e-4)
    assert terms["label"] == pytest.approx(0.5 * 0.4 * label, abs=1e-4)  # labels of a lost model count t/T
    assert terms["strong"] == pytest.approx(0.7 * 0.4 * other, abs=1e-4)
    assert terms["class_diversity"] == pytest.approx(-2 * slow_entropy(mean) / share, abs=1e-4)


def slow_centroid_labels(features: torch.Tensor, p: list[list[float]]) -> list[int]:
    """Nearest class mean by cosine: means weighted by probabilities first, then of the images so labelled."""
    points = [torch.cat([h, torch.ones(1)]) for h in features]
    points = [x / x.norm() for x in points]
    weights, labels = p, [row.index(max(row)) for row in p]
    for _ in range(2):
        used = sorted(set(labels))
        means = {c: sum(w[c] * x for w, x in zip(weights, points, strict=True)) for c in used}
        labels = [max(used, key=lambda c: float(x @ means[c] / means[c].norm())) for x in points]
        weights = [[float(label == c) for c in range(3)] for label in labels]
    return labels


def test_declared_shares_take_the_place_of_even_ones() -> None:
    """KL(m ‖ π) by hand: m = (0.75, 0.25), π = (0.9, 0.1)."""
    logits, rest = torch.tensor([[0.0, 0.0], [40.0, 0.0]]), torch.tensor([0.5, 0.5])
    by_hand = 0.75 * math.log(0.75 / 0.9) + 0.25 * math.log(0.25 / 0.1)
    assert float(unevenness(logits, rest, 1.0, torch.tensor([0.9, 0.1]))) == pytest.approx(by_hand, abs=1e-5)
    even = float(unevenness(logits, rest, 0.5, torch.tensor([0.5, 0.5])))
    assert even == pytest.approx(float(unevenness(logits, rest, 0.5)) + math.log(2) / 0.5, abs=1e-5)


def test_trust_by_hand() -> None:
    """Nine of ten labels stay: λ = 0.8. From half of them on, nothing that is seen counts."""
    before = torch.tensor([0, 0, 0, 0, 0, 0, 1, 1, 1, 2])
    assert float(trust(before, torch.tensor([0, 0, 0, 0, 0, 0, 1, 1, 1, 1]))) == pytest.approx(0.8)
    assert float(trust(before, (before + torch.tensor([1] * 5 + [0] * 5)) % 3)) == 0.0
    assert float(trust(before, 2 - before)) == 0.0


def test_seen_shares_by_hand() -> None:
    """Seen are 0.6, 0.4, 0, and λ = 0.8: π = 0.8 n + 0.2 / 3. Nothing is expected never."""
    labels = torch.tensor([0, 0, 0, 0, 0, 0, 1, 1, 1, 1])
    by_hand = [0.8 * n + 0.2 / 3 for n in (0.6, 0.4, 0.0)]
    assert seen_shares(labels, torch.tensor(0.8), 3).tolist() == pytest.approx(by_hand)
    assert seen_shares(labels, torch.tensor(0.0), 4).tolist() == [0.25] * 4
    assert seen_shares(labels, torch.tensor(1.0), 3).tolist() == pytest.approx([0.6, 0.4, LEAST_SHARE])


def test_neighbours_labels_in_loops() -> None:
    """The k most similar other images by centred cosine, their mean prediction, its largest class."""
    torch.manual_seed(0)
    features, p = torch.randn(20, 6), torch.randn(20, 3).softmax(dim=1)
    rows = (features - features.mean(dim=0)).tolist()

    def similar(a: list[float], b: list[float]) -> float:
        return sum(x * y for x, y in zip(a, b, strict=True)) / math.hypot(*a) / math.hypot(*b)

    expected = []
    for i, row in enumerate(rows):
        near = sorted((j for j in range(20) if j != i), key=lambda j: -similar(row, rows[j]))[:4]
        votes = [sum(float(p[j, c]) for j in near) for c in range(3)]
        expected.append(votes.index(max(votes)))
    assert neighbours_labels(features, p, 4).tolist() == expected


def test_labels_that_neighbours_disagree_with_count_less(model: Model) -> None:
    """1 - λ instead of 1, in both cross-entropies; for a model that is lost, all count alike."""
    passes, method = FixedPasses(IMAGES), plus(model)
    with torch.no_grad():
        features = torch.cat([model.read(part.views[0]).features for part in passes()])
        p = model.head(features).softmax(dim=1)
    index = torch.randperm(IMAGES)
    method.trusted = torch.tensor(0.75)
    method._label(features[index], model.head(features[index]), index)
    expected = centroid_labels(features, p)
    agree = neighbours_labels(features, p, 10) == expected
    assert 0 < int(agree.sum()) < IMAGES
    assert method.labels is not None and torch.equal(method.labels, expected)
    assert method.weights is not None and method.weights.tolist() == [1.0 if one else 0.25 for one in agree]
    batch = Batch(random_batch("ws", 6, seed=4).views, torch.arange(6))
    logits = [model(view) for view in batch.views]
    for step, counts in ((0, 0.75), (5, 0.875), (10, 1.0)):  # λ at first, 1 at the end
        method.at(Progress(step, 10, 0))
        terms = method.loss(batch)
        for name, own in zip(("label", "strong"), logits, strict=True):
            rows = -own.log_softmax(dim=1)[torch.arange(6), expected[:6]] * method.weights[:6]
            assert float(terms[name]) == pytest.approx(counts * 0.3 * float(rows.sum()) / 6, rel=1e-5)
    blind = plus(model, trust=False)
    blind.begin(passes)
    assert blind.weights is not None and blind.weights.tolist() == [1.0] * IMAGES


def test_expected_shares_are_declared_or_seen_or_even(model: Model) -> None:
    """Declared ones count first. Seen ones are those of the re-centred model; there are none to see without a pass."""
    passes, first = FixedPasses(IMAGES), model.head.bias.detach().clone()
    seen = plus(model)
    assert seen.expected is None
    with torch.no_grad():
        before = torch.cat([model(part.views[0]) for part in passes()]).argmax(dim=1)
    seen.begin(passes)
    with torch.no_grad():
        after = torch.cat([model(part.views[0]) for part in passes()]).argmax(dim=1)
        model.head.bias.copy_(first)
    assert seen.expected is not None
    assert torch.equal(seen.expected, seen_shares(after, trust(before, after), 3))
    for changes in ({"trust": False}, {"recentre": False}):
        other = plus(model, **changes)
        other.begin(passes)
        assert other.expected is None and other.trusted == 0
    declared = DePTPlus(model, tiny_config(DePTPlus), shares=(0.6, 0.4, 0.0))
    declared.begin(passes)
    assert declared.expected is not None
    assert declared.expected.tolist() == pytest.approx([0.6, 0.4, LEAST_SHARE])


def test_labels_are_found_anew_after_an_epoch(model: Model) -> None:
    method = plus(model)
    method.begin(FixedPasses(IMAGES))
    first = method.labels
    with torch.no_grad():
        model.head.weight.copy_(model.head.weight.flip(0))
    method.refresh(FixedPasses(IMAGES), 0)
    assert first is not None and method.labels is not None and not torch.equal(first, method.labels)


def test_only_prompts_and_bias_are_in_the_adapter_and_the_bias_stays_where_the_start_put_it(model: Model) -> None:
    method = plus(model)
    method.begin(FixedPasses(IMAGES))
    started = model.head.bias.detach().clone()
    method.at(Progress(0, 10, 0))
    method.step(random_batch("ws", 4))
    assert sorted(method.adapter().tensors) == ["head.bias", "prompts"]
    assert torch.equal(model.head.bias, started) and not torch.equal(started, method.source_bias)


def test_a_step_is_that_of_prompts_of_size_one(model: Model) -> None:
    """p = s u with u of size 1: a step of u is -η ∂L/∂u = -η s ∂L/∂p, that of p is s times as long (Nesterov: 1.9)."""
    assert model.prompts is not None
    with torch.no_grad():
        model.prompts[0] *= 100
    before = model.prompts.detach().clone()
    sizes = before.square().mean(dim=(1, 2), keepdim=True).sqrt()
    assert float(sizes[0]) > 10 * float(sizes[1])
    method = plus(model, lr=10.0)
    method.begin(FixedPasses(IMAGES))
    method.at(Progress(0, 10, 0))
    method.step(random_batch("ws", 4))
    assert model.prompts.grad is not None
    expected = -1.9 * 10 * sizes**2 * model.prompts.grad
    assert torch.allclose(model.prompts.detach() - before, expected, rtol=1e-2, atol=1e-4 * float(sizes[1]) ** 2)


def test_the_steps_of_a_stream_are_absolute(model: Model) -> None:
    assert model.prompts is not None and DePTPlus.presets["online"]["clip"] == 1.0
    method = plus(model, **DePTPlus.presets["online"] | {"clip": 0.0})
    before, batch = model.prompts.detach().clone(), random_batch("t", 4)
    method.at(Progress(0, 0, 0))
    method.observe(batch.views[0], batch)
    assert model.prompts.grad is not None
    assert torch.allclose(model.prompts.detach() - before, -1.9 * 5e-3 * model.prompts.grad, atol=1e-6)


def class_term(method: DePTPlus, step: int, total: int) -> float:
    method.at(Progress(step, total, 0))
    return float(method.loss(random_batch("ws", 6))["class_diversity"])


def test_class_shares_count_more_at_the_start(model: Model) -> None:
    method = plus(model, w_class=1.0, w_class_start=3.0)
    method.begin(FixedPasses(IMAGES))
    end = class_term(method, 10, 10)
    assert class_term(method, 0, 10) == pytest.approx(3 * end) and class_term(method, 5, 10) == pytest.approx(2 * end)
    assert class_term(method, 7, 0) == pytest.approx(end)  # no end, no beginning
    assert "class_diversity" not in plus(model, **DePTPlus.presets["unbalanced"]).loss(random_batch("ws", 6))


def test_the_pull_on_a_batch_does_not_fade_with_its_share() -> None:
    """Gradient of the unevenness with a share s of 1/10 is about that with 1, where the rest looks like the batch."""
    logits = torch.randn(6, 4, generator=torch.Generator().manual_seed(0)).double().requires_grad_()
    rest = logits.detach().softmax(dim=-1).mean(dim=0)
    (whole,) = torch.autograd.grad(unevenness(logits, rest, 1.0), logits)
    (part,) = torch.autograd.grad(unevenness(logits, rest, 0.1), logits)
    assert torch.allclose(whole, part, atol=1e-6)


def test_hand_values_of_variety() -> None:
    assert variety(torch.tensor([5.0, 0.0, 0.0])) == pytest.approx(0, abs=1e-6)
    assert variety(torch.tensor([5.0, 5.0, 5.0])) == pytest.approx(1)
    assert variety(torch.tensor([5.0, 5.0, 0.0])) == pytest.approx(0.5)  # two of three classes
    assert variety(torch.full((1000,), 0.1)) == 1


def test_a_stream_of_many_classes_is_recentred_like_neo(model: Model) -> None:
    """By as much of NEO's shift as there is variety in what was predicted."""
    twin, batch = spread_predictions(tiny_model()), random_batch("t", 32)
    method = plus(model, **DePTPlus.presets["online"] | {"lr": 0.0})
    logits, _ = method.observe(batch.views[0], batch)
    shares = torch.softmax(twin(batch.views[0]), dim=-1).sum(dim=0)
    neo = NEO(twin, NEO.Config())
    neo.step(batch)
    expected = method.source_bias + (twin.head.bias - method.source_bias) * variety(shares)
    assert torch.allclose(model.head.bias, expected, atol=1e-5)
    assert torch.allclose(logits, twin.head(twin.read(batch.views[0]).features) + expected - twin.head.bias, atol=1e-4)


def test_a_stream_of_one_class_is_not_recentred() -> None:
    model = spread_predictions(tiny_model())
    with torch.no_grad():
        model.head.bias[1] += 100  # whatever comes is of class 1
    method, batch = plus(model, **DePTPlus.presets["online"]), random_batch("t", 32)
    before = model(batch.views[0])
    logits, _ = method.observe(batch.views[0], batch)
    assert torch.allclose(logits, before, atol=1e-3)
