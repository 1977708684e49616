from __future__ import annotations

import math

import pytest
import torch

from dept.core.losses import entropy
from dept.core.select import count, early_norms
from dept.data.loader import Batch
from dept.methods.sar import SAR, uphill
from dept.models.model import Model
from support import random_batch, same_bits, scramble, tiny_model


@pytest.fixture
def sharp() -> Model:
    model = tiny_model(stages=0, prompts=0)
    scramble(model, scale=0.2)
    return model


def sar(model: Model, **changes: object) -> SAR:
    return SAR(model, SAR.Config(**{"entropy_margin": 0.9, "reset_below": 0.0, **changes}))  # type: ignore[arg-type]


def test_norms_of_the_first_three_quarters_of_the_blocks() -> None:
    names = [f"backbone.blocks.{i}.norm{j}.weight" for i in range(12) for j in (1, 2)] + ["backbone.norm.weight"]
    assert early_norms(names) == [f"backbone.blocks.{i}.norm{j}.weight" for i in range(9) for j in (1, 2)]
    method = SAR(tiny_model())  # 4 blocks: 0, 1, 2
    assert {name.split(".")[2] for name in method.trained_names} == {"0", "1", "2"}
    assert count(method.model, method.trained_names) == 3 * 2 * 2 * 32


def test_other_norms_than_of_blocks_stay() -> None:
    names = ["backbone.bn1.weight", "backbone.layer3.0.bn1.weight", "backbone.layer4.0.bn1.weight"]
    assert early_norms(names) == names[:2]


def test_uphill_has_length_rho_over_all_tensors() -> None:
    shifts = uphill([torch.tensor([3.0, 0.0]), torch.tensor([[4.0]])], 0.05)
    torch.testing.assert_close(shifts, [torch.tensor([0.03, 0.0]), torch.tensor([[0.04]])])


def test_thresholds_follow_the_number_of_classes() -> None:
    method = SAR(tiny_model(1000, stages=0, prompts=0))
    assert method.margin == pytest.approx(2.7631, abs=1e-4) and method.floor == pytest.approx(0.2003, abs=1e-4)
    assert SAR(tiny_model(12, stages=0, prompts=0)).floor == pytest.approx(0.0721, abs=1e-4)


def reference_step(model: Model, images: torch.Tensor, names: list[str], margin: float, rho: float, lr: float) -> None:
    """The two-step update written out: all rows in both passes, masks by hand, plain gradient descent."""
    tensors = [model.get_parameter(name) for name in names]
    values = entropy(model(images))
    first = values < margin
    gradients = torch.autograd.grad(values[first].mean(), tensors)
    norm = math.sqrt(sum(float(g.double().square().sum()) for g in gradients))
    old = [t.detach().clone() for t in tensors]
    with torch.no_grad():
        for tensor, gradient in zip(tensors, gradients, strict=True):
            tensor += rho * gradient / norm
    again = entropy(model(images))[first]
    gradients = torch.autograd.grad(again[again < margin].mean(), tensors)
    with torch.no_grad():
        for tensor, value, gradient in zip(tensors, old, gradients, strict=True):
            tensor.copy_(value - lr * gradient)


def test_a_step_equals_the_two_step_reference(sharp: Model) -> None:
    other = tiny_model(stages=0, prompts=0)
    other.load_state_dict(sharp.state_dict())
    method = sar(sharp, momentum=0.0, lr=0.1, rho=0.5)
    batch = random_batch("t", 8)
    assert method.step(batch)["selected"] < 8
    reference_step(other, batch.views[0], method.trained_names, method.margin, 0.5, 0.1)
    for name in method.trained_names:
        torch.testing.assert_close(sharp.get_parameter(name), other.get_parameter(name), rtol=1e-4, atol=1e-6)


def test_rho_matters(sharp: Model) -> None:
    batch = random_batch("t", 8)
    ends = []
    for rho in (0.0, 0.5):
        method = sar(sharp, rho=rho, lr=0.1)
        method.step(batch)
        ends.append(method.adapter().tensors)
        method.reset()
    assert not same_bits(*ends)


def test_second_forward_sees_reliable_rows_only(sharp: Model) -> None:
    seen: list[int] = []
    sharp.backbone.patch_embed.register_forward_pre_hook(
        lambda module, args: seen.append(len(args[0])) if torch.is_grad_enabled() else None
    )
    method = sar(sharp)
    selected = int(method.step(random_batch("t", 8))["selected"])
    assert 0 < selected < 8 and seen == [selected, selected]


def test_nobody_reliable_nothing_moves(sharp: Model) -> None:
    method = sar(sharp, entropy_margin=1e-9)
    before = {n: t.clone() for n, t in method.state_dict().items()}
    assert method.step(random_batch("t")) == {"loss": 0.0, "selected": 0.0}
    assert same_bits(before, method.state_dict())


def test_nobody_reliable_uphill_restores_exactly(sharp: Model) -> None:
    batch = random_batch("t", 8)
    lowest = int(entropy(sharp(batch.views[0])).argmin())
    one = Batch((batch.views[0][lowest : lowest + 1],), batch.index[lowest : lowest + 1])
    value = float(entropy(sharp(one.views[0])).detach())
    # A margin just above the value: the step uphill raises the entropy above it.
    method = sar(sharp, entropy_margin=(value + 1e-5) / math.log(3))
    before = {n: t.clone() for n, t in method.state_dict().items()}
    assert method.step(one) == {"loss": 0.0, "selected": 1.0}
    assert same_bits(before, method.state_dict())


def test_rounding_does_not_empty_the_selection(sharp: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """A part of a batch may differ from the whole in the last bit: a row at the margin is then no longer below it."""
    method = sar(sharp)
    calls: list[float] = []

    def rounded(logits: torch.Tensor) -> torch.Tensor:
        calls.append(method.margin - 1e-7 if not calls else method.margin + 1e-7)
        return 0.0 * entropy(logits) + calls[-1]

    monkeypatch.setattr(method, "entropies", rounded)
    assert method.step(random_batch("t", 1)) == {"loss": 0.0, "selected": 1.0}
    assert len(calls) == 3


def test_running_loss_and_recovery(sharp: Model) -> None:
    start = {n: t.detach().clone() for n, t in sharp.state_dict().items()}
    method = sar(sharp, lr=1e-3)
    one, two = random_batch("t", 8, seed=1), random_batch("t", 8, seed=2)
    first, second = method.step(one)["loss"], method.step(two)["loss"]
    assert method.running_loss == pytest.approx(0.9 * first + 0.1 * second)
    method.floor = 10.0
    terms = method.step(one)
    assert terms["recovered"] == 1.0 and method.running_loss is None
    assert same_bits(start, dict(sharp.state_dict()))


def test_state_round_trip_keeps_the_running_loss(sharp: Model) -> None:
    method = sar(sharp)
    method.step(random_batch("t", 8))
    state = {n: t.clone() for n, t in method.state_dict().items()}
    kept = method.running_loss
    method.reset()
    assert method.running_loss is None
    method.load_state_dict(state)
    assert method.running_loss == kept and same_bits(state, method.state_dict())
