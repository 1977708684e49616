"""In one process nothing happens. What several processes do is tested in tests/runs/test_distributed.py."""

from __future__ import annotations

import pytest
import torch

from dept.core import collective
from dept.core.gradient_mean import GradientMean, flattened, like, means, packed
from dept.core.whole_batch import whole_batch


def test_one_process_gets_back_what_it_gave() -> None:
    rows, items, mean = torch.randn(5, 2), [1, 2, 3], torch.tensor(0.5, requires_grad=True)
    assert (collective.size(), collective.rank()) == (1, 0)
    assert collective.own_rows(rows) is rows and collective.all_rows(rows, 5) is rows
    assert collective.own_rows(items) is items and collective.all_items(items, 3) is items
    assert collective.mean_over_rows(mean, 5) is mean and collective.sum_over_processes(mean) is mean
    assert collective.everyones("mine") == ["mine"]
    assert means([rows])[0] is rows


def test_the_first_process_does_its_work_and_its_errors_are_raised() -> None:
    seen: list[int] = []
    collective.only_first(seen.append)(1)
    assert seen == [1] and collective.by_first(len)(seen) == 1
    with pytest.raises(ZeroDivisionError):
        collective.from_first(lambda: 1 // 0)


def test_a_lost_process_is_a_sentence() -> None:
    said = "[pair.cc:547] Read error [10.0.0.2]:77: Connection reset by peer. This is typically caused by … GLHF!\nmore"
    wanted = r"answers \(Read error \[10.0.0.2\]:77: Connection reset by peer\).$"
    with pytest.raises(ConnectionError, match=wanted), collective.answered():
        raise RuntimeError(said)


def test_gradients_of_one_process_stay_where_they_are() -> None:
    weight = torch.ones(3, requires_grad=True)
    shared = GradientMean([weight])
    weight.sum().backward()
    gradient = weight.grad
    shared()
    assert weight.grad is gradient and shared.buckets == []


def test_a_network_in_one_process_is_left_alone() -> None:
    layer = torch.nn.BatchNorm1d(2).train()
    with whole_batch(layer, 4) as mode:
        assert mode is None


def test_buckets() -> None:
    tensors = [torch.zeros(size) for size in (3, 2, 10, 1, 1)]
    assert [[len(t) for t in bucket] for bucket in packed(tensors, most=5 * 4)] == [[3, 2], [10], [1, 1]]
    shapes = [torch.randn(2, 3), torch.randn(4)]
    assert all(torch.equal(a, b) for a, b in zip(like(flattened(shapes), shapes), shapes, strict=True))
