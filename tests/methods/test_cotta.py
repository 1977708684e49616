"""CoTTA against its formulas: target, loss, teacher, and the weights that return to the source."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from dept.core.adapter import Adapter
from dept.data.loader import Batch
from dept.methods.cotta import CoTTA, restore_some
from dept.models.model import Model
from support import random_batch, scramble, spread_predictions, state_of, tiny_config, tiny_model


@pytest.fixture
def model() -> Model:
    return spread_predictions(tiny_model())


def cotta(model: Model, **changes: Any) -> CoTTA:
    return CoTTA(model, tiny_config(CoTTA, **changes))  # type: ignore[arg-type]


def copied(model: Model) -> Model:
    other = tiny_model()
    other.load_state_dict(model.state_dict())
    return other


def test_two_steps_equal_the_formulas() -> None:
    """Student by plain descent on ½ CE + ½ CE with the teacher, teacher by its average; nothing returns."""
    model = tiny_model()
    scramble(model, scale=0.1)
    student, teacher = copied(model), copied(model)
    method = cotta(model, lr=0.1, momentum=0.0, ema=0.8, restore=0.0, augmentations=0)
    for seed in range(2):
        batch = random_batch("t", 4, seed=seed)
        with torch.no_grad():
            p = teacher(batch.views[0]).softmax(dim=1)
        q = student(batch.views[0]).softmax(dim=1)
        loss = (-(p * q.log()).sum(dim=1) / 2 - (q * p.log()).sum(dim=1) / 2).mean()
        names = method.trained_names
        tensors = [student.get_parameter(name) for name in names]
        gradients = torch.autograd.grad(loss, tensors)
        with torch.no_grad():
            for tensor, gradient in zip(tensors, gradients, strict=True):
                tensor -= 0.1 * gradient
            for name, tensor in zip(names, tensors, strict=True):
                mine = teacher.get_parameter(name)
                mine.copy_(0.8 * mine + 0.2 * tensor)
        assert method.step(batch)["loss"] == pytest.approx(float(loss.detach()), rel=1e-4)
    assert set(names) == {name for name, _ in model.named_parameters()}
    for name in names:
        torch.testing.assert_close(model.get_parameter(name), teacher.get_parameter(name), rtol=1e-4, atol=1e-5)
        mine = method.student.tensors[name]
        torch.testing.assert_close(mine, student.get_parameter(name).detach(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("unsure", [False, True])
def test_views_count_only_if_the_source_model_is_unsure(model: Model, unsure: bool) -> None:
    batch = random_batch("tsss", 4)
    with torch.no_grad():
        clean, *strong = (model(view) for view in batch.views)
    confidence = float(clean.softmax(dim=1).max(dim=1).values.mean())
    method = cotta(model, augmentations=3, confidence=confidence + (1e-3 if unsure else -1e-3))
    assert method.views == "tsss"
    logits, _ = method.observe(batch.views[0], batch)
    torch.testing.assert_close(logits, sum(strong) / 3 if unsure else clean)


def test_it_is_the_source_model_that_is_asked(model: Model) -> None:
    """Not the teacher: a source that is unsure stays so, however sure the adapted model has become."""
    batch = random_batch("ts", 4)
    confidence = float(model(batch.views[0]).detach().softmax(dim=1).max(dim=1).values.mean())
    method = cotta(model, augmentations=1, confidence=confidence + 1e-3)
    with torch.no_grad():
        model.head.weight.mul_(100.0)
    method.teacher = Adapter.of(model, method.trained_names)
    found = method.target(batch.views[0], batch.views[1:])
    torch.testing.assert_close(found, model(batch.views[1]).detach())


def test_some_weights_return_to_the_source() -> None:
    student, source = Adapter({"a": torch.ones(200, 500)}), Adapter({"a": torch.zeros(200, 500)})
    restore_some(student, source, 0.01, torch.Generator().manual_seed(0))
    assert set(student.tensors["a"].unique().tolist()) == {0.0, 1.0}
    assert float(1 - student.tensors["a"].mean()) == pytest.approx(0.01, rel=0.15)
    restore_some(student, source, 1.0, torch.Generator().manual_seed(0))
    assert not student.tensors["a"].any()


def test_the_student_returns_after_the_teacher_has_followed(model: Model) -> None:
    source = state_of(model)
    method = cotta(model, lr=0.1, restore=1.0, ema=0.5)
    method.step(random_batch(method.views, 4))
    for name in method.trained_names:
        assert torch.equal(method.student.tensors[name], source[name])
    assert not torch.equal(model.head.weight, source["head.weight"])


def test_forwards(model: Model) -> None:
    """Source and teacher without a graph, then the student; the prediction is the teacher's."""
    calls: list[bool] = []
    model.backbone.patch_embed.register_forward_pre_hook(lambda *args: calls.append(torch.is_grad_enabled()))
    method = cotta(model)
    batch = random_batch(method.views, 4)
    method.observe(batch.views[0], Batch(batch.views, batch.index))
    assert calls == [False, False, True]
