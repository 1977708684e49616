from __future__ import annotations

import math

import pytest
import torch

from dept import methods
from dept.core.batch_norm import batch_norms
from dept.core.losses import entropy, opinion_entropy
from dept.data.loader import Batch
from dept.methods.base import Progress
from dept.methods.tent import Tent
from dept.models.model import Model
from dept.models.stats import feature_statistics
from support import moved, random_batch, same_bits, spread_predictions, state_of, tiny_config, tiny_resnet


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


@pytest.mark.parametrize("name", ["tent", "eata", "sar"])
def test_come_measures_the_opinion_wherever_entropy_is_measured(name: str, source_model: Model) -> None:
    """COME's released code replaces the entropy in the loss, in the selection and in the weights."""
    kind, batch = methods.get(name), random_batch("t", 16)
    logits = spread_predictions(source_model)(batch.views[0]).detach()
    values = opinion_entropy(logits)
    margin = {} if name == "tent" else {"entropy_margin": float(values.median()) / math.log(3) + 1e-4}
    method = kind(source_model, tiny_config(kind, entropy="come", lr=0.0, **margin))
    method.at(Progress(0, 1, 0))
    terms = method.step(batch)
    chosen = values if name == "tent" else values[values < method.margin]
    expected = chosen.mean()
    if name == "eata":
        expected = ((method.margin - chosen).exp() * chosen).mean()
    if name != "tent":
        assert terms["selected"] == len(chosen) == 8 != int((entropy(logits) < method.margin).sum())
    if name != "sar":  # its loss is that of the point uphill
        assert terms["loss"] == pytest.approx(float(expected), abs=1e-5)


def test_only_entropy_minimisation_has_the_choice() -> None:
    having = {name for name in methods.available("online") if "entropy" in methods.get(name).Config().__dict__}
    assert having == {"tent", "eata", "sar"}


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


def test_batch_norm_uses_the_batch_and_its_statistics_follow_the_target() -> None:
    batch = random_batch("t", 8)
    images = 3.0 * batch.views[0] + 1.0
    by_the_batch = tiny_resnet().train()(images).detach()
    model = tiny_resnet().eval()
    method = Tent(model, tiny_config(Tent))
    before = state_of(model)
    method.at(Progress(0, 1, 0))
    logits, _ = method.observe(images, Batch((images,), batch.index))
    torch.testing.assert_close(logits, by_the_batch)
    assert not any(module.training for module in model.modules())
    changed = moved(before, model)
    assert any(name.endswith("running_var") for name in changed)
    assert {name.rpartition(".")[0] for name in changed} == set(batch_norms(model))

    adapted = tiny_resnet().eval()
    method.adapter().copy_to(adapted)  # what is written predicts as the method does
    torch.testing.assert_close(adapted(images), method.predict(images))
    method.reset()
    assert same_bits(state_of(model), before | {n: t for n, t in state_of(model).items() if "num_batches" in n})


@pytest.mark.parametrize(
    ("name", "learns"),
    [
        *((name, True) for name in ("shot", "adacontrast", "aad", "notela")),
        *((name, False) for name in ("neo", "cfa", "eata", "sar", "deyo", "roid", "rotta", "cotta", "spa")),
    ],
)
def test_which_methods_learn_batch_statistics(name: str, learns: bool) -> None:
    model = tiny_resnet().eval()
    before = state_of(model)
    kind = methods.get(name)
    stats = feature_statistics(model, [random_batch("t", 8)], torch.arange(8) % 3)
    method = kind(model, tiny_config(kind), stats=stats if kind.needs_stats else None)
    method.at(Progress(0, 1, 0))
    method.step(random_batch(method.views, 8))
    assert bool([name for name in moved(before, model) if "running" in name]) == learns
