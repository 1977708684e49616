"""SPA against its formulas: the two views, the loss, and what climbs and what falls."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from dept.methods.base import Progress
from dept.methods.spa import SPA, bootstrap, rescaled, with_noise, without_low_frequencies
from dept.models.model import Model
from support import moved, random_batch, spread_predictions, state_of, tiny_config, tiny_model


@pytest.fixture
def model() -> Model:
    return spread_predictions(tiny_model(stages=0, prompts=0))


def spa(model: Model, **changes: Any) -> SPA:
    method = SPA(model, tiny_config(SPA, **changes))  # type: ignore[arg-type]
    method.at(Progress(0, 4, 0))
    return method


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(0)


@pytest.mark.parametrize("size", [(32, 32), (31, 30)])
def test_only_low_frequencies_are_left_out(size: tuple[int, int]) -> None:
    images = torch.randn(8, 3, *size)
    made = without_low_frequencies(images, share=0.5, drop=0.3, generator=seeded())
    before, after = torch.fft.fft2(images.double()), torch.fft.fft2(made.double())
    height, width = size
    kept = lost = 0
    for i in range(height):
        for j in range(width):
            low = min(i, height - i) <= height / 4 and min(j, width - j) <= width / 4
            same = (after[..., i, j] - before[..., i, j]).abs() < 1e-3
            gone = after[..., i, j].abs() < 1e-3
            assert (same | gone).all(), "a frequency is there with its phase, or it is not"
            assert low or same.all()
            kept, lost = kept + int(low) * int((~gone).sum()), lost + int(gone.sum())
    assert lost / (kept + lost) == pytest.approx(0.3, abs=0.03)


def test_images_and_channels_lose_different_frequencies() -> None:
    images = torch.randn(1, 1, 32, 32).expand(2, 3, -1, -1)
    made = without_low_frequencies(images, share=0.5, drop=0.3, generator=seeded()).flatten(0, 1)
    assert all(not torch.allclose(made[0], other, atol=1e-3) for other in made[1:])
    torch.testing.assert_close(without_low_frequencies(images, share=0.5, drop=0.0, generator=seeded()), images)


def test_noise_by_hand() -> None:
    images, noise = torch.tensor([[[[0.0, 1.0, 2.0, 3.0]]], [[[3.0, 2.0, 1.0, 0.0]]]]), torch.full((1, 1, 4), 9.0)
    made = with_noise(images, noise, torch.tensor([[0.0, 0.5]]), 2)
    # The second half is ¾ of the image and ¼ of the noise, at most 3.
    expected = torch.tensor([[[[0.0, 1.0, 3.0, 3.0]]], [[[3.0, 2.0, 3.0, 2.25]]]])
    torch.testing.assert_close(made, expected)
    assert with_noise(torch.randn(2, 3, 30, 33), torch.randn(3, 30, 33), torch.ones(2, 3), 16).shape == (2, 3, 30, 33)


def test_levels_keep_their_mean_square() -> None:
    levels = rescaled(torch.tensor([[1.0, -2.0], [0.5, 1.5]]), 0.2)
    assert float(levels.square().mean()) == pytest.approx(0.2) and float(levels[0, 1]) < 0
    assert rescaled(torch.tensor([[0.01, 5.0]]), 0.8).tolist()[0][1] == 1.0
    assert not rescaled(torch.zeros(2, 2), 0.0).any()


def slow_bootstrap(whole: Tensor, deteriorated: Tensor) -> float:
    values = []
    for a, b in zip(whole.double().softmax(dim=1), deteriorated.double().softmax(dim=1), strict=True):
        if a.max() > b.max():
            values.append(sum(float(t) * math.log(float(t) / float(p)) for t, p in zip(a, b, strict=True)))
    return sum(values) / len(values) if values else 0.0


def test_loss_is_the_divergence_of_the_weaker_views() -> None:
    whole, weaker = 3 * torch.randn(8, 4), torch.randn(8, 4)
    assert float(bootstrap(whole, weaker)) == pytest.approx(slow_bootstrap(whole, weaker), rel=1e-5)
    mixed = torch.cat([weaker[:4], 9 * whole[4:]])
    assert float(bootstrap(whole, mixed)) == pytest.approx(slow_bootstrap(whole, mixed), rel=1e-5)
    logits = (9 * whole).requires_grad_()
    nobody = bootstrap(whole, logits)
    assert float(nobody.detach()) == 0.0 and not torch.autograd.grad(nobody, logits)[0].any()


def test_a_step_equals_the_formulas(model: Model) -> None:
    """Plain descent of norm layers and predictor, ascent of the levels, from gradients taken by hand."""
    method = spa(model, momentum=0.0, lr=0.1, predictor_lr=0.2, noise_lr=0.3, noise_patch=8)
    batch = random_batch("t", 6)
    images = batch.views[0]
    draws = torch.Generator().manual_seed(int(torch.randint(2**31, (), generator=seeded())))
    masked = without_low_frequencies(images, share=0.2, drop=0.2, generator=draws)
    noise = torch.randn(3, 32, 32, generator=draws)
    levels = torch.full((4, 4), math.sqrt(0.4), requires_grad=True)
    predictor = torch.eye(32, requires_grad=True)
    with torch.no_grad():
        whole = model(images)
    total = torch.zeros(())
    for view in (masked, with_noise(images, noise, levels, 8)):
        features = model.read(view).features @ predictor.T
        total = total + bootstrap(whole, features @ model.head.weight.T + model.head.bias)
    names = method.trained_names
    norms = [model.get_parameter(name) for name in names]
    gradients = torch.autograd.grad(total, [*norms, predictor, levels])
    before = [tensor.detach().clone() for tensor in norms]
    terms = method.step(batch)
    assert terms["loss"] == pytest.approx(float(total.detach()), rel=1e-4)
    for tensor, start, gradient in zip(norms, before, gradients, strict=False):
        torch.testing.assert_close(tensor.detach(), start - 0.1 * gradient, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(method.predictor, torch.eye(32) - 0.2 * gradients[-2], rtol=1e-4, atol=1e-5)
    climbed = rescaled(levels.detach() + 0.3 * gradients[-1], 0.4)
    assert method.levels is not None
    torch.testing.assert_close(method.levels, climbed, rtol=1e-4, atol=1e-5)
    assert not torch.equal(climbed, levels.detach())


def test_velocities_carry_over(model: Model) -> None:
    """With momentum two equal gradients move the predictor by 1 and then by 1 + m."""
    method = spa(model, momentum=0.5, lr=0.0, predictor_lr=1.0)
    method.step(random_batch("t", 4))
    first = method.predictor.clone()
    gradient = torch.eye(32) - first
    torch.testing.assert_close(method.predictor_velocity, gradient)
    method._learned[0].grad = gradient
    method.after_step(random_batch("t", 4))
    torch.testing.assert_close(method.predictor, first - 1.5 * gradient)


def test_the_predictor_is_thrown_away(model: Model) -> None:
    method, before = spa(model), state_of(model)
    batch = random_batch("t", 8)
    logits, _ = method.observe(batch.views[0], batch)
    assert all("norm" in name for name in moved(before, model)) and set(method.adapter().tensors) <= set(before)
    model.load_state_dict(before)
    torch.testing.assert_close(logits, model(batch.views[0]).detach())  # predicted before the update, without it


def test_forwards(model: Model) -> None:
    seen: list[tuple[int, bool]] = []
    model.backbone.patch_embed.register_forward_pre_hook(
        lambda module, args: seen.append((len(args[0]), torch.is_grad_enabled()))
    )
    method, batch = spa(model), random_batch("t", 8)
    method.observe(batch.views[0], batch)
    assert seen == [(8, False), (16, True)]
