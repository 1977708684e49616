"""ROID against its formulas, written out sample by sample."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from dept.data.loader import Batch
from dept.methods.roid import ROID, batch_prior, likelihood_ratio, sample_weights
from dept.models.model import Model
from support import random_batch, spread_predictions, tiny_config, tiny_model


@pytest.fixture
def model() -> Model:
    return spread_predictions(tiny_model(stages=0, prompts=0))


def roid(model: Model, **changes: Any) -> ROID:
    return ROID(model, tiny_config(ROID, **changes))  # type: ignore[arg-type]


def test_likelihood_ratio_by_hand() -> None:
    rows = torch.tensor([[0.9, *[0.1 / 9] * 9], [0.5, 0.5, *[0.0] * 8], [1.0, *[0.0] * 9]])
    values = likelihood_ratio(rows.log())
    assert values.tolist() == pytest.approx([-1.5287, 0.0, -4.5492], abs=1e-4)
    assert values[1] == pytest.approx(-1e-5, rel=0.05)


def test_confident_samples_still_have_a_gradient() -> None:
    logits = torch.tensor([[4.0, 0.0]], requires_grad=True)
    (steep,) = torch.autograd.grad(likelihood_ratio(logits).sum(), logits)
    (flat,) = torch.autograd.grad(-(logits.softmax(1) * logits.log_softmax(1)).sum(), logits)
    assert float(steep.abs().max()) > 0.9 and float(flat.abs().max()) < 0.1


@pytest.mark.parametrize(("classes", "ratio"), [(1000, 52.5), (12, 9.76)])
def test_prior_by_hand(classes: int, ratio: float) -> None:
    uniform = torch.full((64, classes), 1 / classes)
    torch.testing.assert_close(batch_prior(uniform), uniform[0])
    one_sided = torch.full((64, classes), 0.1 / (classes - 1))
    one_sided[:, 3] = 0.9
    prior = batch_prior(one_sided)
    assert float(prior.max() / prior.min()) == pytest.approx(ratio, rel=1e-2)
    assert float(prior.sum()) == pytest.approx(1.0, abs=1e-5)


def test_corrections(model: Model) -> None:
    logits = torch.tensor([[2.0, -1.0, 0.0], [1.0, 0.0, -3.0]])
    prior = batch_prior(logits.softmax(dim=1))
    torch.testing.assert_close(roid(model, prior="none").corrected(logits), logits)
    torch.testing.assert_close(roid(model, prior="released").corrected(logits), logits * prior)
    bayes = logits.softmax(dim=1) * prior
    found = roid(model).corrected(logits).softmax(dim=1)
    torch.testing.assert_close(found, bayes / bayes.sum(dim=1, keepdim=True))
    even = torch.zeros(4, 3)
    torch.testing.assert_close(roid(model).corrected(even), even)  # nothing to correct


def slow_weights(logits: Tensor, mean: Tensor, temperature: float) -> list[float]:
    p = logits.double().softmax(dim=1)
    diversity = [1 - float(row @ mean.double() / row.norm() / mean.double().norm()) for row in p]
    certainty = [float((row * row.log()).sum()) for row in p]
    scaled = [
        [(value - min(values)) / (max(values) - min(values)) for value in values] for values in (diversity, certainty)
    ]
    average = sum(scaled[0]) / len(scaled[0])
    return [math.exp(u * c / temperature) if u >= average else 0.0 for u, c in zip(*scaled, strict=True)]


def test_weights_equal_the_slow_formula() -> None:
    logits = torch.randn(9, 4, generator=torch.Generator().manual_seed(2)) * 3
    mean = torch.tensor([0.7, 0.1, 0.1, 0.1])
    expected = slow_weights(logits, mean, 0.4)
    assert 0 < expected.count(0.0) < 9
    torch.testing.assert_close(sample_weights(logits, mean, 0.4), torch.tensor(expected), rtol=1e-4, atol=1e-5)
    assert sample_weights(logits[:1], mean, 0.4).tolist() == [1.0]
    assert sample_weights(logits[:1].expand(3, -1), mean, 0.4).tolist() == [1.0] * 3


def test_a_step_equals_the_formula(model: Model) -> None:
    """Loss over rows one by one, plain descent, then one percent of the way back to the source."""
    method = roid(model, momentum=0.0, nesterov=False, lr=0.1, source_share=0.01, batch=5)
    clean, strong = random_batch("ts", 8).views
    logits = model(clean)
    even = torch.full((3,), 1 / 3)
    weights = slow_weights(logits.detach(), even, method.config.temperature)
    total = torch.zeros(())
    for row, weight in enumerate(weights):
        if weight:
            p = logits[row].softmax(dim=0).clamp(max=0.99)
            q = model(strong[row : row + 1]).softmax(dim=1)[0]
            ratio = -(p * (p / (1 - p) + 1e-5).log()).sum()
            clear = logits[row].softmax(dim=0)
            agreement = -(clear * q.log()).sum() / 2 - (q * clear.log()).sum() / 2
            total = total + weight * (ratio + agreement) / 5
    names = method.trained_names
    source = {name: model.get_parameter(name).detach().clone() for name in names}
    gradients = torch.autograd.grad(total, [model.get_parameter(name) for name in names])
    terms = method.step(Batch((clean, strong), torch.arange(8)))
    assert terms["loss"] == pytest.approx(float(total.detach()), rel=1e-4)
    for name, gradient in zip(names, gradients, strict=True):
        expected = 0.99 * (source[name] - 0.1 * gradient) + 0.01 * source[name]
        torch.testing.assert_close(model.get_parameter(name).detach(), expected, rtol=1e-4, atol=1e-5)
    expected_mean = 0.9 * even + 0.1 * logits.detach().softmax(dim=1).mean(dim=0)
    torch.testing.assert_close(method.mean_prediction, expected_mean)


def test_only_kept_rows_are_seen_in_the_strong_view(model: Model) -> None:
    seen: list[int] = []
    model.backbone.patch_embed.register_forward_pre_hook(lambda module, args: seen.append(len(args[0])))
    method, batch = roid(model), random_batch("ts", 8)
    method.observe(batch.views[0], batch)
    assert len(seen) == 2 and seen[0] == 8 and 0 < seen[1] < 8  # the prediction is the step's own forward


def test_a_stream_is_corrected_and_an_adapter_is_not(model: Model) -> None:
    method, batch = roid(model, lr=0.0), random_batch("ts", 8)
    logits, _ = method.observe(batch.views[0], batch)
    plain = method.predict(batch.views[0])
    torch.testing.assert_close(plain, model(batch.views[0]).detach())
    torch.testing.assert_close(logits, method.corrected(plain))
    assert not torch.allclose(logits, plain, atol=1e-2)
