from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from dept.core.losses import entropy
from dept.data.loader import Batch
from dept.errors import DataError
from dept.methods.eata import EATA, selected_rows, weighted_entropy
from dept.models.model import Model, fingerprint
from dept.models.stats import load_stats, save_stats
from support import random_batch, same_bits, scramble, spread_predictions, tiny_model


@pytest.fixture
def sharp() -> Model:
    """A model whose predictions differ in confidence."""
    model = tiny_model(stages=0, prompts=0)
    scramble(model, scale=0.2)
    return model


def eata(model: Model, stats: str = "", **changes: object) -> EATA:
    config = EATA.Config(**{"entropy_margin": 0.9, **changes})  # type: ignore[arg-type]
    return EATA(model, config, stats=load_stats(stats, model) if stats else None)


def fake_stats(model: Model, path: Path, sha: str | None = None) -> str:
    """Fisher weights 1, 2, 3, … for the norm layers' tensors in their order."""
    norms = EATA(model).trained_names
    tensors = {f"fisher.{n}": torch.full_like(model.get_parameter(n), value) for value, n in enumerate(norms, 1)}
    tensors["class_means"] = torch.zeros_like(model.head.weight)
    meta = {"kind": "stats", "arch": "tiny", "stages": 0, "prompts": 0}
    return str(save_stats(tensors, meta | {"backbone_sha256": sha or fingerprint(model)}, path))


def test_margins_follow_the_number_of_classes() -> None:
    for classes, floor, margin in ((1000, 0.0474, 2.7631), (126, 0.1336, 1.9346), (12, 0.4330, 0.9940)):
        method = EATA(tiny_model(classes, stages=0, prompts=0))
        assert method.redundancy == pytest.approx(floor, abs=1e-4)
        assert method.margin == pytest.approx(margin, abs=1e-4)
    assert EATA(tiny_model(), EATA.Config(redundancy=0.05)).redundancy == 0.05
    assert EATA(tiny_model(1000), EATA.preset("released")).redundancy == 0.05


def test_weighted_entropy_by_hand() -> None:
    logits = torch.tensor([[2.0, 1.0, 0.0], [0.0, 0.0, 0.0]])
    first, second = 0.832396, math.log(3)
    expected = (math.exp(1 - first) * first + math.exp(1 - second) * second) / 2
    assert float(weighted_entropy(logits, 1.0)) == pytest.approx(expected, rel=1e-6)


def test_the_weight_has_no_gradient() -> None:
    logits = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    (got,) = torch.autograd.grad(weighted_entropy(logits, 0.5), logits)
    weights = (0.5 - entropy(logits)).exp().detach()
    (expected,) = torch.autograd.grad((weights * entropy(logits)).mean(), logits)
    torch.testing.assert_close(got, expected)


def test_rows_are_reliable_and_new() -> None:
    logits = torch.tensor([[9.0, 0, 0], [0.1, 0, 0], [0, 9.0, 0], [0, 0, 9.0]])
    assert selected_rows(logits, margin=0.5, mean=None, redundancy=0.5).tolist() == [0, 2, 3]
    mean = torch.tensor([0.9, 0.05, 0.05])
    assert selected_rows(logits, margin=0.5, mean=mean, redundancy=0.5).tolist() == [2, 3]


def test_only_selected_rows_reach_the_backward(sharp: Model) -> None:
    seen: list[int] = []
    sharp.backbone.patch_embed.register_forward_pre_hook(
        lambda module, args: seen.append(len(args[0])) if torch.is_grad_enabled() else None
    )
    method = eata(sharp)
    batch = random_batch("t", 8)
    rows = selected_rows(sharp(batch.views[0]).detach(), margin=method.margin, mean=None, redundancy=1.0)
    seen.clear()
    terms = method.step(batch)
    assert 0 < len(rows) < 8
    assert seen == [len(rows)] and terms["selected"] == len(rows)


def test_a_step_equals_the_masked_loss_over_the_whole_batch(sharp: Model) -> None:
    method = eata(sharp, momentum=0.0, lr=0.1)
    images = random_batch("t", 8).views[0]
    values = entropy(sharp(images))
    mask = values < method.margin
    reference = ((method.margin - values).exp().detach() * values)[mask].mean()
    names = method.trained_names
    gradients = torch.autograd.grad(reference, [sharp.get_parameter(n) for n in names])
    expected = {n: sharp.get_parameter(n).detach() - 0.1 * g for n, g in zip(names, gradients, strict=True)}
    method.step(Batch((images,), torch.arange(8)))
    for name, tensor in expected.items():
        torch.testing.assert_close(sharp.get_parameter(name).detach(), tensor, rtol=1e-4, atol=1e-6)


def test_nothing_selected_nothing_moves(sharp: Model) -> None:
    method = eata(sharp, entropy_margin=1e-9)
    before = {n: t.clone() for n, t in method.state_dict().items()}
    assert method.step(random_batch("t")) == {"loss": 0.0, "selected": 0.0}
    assert same_bits(before, method.state_dict())


def test_running_mean_and_its_reset(sharp: Model) -> None:
    method = eata(sharp, redundancy=2.0, lr=0.0)
    one, two = random_batch("t", seed=1), random_batch("t", seed=2)

    def mean_of(batch: Batch) -> torch.Tensor:
        logits = sharp(batch.views[0]).detach()
        return logits[entropy(logits) < method.margin].softmax(dim=-1).mean(dim=0)

    method.step(one)
    torch.testing.assert_close(method.mean_prediction, mean_of(one))
    method.step(two)
    torch.testing.assert_close(method.mean_prediction, 0.9 * mean_of(one) + 0.1 * mean_of(two))
    method.reset()
    assert method.mean_prediction is None


def test_what_was_seen_before_is_redundant(sharp: Model) -> None:
    batch = random_batch("t", 8)
    method = eata(spread_predictions(sharp), redundancy=0.9, lr=0.0)
    mean = sharp(batch.views[0]).detach()
    mean = mean[entropy(mean) < method.margin].softmax(dim=-1).mean(dim=0)
    first, second = (method.step(batch)["selected"] for _ in range(2))
    new = selected_rows(sharp(batch.views[0]).detach(), margin=method.margin, mean=mean, redundancy=0.9)
    assert second == len(new) and 0 < second < first


def test_fisher_penalty_by_hand(sharp: Model, tmp_path: Path) -> None:
    path = fake_stats(sharp, tmp_path / "stats.safetensors")
    method = eata(sharp, stats=path, w_fisher=10.0)
    batch = random_batch("t", 8)
    assert float(method.loss(batch)["fisher"].detach()) == 0.0
    for value, name in enumerate(method.trained_names, 1):  # one tensor at a time: each has its own weight
        parameter = sharp.get_parameter(name)
        with torch.no_grad():
            parameter.add_(0.5)
        penalty = float(method.loss(batch)["fisher"].detach())
        assert penalty == pytest.approx(10.0 * value * 0.25 * parameter.numel(), rel=1e-5), name
        method.reset()
    assert float(method.loss(batch)["fisher"].detach()) == 0.0


def test_without_statistics_it_is_eta(sharp: Model, tmp_path: Path) -> None:
    assert set(eata(sharp).loss(random_batch("t"))) == {"entropy"}
    path = fake_stats(sharp, tmp_path / "stats.safetensors")
    eta = EATA(sharp, EATA.preset("eta"))
    assert eta.config.w_fisher == 0.0 and eata(sharp, stats=path, w_fisher=0.0).fisher is None


def test_statistics_of_another_backbone_are_refused(sharp: Model, tmp_path: Path) -> None:
    path = fake_stats(sharp, tmp_path / "stats.safetensors", sha="0" * 64)
    with pytest.raises(DataError, match="another backbone"):
        eata(sharp, stats=path)


def test_online_prediction_is_before_the_update(sharp: Model) -> None:
    method = eata(sharp, lr=0.5)
    batch = random_batch("t", 8)
    expected = sharp(batch.views[0]).detach()
    logits, terms = method.observe(batch.views[0], batch)
    assert terms["selected"] > 0
    assert torch.equal(logits, expected) and not torch.equal(sharp(batch.views[0]), expected)
