"""RoTTA: its memory by hand, its loss against the formula, and who is teacher when."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from dept.data.loader import Batch
from dept.methods.rotta import BalancedMemory, Item, RoTTA, timeliness
from dept.models.model import Model
from support import random_batch, spread_predictions, tiny_config, tiny_model


@pytest.fixture
def model() -> Model:
    return spread_predictions(tiny_model(stages=0, prompts=0))


def rotta(model: Model, **changes: Any) -> RoTTA:
    return RoTTA(model, tiny_config(RoTTA, **changes))  # type: ignore[arg-type]


def item(label: int, uncertainty: float = 0.0) -> Item:
    return Item((torch.tensor(float(label)),), label, uncertainty)


def labels(memory: BalancedMemory) -> list[int]:
    return [kept.label for kept in memory.items]


def test_timeliness_by_hand() -> None:
    expected = [0.5, 0.3775, 0.2689, 0.1192]
    assert timeliness(torch.tensor([0.0, 0.5, 1.0, 2.0])).tolist() == pytest.approx(expected, abs=1e-4)


def test_a_class_may_have_its_share_only() -> None:
    memory = BalancedMemory(4, 2)
    for _ in range(5):
        memory.offer(item(0))
    assert labels(memory) == [0, 0]
    for _ in range(5):
        memory.offer(item(1))
    assert labels(memory) == [0, 0, 1, 1]


def test_the_oldest_and_least_certain_of_a_class_goes_first() -> None:
    memory = BalancedMemory(4, 2)
    memory.offer(item(0, 0.5))
    memory.offer(item(0, 0.1))
    memory.offer(item(0, 0.4))  # replaces 0.5, which is older and less certain
    assert [kept.uncertainty for kept in memory.items] == [0.1, 0.4]
    memory.offer(item(0, 0.6))  # worse than all, although they are older: ages tell little against entropy
    assert [kept.uncertainty for kept in memory.items] == [0.1, 0.4]
    assert [kept.age for kept in memory.items] == [3, 2]


def test_score_by_hand() -> None:
    memory = BalancedMemory(64, 10, w_age=2.0, w_entropy=3.0)
    aged = item(0, 0.5)._replace(age=32)
    assert memory.score(aged) == pytest.approx(2 / (1 + math.exp(-0.5)) + 3 * 0.5 / math.log(10))


def test_a_rare_class_takes_the_place_of_the_most_frequent_ones() -> None:
    """Room for 5 images of 2 classes: 2.5 each, so 3 of one class may be there before the other comes."""
    memory = BalancedMemory(5, 2)
    for label in (0, 0, 0, 1, 1):
        memory.offer(item(label))
    assert labels(memory) == [0, 0, 0, 1, 1]
    memory.offer(item(1))
    assert labels(memory) == [0, 0, 1, 1, 1]  # the oldest of class 0 went


def test_more_classes_than_places_keep_one_each() -> None:
    memory = BalancedMemory(3, 1000)
    for label in (0, 0, 1, 2, 2, 3):
        memory.offer(item(label, uncertainty=0.1 * label))
    assert sorted(labels(memory)) == [1, 2, 3]


def test_state_round_trip() -> None:
    memory, other = BalancedMemory(4, 2), BalancedMemory(4, 2)
    assert memory.state_dict() == {}
    for number in range(6):
        memory.offer(item(number % 2, 0.1 * number))
    other.load_state_dict(memory.state_dict(), torch.device("cpu"))
    assert other.items == memory.items
    other.load_state_dict({}, torch.device("cpu"))
    assert other.items == []


def test_loss_is_that_of_the_formula(model: Model) -> None:
    """Two batches of different teachers; the memory holds all 8 images, with ages 8 … 1."""
    method = rotta(model, memory_size=30, lr=0.1, ema=0.5)
    first, second = random_batch("ts", 4, seed=1), random_batch("ts", 4, seed=2)
    method.step(first)
    teacher = spread_predictions(tiny_model(stages=0, prompts=0))
    student = spread_predictions(tiny_model(stages=0, prompts=0))
    teacher.load_state_dict(model.state_dict())
    student.load_state_dict(model.state_dict())
    method.student.copy_to(student)
    total = 0.0
    views = [torch.cat(both) for both in zip(first.views, second.views, strict=True)]
    for number, (clean, strong) in enumerate(zip(*views, strict=True)):
        with torch.no_grad():
            p = teacher(clean[None]).double().softmax(dim=1)
            q = student(strong[None]).double().softmax(dim=1)
        weight = math.exp(-(8 - number) / 30) / (1 + math.exp(-(8 - number) / 30))
        total -= weight * float((p * q.log()).sum()) / 8
    assert method.step(second)["loss"] == pytest.approx(total, rel=1e-4)


def test_the_model_is_the_teacher_between_steps(model: Model) -> None:
    method = rotta(model, lr=0.01, ema=0.9)
    source = {name: model.get_parameter(name).detach().clone() for name in method.trained_names}
    method.step(random_batch("ts", 4))
    for name, start in source.items():
        moved = method.student.tensors[name]
        torch.testing.assert_close(model.get_parameter(name).detach(), 0.9 * start + 0.1 * moved)
        assert not torch.equal(moved, start)
    # Adam's first step is the learning rate, whatever the gradient.
    name = method.trained_names[0]
    assert float((method.student.tensors[name] - source[name]).abs().max()) == pytest.approx(0.01, rel=1e-2)


def test_a_batch_is_predicted_by_the_forward_that_fills_the_memory(model: Model) -> None:
    seen: list[int] = []
    method, batch = rotta(model, memory_size=6), random_batch("ts", 8)
    expected = model(batch.views[0]).detach()
    model.backbone.patch_embed.register_forward_pre_hook(lambda module, args: seen.append(len(args[0])))
    logits, _ = method.observe(batch.views[0], Batch(batch.views, batch.index))
    torch.testing.assert_close(logits, expected)
    kept = len(method.memory.items)
    assert seen == [8, kept, kept] and kept <= 6
