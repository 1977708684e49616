"""Batch norm: what its statistics follow."""

from __future__ import annotations

import torch
from torch import nn

from dept.core.batch_norm import batch_norms, training, untracked


def test_untracked_leaves_the_running_statistics() -> None:
    norm = nn.BatchNorm1d(2)
    with untracked([norm]):
        norm(torch.randn(8, 2) + 3)
    assert norm.running_mean is not None
    assert not norm.running_mean.any() and norm.momentum == 0.1
    norm(torch.randn(8, 2) + 3)
    assert norm.running_mean.all()


def test_training_is_undone_layer_by_layer() -> None:
    first, second = nn.BatchNorm1d(2).eval(), nn.BatchNorm1d(2)
    with training([first, second]):
        assert first.training and second.training
    assert not first.training and second.training


def test_only_layers_with_running_statistics_are_found() -> None:
    model = nn.Sequential(nn.BatchNorm1d(2), nn.LayerNorm(2), nn.BatchNorm1d(2, track_running_stats=False))
    assert list(batch_norms(model)) == ["0"]
