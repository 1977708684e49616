"""DePT+ against its formulas, written out image by image."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from dept.core.renderings import RENDERINGS
from dept.data.loader import Batch
from dept.methods import dept_plus
from dept.methods.base import Progress
from dept.methods.dept_plus import (
    LEAST_SHARE,
    DePTPlus,
    agreed_labels,
    neighbours_mean,
    present_shares,
    told,
    trust,
    unevenness,
    variety,
)
from dept.methods.neo import NEO
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


def dot(a: list[float], b: list[float]) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))


def slow_softmax(logits: list[float]) -> list[float]:
    powers = [math.exp(z) for z in logits]
    return [power / sum(powers) for power in powers]


def slow_opinions(model: Model, passes: FixedPasses) -> tuple[list[list[float]], list[list[list[float]]]]:
    """Of every rendering: its re-centred unit features (n, D), and its predictions (n, C), image by image."""
    weight, bias = model.head.weight.tolist(), model.head.bias.tolist()
    units, opinions = [], []
    for render in RENDERINGS:
        with torch.no_grad():
            rows = torch.cat([model.read(render(part.views[0])).features for part in passes()]).tolist()
        mean = [sum(column) / len(rows) for column in zip(*rows, strict=True)]
        centred = [[h - m for h, m in zip(row, mean, strict=True)] for row in rows]
        logits = [[dot(w, row) + b for w, b in zip(weight, bias, strict=True)] for row in centred]
        units.append([[h / math.hypot(*row) for h in row] for row in centred])
        opinions.append([slow_softmax(row) for row in logits])
    return units, opinions


def slow_start(model: Model, passes: FixedPasses) -> tuple[list[list[float]], float, list[float], list[int]]:
    """What all renderings say together (n, C), λ, π (C,) and the labels ŷ (n,), in loops."""
    units, opinions = slow_opinions(model, passes)
    information = []
    for rows in opinions:
        mean = [sum(column) / len(rows) for column in zip(*rows, strict=True)]
        information.append(slow_entropy(mean) - sum(map(slow_entropy, rows)) / len(rows))
    weights = [one**2 / sum(other**2 for other in information) for one in information]

    def blended(parts: list[list[list[float]]]) -> list[list[float]]:
        count, width = len(parts[0]), len(parts[0][0])
        return [
            [sum(w * part[i][c] for w, part in zip(weights, parts, strict=True)) for c in range(width)]
            for i in range(count)
        ]

    features, said = blended(units), blended(opinions)
    together = [row.index(max(row)) for row in said]
    stay = sum(row.index(max(row)) == label for row, label in zip(opinions[0], together, strict=True)) / IMAGES
    trusted = max(0.0, 2 * stay - 1)
    expected = [1 - trusted + trusted * min(1.0, together.count(c) / IMAGES * 3 / 0.25) for c in range(3)]
    expected = [share / sum(expected) for share in expected]
    near = []
    for i, row in enumerate(features):
        others = sorted((j for j in range(IMAGES) if j != i), key=lambda j: -slow_cosine(row, features[j]))[:6]
        near.append([sum(said[j][c] for j in others) / 6 for c in range(3)])
    both = [[(x + y) / 2 for x, y in zip(p, q, strict=True)] for p, q in zip(said, near, strict=True)]
    total = [sum(column) / IMAGES for column in zip(*both, strict=True)]
    labels = [max(range(3), key=lambda c: row[c] * expected[c] / total[c]) for row in both]
    return said, trusted, expected, labels


def slow_cosine(a: list[float], b: list[float]) -> float:
    return dot(a, b) / math.hypot(*a) / math.hypot(*b)


def test_the_start_is_that_of_the_slow_formulas(model: Model) -> None:
    passes, method = FixedPasses(IMAGES), plus(model)
    said, trusted, expected, labels = slow_start(model, passes)
    assert 0 < trusted < 1 and len(set(labels)) == 3  # so that every formula matters
    method.begin(passes)
    assert method.probabilities is not None and method.labels is not None and method.expected is not None
    assert torch.allclose(method.probabilities, torch.tensor(said), atol=1e-4)
    assert float(method.trusted) == pytest.approx(trusted, abs=1e-5)
    assert method.expected.tolist() == pytest.approx(expected, abs=1e-5)
    assert method.labels.tolist() == labels


def test_images_may_come_in_any_order(model: Model) -> None:
    """Labels belong to indices."""
    one, other, passes = plus(model), plus(model), FixedPasses(IMAGES)
    one.begin(passes)
    with torch.no_grad():
        model.head.bias.copy_(one.source_bias)
    passes.batches = passes.batches[::-1]
    other.begin(passes)
    assert one.labels is not None and other.labels is not None and torch.equal(one.labels, other.labels)


@pytest.mark.parametrize("done", [0, 4, 10])
def test_loss_is_that_of_the_slow_formula(model: Model, done: int) -> None:
    """Every term in loops: the mean prediction completed by that of all images, labels that count w(t)."""
    passes, batch = FixedPasses(IMAGES), random_batch("ws", 5, seed=3)
    batch = Batch(batch.views, torch.tensor([7, 2, 28, 11, 3]))
    said, trusted, expected, labels = slow_start(model, passes)
    method = plus(model, w_label=0.5, w_lost=0.4, w_class=2.0, w_class_start=2.0, w_strong=0.7)
    method.begin(passes)
    with torch.no_grad():
        q, s = (model(view).softmax(dim=1).tolist() for view in batch.views)
    share = 5 / 12  # three classes, four images of each are enough
    own = [labels[i] for i in batch.index.tolist()]
    label, other = (-sum(math.log(row[y]) for row, y in zip(given, own, strict=True)) / 5 for given in (q, s))
    counts = trusted * 0.5 + (1 - trusted) * 0.4 * done / 10
    mean = [sum(r[c] for r in q) / 5 * share + (1 - share) * sum(r[c] for r in said) / IMAGES for c in range(3)]
    divergence = sum(m * math.log(m / e) for m, e in zip(mean, expected, strict=True))
    method.at(Progress(done, 10, 0))
    terms = method.step(batch)
    assert terms["entropy"] == pytest.approx(sum(map(slow_entropy, q)) / 5, abs=1e-4)
    assert terms["label"] == pytest.approx(counts * label, abs=1e-4)
    assert terms["strong"] == pytest.approx(counts * 0.7 * other, abs=1e-4)
    assert terms["class_diversity"] == pytest.approx(2 * divergence / share, abs=1e-3)


def test_what_a_weak_view_says_is_remembered(model: Model) -> None:
    """0.6 of the past and 0.4 of now, for the images of the batch alone; the next labels are made of it."""
    passes, method = FixedPasses(IMAGES), plus(model)
    method.begin(passes)
    assert method.features is not None and method.probabilities is not None
    features, said = method.features.clone(), method.probabilities.clone()
    batch = Batch(random_batch("ws", 4, seed=3).views, torch.tensor([7, 2, 28, 11]))
    with torch.no_grad():
        now = model.read(batch.views[0])
    method.at(Progress(0, 10, 0))
    method.step(batch)
    for slot, index in enumerate(batch.index.tolist()):
        unit = (now.features[slot] - method.mean) / (now.features[slot] - method.mean).norm()
        assert torch.allclose(method.features[index], 0.6 * features[index] + 0.4 * unit, atol=1e-4)
        p = now.logits[slot].softmax(dim=0)
        assert torch.allclose(method.probabilities[index], 0.6 * said[index] + 0.4 * p, atol=1e-4)
    untouched = [i for i in range(IMAGES) if i not in batch.index.tolist()]
    assert torch.equal(method.features[untouched], features[untouched])


def test_declared_shares_take_the_place_of_even_ones() -> None:
    """KL(m ‖ π) by hand: m = (0.75, 0.25), π = (0.9, 0.1)."""
    logits, rest = torch.tensor([[0.0, 0.0], [40.0, 0.0]]), torch.tensor([0.5, 0.5])
    by_hand = 0.75 * math.log(0.75 / 0.9) + 0.25 * math.log(0.25 / 0.1)
    assert float(unevenness(logits, rest, 1.0, torch.tensor([0.9, 0.1]))) == pytest.approx(by_hand, abs=1e-5)
    even = float(unevenness(logits, rest, 0.5, torch.tensor([0.5, 0.5])))
    assert even == pytest.approx(float(unevenness(logits, rest, 0.5)) + math.log(2) / 0.5, abs=1e-5)


def test_renderings_that_tell_more_count_more() -> None:
    """Information ln 2 and 0: of one that tells both images apart, and of one that always says the same."""
    sure, same = torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([[0.9, 0.1], [0.9, 0.1]])
    assert told(torch.stack([sure, same])).tolist() == pytest.approx([1, 0], abs=1e-6)
    vague = torch.tensor([[0.75, 0.25], [0.25, 0.75]])
    information = math.log(2) - slow_entropy([0.75, 0.25])
    by_hand = information**2 / (information**2 + math.log(2) ** 2)
    assert told(torch.stack([vague, sure])).tolist() == pytest.approx([by_hand, 1 - by_hand], abs=1e-5)
    assert told(torch.stack([same, same, same, same])).tolist() == [0.25] * 4  # nothing to choose by


def test_trust_by_hand() -> None:
    """Nine of ten labels stay: λ = 0.8. From half of them on, nothing that is seen counts."""
    first = torch.tensor([0, 0, 0, 0, 0, 0, 1, 1, 1, 2])
    assert float(trust(first, torch.tensor([0, 0, 0, 0, 0, 0, 1, 1, 1, 1]))) == pytest.approx(0.8)
    assert float(trust(first, (first + torch.tensor([1] * 5 + [0] * 5)) % 3)) == 0.0
    assert float(trust(first, 2 - first)) == 0.0


def test_present_shares_by_hand() -> None:
    """Of 40 labels 30, 9 and 1: the third class has 0.075 of an even share, 0.3 of what counts as present."""
    labels = torch.tensor([0] * 30 + [1] * 9 + [2])
    rare = 0.2 + 0.8 * 0.3
    assert present_shares(labels, torch.tensor(0.8), 3).tolist() == pytest.approx(
        [1 / (2 + rare), 1 / (2 + rare), rare / (2 + rare)]
    )
    assert present_shares(labels, torch.tensor(0.0), 4).tolist() == [0.25] * 4
    assert present_shares(labels[:39], torch.tensor(1.0), 3).tolist() == pytest.approx([0.5, 0.5, LEAST_SHARE])


def test_neighbours_mean_in_loops() -> None:
    torch.manual_seed(0)
    features, p = torch.randn(20, 6), torch.randn(20, 3).softmax(dim=1)
    rows = features.tolist()
    for i, mean in enumerate(neighbours_mean(features, p, 4)):
        near = sorted((j for j in range(20) if j != i), key=lambda j: -slow_cosine(rows[i], rows[j]))[:4]
        assert mean.tolist() == pytest.approx([sum(float(p[j, c]) for j in near) / 4 for c in range(3)], abs=1e-5)


def test_agreed_labels_by_hand() -> None:
    """All lean to class 0; divided by the mean 0.7, 0.3, the one that leans least is of class 1."""
    said = torch.tensor([[0.8, 0.2], [0.71, 0.29], [0.59, 0.41]])
    assert agreed_labels(said, said, None).tolist() == [0, 0, 0]
    assert agreed_labels(said, said, torch.tensor([0.5, 0.5])).tolist() == [0, 0, 1]
    assert agreed_labels(said, said, torch.tensor([0.9, 0.1])).tolist() == [0, 0, 0]
    near = torch.tensor([[0.0, 1.0]] * 3)  # neighbours have as much of a say
    assert agreed_labels(said, near, None).tolist() == [1, 1, 1]


def test_expected_shares_are_declared_or_seen_or_even(model: Model) -> None:
    passes = FixedPasses(IMAGES)
    alone = plus(model, renderings=False)
    assert alone.expected is None
    alone.begin(passes)
    assert alone.trusted == 0 and alone.expected is not None
    assert alone.expected.tolist() == pytest.approx([1 / 3] * 3)
    declared = DePTPlus(model, tiny_config(DePTPlus), shares=(0.6, 0.4, 0.0))
    declared.begin(passes)
    assert declared.expected is not None
    assert declared.expected.tolist() == pytest.approx([0.6, 0.4, LEAST_SHARE])


def test_of_very_many_images_one_rendering_is_read(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    passes = FixedPasses(IMAGES)
    assert plus(model)._rendered(passes).shape[:2] == (len(RENDERINGS), IMAGES)
    monkeypatch.setattr(dept_plus, "MOST_RENDERED", IMAGES - 1)
    method = plus(model)
    assert method._rendered(passes).shape[:2] == (1, IMAGES)
    method.begin(passes)
    assert method.trusted == 0  # one opinion says nothing about trust


def test_a_single_image_is_labelled_as_the_source_model_sees_it(model: Model) -> None:
    passes, method = FixedPasses(1), plus(model, recentre=False, renderings=False)
    expected = model(passes.batches[0].views[0]).argmax(dim=1)
    method.begin(passes)
    assert method.labels is not None and torch.equal(method.labels, expected)
    assert all(math.isfinite(value) for value in method.step(random_batch("ws", 1)).values())


def test_nothing_pulls_to_even_shares_in_the_preset_for_them(model: Model) -> None:
    method = plus(model, **DePTPlus.presets["unbalanced"])
    bias = model.head.bias.detach().clone()
    method.begin(FixedPasses(IMAGES))
    assert torch.equal(model.head.bias, bias)
    assert method.features is not None and method.probabilities is not None and method.labels is not None
    near = neighbours_mean(method.features, method.probabilities, 10)
    assert torch.equal(method.labels, agreed_labels(method.probabilities, near, None))
    assert "class_diversity" not in method.loss(random_batch("ws", 6))


def test_labels_are_made_anew_after_an_epoch(model: Model) -> None:
    method = plus(model)
    method.begin(FixedPasses(IMAGES))
    first = method.labels
    assert method.probabilities is not None
    method.probabilities = method.probabilities.roll(1, dims=1)
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
