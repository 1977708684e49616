from __future__ import annotations

import pytest
import torch

from dept.methods.base import Batch, Progress
from dept.methods.tent import Tent
from dept.models import Model, create_model
from support import moved, random_batch, spread_predictions, state_of, tiny_config


def test_tunes_all_norms_and_nothing_else(source_model: Model) -> None:
    method = Tent(source_model, tiny_config(Tent, lr=0.1))
    before = state_of(source_model)
    method.at(Progress(0, 1, 0))
    method.step(random_batch("t"))
    changed = moved(before, source_model)
    assert len(changed) == 18 and all("norm" in name and name.startswith("backbone.") for name in changed)


def test_loss_is_the_mean_entropy_and_falls(source_model: Model) -> None:
    method = Tent(spread_predictions(source_model), tiny_config(Tent, lr=0.01))
    batch = random_batch("t", 6)
    with torch.no_grad():
        p = source_model(batch.views[0]).softmax(dim=1)
        slow = float(-(p * p.log()).sum(dim=1).mean())
    method.at(Progress(0, 20, 0))
    values = [method.step(batch)["entropy"] for _ in range(20)]
    assert values[0] == pytest.approx(slow, abs=1e-5) and values[-1] < 0.9 * values[0]


def test_observe_needs_one_forward(source_model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    method = Tent(source_model, tiny_config(Tent))
    method.at(Progress(0, 1, 0))
    test = torch.randn(3, 3, 32, 32)
    calls = []
    read = source_model.read
    monkeypatch.setattr(source_model, "read", lambda *a, **k: calls.append(1) or read(*a, **k))
    method.observe(test, Batch((test,), torch.arange(3)))
    assert len(calls) == 1


def test_offline_preset_is_the_papers_common_recipe(source_model: Model) -> None:
    config = Tent.preset("offline")
    assert (config.view, config.schedule, config.batch, config.epochs) == ("weak", "cosine", 128, 15)
    assert Tent(source_model, config).views == "w"


def test_batch_norm_models() -> None:
    method = Tent(create_model("resnet10t", 3).eval(), tiny_config(Tent))
    method.at(Progress(0, 1, 0))
    assert method.step(random_batch("t"))["loss"] > 0
