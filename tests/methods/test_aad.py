"""AaD against its formulas, written out pair by pair. Its memory is tested with NOTELA's."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from dept.data.loader import Batch
from dept.methods.aad import AaD, attraction, dispersion
from dept.methods.base import Progress
from dept.models.model import Model
from support import FixedPasses, random_batch, spread_predictions, tiny_config, tiny_model

IMAGES = 30


@pytest.fixture
def model() -> Model:
    return spread_predictions(tiny_model())


def aad(model: Model, **changes: Any) -> AaD:
    return AaD(model, tiny_config(AaD, **changes))  # type: ignore[arg-type]


def slow_loss(features: Tensor, logits: Tensor, rows: list[int], k: int) -> tuple[float, float]:
    """Attraction and dispersion of a batch, pair by pair; features (n, D) and logits (n, C) are the memory's."""
    units = [row / row.norm() for row in features.double()]
    p = logits.double().softmax(dim=1)
    attract = disperse = 0.0
    for i in rows:
        near = sorted((j for j in range(len(units)) if j != i), key=lambda j: -float(units[i] @ units[j]))[:k]
        attract += sum(float(p[i] @ p[j]) for j in near)
        disperse += sum(float(p[i] @ p[m]) for m in rows if m != i)
    return attract / len(rows), disperse / len(rows)


def test_loss_is_that_of_the_slow_formula(model: Model) -> None:
    """Memory: test views of all images, the batch's own slots overwritten before neighbours are looked for."""
    passes, batch = FixedPasses(IMAGES), random_batch("w", 5, seed=3)
    batch = Batch(batch.views, torch.tensor([7, 2, 28, 11, 3]))
    views = torch.cat([part.views[0] for part in passes()])
    views[batch.index] = batch.views[0]
    with torch.no_grad():
        memory = model.read(views)
    attract, disperse = slow_loss(memory.features, memory.logits, batch.index.tolist(), 4)
    method = aad(model, neighbours=4, w_disperse=0.5, decay=2.0)
    method.begin(passes)
    method.at(Progress(3, 10, 0))
    terms = method.step(batch)
    assert terms["attract"] == pytest.approx(-attract, abs=1e-5)
    assert terms["disperse"] == pytest.approx(0.5 * (1 + 3) ** -2.0 * disperse, abs=1e-5)


def test_gradients_of_both_terms() -> None:
    """The dispersion pulls at both sides of a pair: twice the other's prediction; neighbours stay as they are."""
    p = torch.tensor([[0.7, 0.3], [0.2, 0.8]], requires_grad=True)
    (got,) = torch.autograd.grad(dispersion(p), p)
    torch.testing.assert_close(got, torch.tensor([[0.2, 0.8], [0.7, 0.3]]))
    near = torch.tensor([[[1.0, 0.0], [0.5, 0.5]], [[0.0, 1.0], [0.0, 1.0]]])
    (got,) = torch.autograd.grad(attraction(p, near), p)
    torch.testing.assert_close(got, torch.tensor([[0.75, 0.25], [0.0, 1.0]]))


def test_the_push_fades_over_a_run_and_stays_in_a_stream(model: Model) -> None:
    method = aad(model)
    weights = []
    for progress in (Progress(0, 10, 0), Progress(5, 10, 0), Progress(10, 10, 0), Progress(500, 0, 0)):
        method.at(progress)
        weights.append(method.dispersion_weight())
    assert weights == pytest.approx([1.0, 6.0**-5, 11.0**-5, 1.0])


def test_one_image_has_nobody_to_be_pushed_from(model: Model) -> None:
    method = aad(model)
    method.begin(FixedPasses(IMAGES))
    method.at(Progress(0, 4, 0))
    assert method.step(random_batch("w", 1))["disperse"] == pytest.approx(0.0, abs=1e-6)


def test_a_first_image_of_a_stream_has_no_neighbours(model: Model) -> None:
    method = aad(model)
    method.at(Progress(0, 0, 0))
    batch = random_batch("w", 1)
    _, terms = method.observe(batch.views[0], batch)
    assert terms["attract"] == 0.0
