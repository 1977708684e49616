"""T3A against its formulas, written out one support at a time."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from dept.methods.t3a import T3A, most_confident
from dept.models.model import Model
from support import moved, random_batch, spread_predictions, state_of, tiny_model


@pytest.fixture
def model() -> Model:
    return spread_predictions(tiny_model(stages=0, prompts=0))


def slow_entropy(logits: Tensor) -> float:
    p = logits.double().softmax(dim=0)
    return float(-(p * p.log()).sum())


def slow_logits(model: Model, batches: list[Tensor], per_class: int) -> Tensor:
    """Logits of the last batch after all have joined."""
    weight, bias = model.head.weight.detach().double(), model.head.bias.detach().double()
    supports: list[list[tuple[float, Tensor]]] = [[(slow_entropy(weight @ row + bias), row)] for row in weight]
    with torch.no_grad():
        features = [model.read(images).features.double() for images in batches]
    for group in features:
        for z in group:
            logits = weight @ z + bias
            supports[int(logits.argmax())].append((slow_entropy(logits), z))
        if per_class:
            supports = [sorted(own, key=lambda pair: pair[0])[:per_class] for own in supports]
    templates = []
    for own in supports:
        total = sum((z / z.norm() for _, z in own), torch.zeros_like(weight[0]))
        templates.append(total / total.norm())
    return features[-1] @ torch.stack(templates).T


@pytest.mark.parametrize("per_class", [0, 1, 2, 20])
def test_logits_are_those_of_the_slow_formula(model: Model, per_class: int) -> None:
    batches = [random_batch("t", 6, seed=seed) for seed in range(3)]
    expected = slow_logits(model, [batch.views[0] for batch in batches], per_class)
    method = T3A(model, T3A.Config(per_class=per_class))
    for batch in batches:
        logits, _ = method.observe(batch.views[0], batch)
    torch.testing.assert_close(logits.double(), expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(method.predict(batches[-1].views[0]), logits)


def test_the_lowest_entropies_of_every_class_are_kept() -> None:
    labels, entropies = torch.tensor([0, 1, 0, 1, 0, 2, 0]), torch.tensor([0.3, 0.9, 0.1, 0.2, 0.1, 5.0, 0.2])
    assert most_confident(labels, entropies, 2).tolist() == [1, 2, 3, 4, 5]
    assert most_confident(labels, entropies, 1).tolist() == [2, 3, 5]  # the older of two equals


def test_only_the_head_moves_by_one_forward(model: Model) -> None:
    before, calls = state_of(model), []
    model.backbone.patch_embed.register_forward_hook(lambda *args: calls.append(1))
    method, batch = T3A(model), random_batch("t", 16)
    method.observe(batch.views[0], batch)
    assert moved(before, model) == {"head.weight", "head.bias"} and calls == [1]
    assert set(method.adapter().tensors) == {"head.weight", "head.bias"} and not model.head.bias.any()
    method.reset()
    assert moved(before, model) == set() and len(method.labels) == 3


def test_labels_come_from_the_source_head(model: Model) -> None:
    """However the templates turn, a feature supports the class that the source model predicts."""
    batch = random_batch("t", 8, seed=4)
    expected = model(batch.views[0]).argmax(dim=1).tolist()
    method = T3A(model, T3A.Config(per_class=0))
    method.step(random_batch("t", 8, seed=1))
    method.step(batch)
    assert method.labels[-8:].tolist() == expected
