"""DePT+ against its formulas, written out image by image."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from dept.data.loader import Batch
from dept.methods.base import Progress
from dept.methods.dept_plus import DePTPlus, evenness, variety
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


def test_loss_is_that_of_the_slow_formula(model: Model) -> None:
    """Every step of it in loops: re-centred head, memory, neighbours, mean prediction completed by the memory's."""
    passes, batch = FixedPasses(IMAGES), random_batch("w", 5, seed=3)
    batch = Batch(batch.views, torch.tensor([7, 2, 28, 11, 3]))
    views = torch.cat([part.views[0] for part in passes()])
    with torch.no_grad():
        start = model.read(views).features
        views[batch.index] = batch.views[0]
        features = model.read(views).features
    head = model.head
    bias = [float(b - w @ start.mean(dim=0)) for w, b in zip(head.weight.data, head.bias.data, strict=True)]
    logits = [[float(w @ h) + b for w, b in zip(head.weight.data, bias, strict=True)] for h in features]
    p = [[math.exp(z) / sum(map(math.exp, row)) for z in row] for row in logits]
    units = [h / h.norm() for h in features]
    rows, k, share = batch.index.tolist(), 4, 5 / 12  # three classes, four images of each are enough
    entropy = label = 0.0
    for i in rows:
        near = sorted((j for j in range(IMAGES) if j != i), key=lambda j: -float(units[i] @ units[j]))[:k]
        q = [sum(p[j][c] for j in near) / k for c in range(3)]
        entropy += slow_entropy(p[i]) / 5
        label -= sum(q[c] * math.log(p[i][c]) for c in range(3)) / 5
    mean = [sum(p[i][c] for i in rows) / 5 * share + (1 - share) * sum(r[c] for r in p) / IMAGES for c in range(3)]
    method = plus(model, neighbours=k, w_label=0.5, w_class=2.0)
    method.begin(passes)
    method.at(Progress(0, 10, 0))
    terms = method.step(batch)
    assert terms["entropy"] == pytest.approx(entropy, abs=1e-4)
    assert terms["label"] == pytest.approx(0.5 * label, abs=1e-4)
    assert terms["class_diversity"] == pytest.approx(-2 * slow_entropy(mean) / share, abs=1e-4)


def test_only_prompts_and_bias_are_in_the_adapter_and_the_bias_stays_where_the_start_put_it(model: Model) -> None:
    method = plus(model)
    method.begin(FixedPasses(IMAGES))
    started = model.head.bias.detach().clone()
    method.at(Progress(0, 10, 0))
    method.step(random_batch("w", 4))
    assert sorted(method.adapter().tensors) == ["head.bias", "prompts"]
    assert torch.equal(model.head.bias, started) and not torch.equal(started, method.source_bias)


def test_the_pull_on_a_batch_does_not_fade_with_its_share() -> None:
    """Gradient of the evenness with a share s of 1/10 is about that with 1, where the rest looks like the batch."""
    logits = torch.randn(6, 4, generator=torch.Generator().manual_seed(0)).double().requires_grad_()
    rest = logits.detach().softmax(dim=-1).mean(dim=0)
    (whole,) = torch.autograd.grad(evenness(logits, rest, 1.0), logits)
    (part,) = torch.autograd.grad(evenness(logits, rest, 0.1), logits)
    assert torch.allclose(whole, part, atol=1e-6)


def test_hand_values_of_variety() -> None:
    assert variety(torch.tensor([5.0, 0.0, 0.0])) == pytest.approx(0, abs=1e-6)
    assert variety(torch.tensor([5.0, 5.0, 5.0])) == pytest.approx(1)
    assert variety(torch.tensor([5.0, 5.0, 0.0])) == pytest.approx(0.5)  # two of three classes
    assert variety(torch.full((1000,), 0.1)) == 1


def test_a_stream_of_many_classes_is_recentred_like_neo(model: Model) -> None:
    """By as much of NEO's shift as there is variety in what was predicted."""
    twin, batch = spread_predictions(tiny_model()), random_batch("t", 32)
    method = plus(model, **DePTPlus.presets["online"], lr=0.0)
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
