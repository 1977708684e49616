"""NOTELA against its formulas, written out one image at a time; and the memory that it shares with AaD."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from dept.core.select import select
from dept.data.loader import Batch
from dept.methods.base import Progress
from dept.methods.notela import NOTELA, mean_over, smoothed_labels
from dept.models.model import Model
from support import FixedPasses, moved, random_batch, spread_predictions, state_of, tiny_config, tiny_model, tiny_resnet

IMAGES = 30


@pytest.fixture
def model() -> Model:
    return spread_predictions(tiny_model())


def notela(model: Model, **changes: Any) -> NOTELA:
    method = NOTELA(model, tiny_config(NOTELA, **changes))  # type: ignore[arg-type]
    method.at(Progress(0, 4, 0))
    return method


def test_labels_by_hand() -> None:
    """p = (2/3, 1/3) and neighbours (0, 1): ŷ ∝ (2, e^λ); with α = ½ the square of that."""
    logits, around = torch.tensor([[2.0, 1.0]]).log() + 7.0, torch.tensor([[0.0, 1.0]])
    e2 = torch.tensor(2.0).exp()
    expected = torch.stack([torch.tensor(2.0), e2]) / (2 + e2)
    torch.testing.assert_close(smoothed_labels(logits, around, weight=2.0, softness=1.0)[0], expected)
    squared = expected.square() / expected.square().sum()
    torch.testing.assert_close(smoothed_labels(logits, around, weight=2.0, softness=0.5)[0], squared)


def test_mean_over_the_chosen_ones() -> None:
    probabilities = torch.tensor([[[1.0, 0.0], [0.0, 1.0], [0.5, 0.5]]]).expand(3, -1, -1)
    chosen = torch.tensor([[True, True, False], [False, False, True], [False, False, False]])
    assert mean_over(probabilities, chosen).tolist() == [[0.5, 0.5], [0.5, 0.5], [0.0, 0.0]]


def slow_labels(features: Tensor, logits: Tensor, rows: list[int], k: int, weight: float, alpha: float) -> Tensor:
    """ŷ of some rows, image by image; features (n, D) and logits (n, C) are those of the memory."""
    units = [row / row.norm() for row in features.double()]
    p = logits.double().softmax(dim=1)

    def nearest(i: int) -> list[int]:
        return sorted((j for j in range(len(units)) if j != i), key=lambda j: -float(units[i] @ units[j]))[:k]

    labels = []
    for i in rows:
        mutual = [j for j in nearest(i) if i in nearest(j)]
        around = torch.stack([p[j] for j in mutual]).mean(dim=0) if mutual else torch.zeros_like(p[i])
        label = p[i] ** (1 / alpha) * (weight / alpha * around).exp()
        labels.append(label / label.sum())
    return torch.stack(labels)


def test_loss_is_that_of_the_slow_formula(model: Model) -> None:
    """Memory: test views of all images, the batch's own slots overwritten by its weak views."""
    passes = FixedPasses(IMAGES)
    batch = random_batch("ws", 4, seed=3)
    batch = Batch(batch.views, torch.tensor([7, 2, 28, 11]))
    views = torch.cat([part.views[0] for part in passes()])
    views[batch.index] = batch.views[0]
    with torch.no_grad():
        memory, student = model.read(views), model(batch.views[1])
    labels = slow_labels(memory.features, memory.logits, batch.index.tolist(), 4, 2.5, 0.7)
    expected = -(labels * student.double().log_softmax(dim=1)).sum(dim=1).mean()
    method = notela(model, neighbours=4, w_neighbours=2.5, softness=0.7)
    method.begin(passes)
    assert method.step(batch)["loss"] == pytest.approx(float(expected), abs=1e-4)


def test_neighbours_matter(model: Model) -> None:
    batch = random_batch("ws", 4)
    method, alone = notela(model), notela(model, w_neighbours=0.0)
    for one in (method, alone):
        one.begin(FixedPasses(IMAGES))
    own = model(batch.views[0]).detach().softmax(dim=1)
    torch.testing.assert_close(alone.pseudo_labels(batch.views[0], batch), own)
    assert not torch.allclose(method.pseudo_labels(batch.views[0], batch), own, atol=1e-3)


def test_an_image_is_remembered_in_its_own_slot(model: Model) -> None:
    method = notela(model, lr=0.0)
    method.begin(FixedPasses(IMAGES))
    assert method.bank is not None
    before = method.bank.probabilities.clone()
    batch = random_batch("ws", 3, seed=5)
    method.step(Batch(batch.views, torch.tensor([9, 0, 21])))
    changed = (method.bank.probabilities != before).any(dim=1).nonzero().squeeze(1)
    assert changed.tolist() == [0, 9, 21]
    torch.testing.assert_close(method.bank.probabilities[9], model(batch.views[0]).detach().softmax(dim=1)[0])


def test_a_stream_remembers_the_latest_images(model: Model) -> None:
    method = notela(model, bank_size=6, predict="after")
    for seed in range(3):
        batch = random_batch("ws", 4, seed=seed)
        method.observe(batch.views[0], Batch(batch.views, 1000 * seed + torch.arange(4)))
    assert method.bank is not None and not method.by_index
    assert (len(method.bank), method.bank.pointer) == (6, 0)
    large = random_batch("ws", 9)
    method.observe(large.views[0], large)  # more than the ring holds
    assert len(method.bank) == 9


def test_a_stream_does_not_read_the_memory_of_a_pass(model: Model) -> None:
    method = notela(model)
    method.begin(FixedPasses(IMAGES))
    batch = random_batch("ws", 4)
    method.observe(batch.views[0], Batch(batch.views, torch.arange(1000, 1004)))
    assert method.bank is not None and len(method.bank) == 4


@pytest.mark.parametrize(
    ("tune", "moving"),
    [
        ("prompts", {"prompts", "head"}),
        ("norm", {"norm", "head"}),
        ("encoder", {"prompts", "norm", "head", "backbone"}),
    ],
)
def test_what_moves(tune: str, moving: set[str], model: Model) -> None:
    method = notela(model, tune=tune)
    before = state_of(model)
    method.begin(FixedPasses(IMAGES))
    method.step(random_batch("ws"))
    changed = moved(before, model)
    assert changed <= set(method.trained_names)
    kinds = {"norm" if "norm" in name else name.split(".")[0] for name in changed}
    assert kinds == moving


def test_without_prompts_the_norm_layers_move() -> None:
    for plain in (tiny_model(stages=0, prompts=0), tiny_resnet()):
        groups = notela(plain).groups
        assert [group.lr for group in groups] == [5e-3, 2e-4]
        assert groups[0].names == ("head.weight", "head.bias")
        assert groups[1].names == tuple(select(plain, "norm")) != ()


def test_labels_carry_no_gradient(model: Model) -> None:
    method = notela(model)
    method.begin(FixedPasses(IMAGES))
    batch = random_batch("ws")
    assert not method.pseudo_labels(batch.views[0], batch).requires_grad
