from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from dept.core.adapter import Adapter
from dept.core.domains import (
    Domains,
    domain_distances,
    domain_weights,
    early_features,
    is_mean,
    prompts_of_samples,
    signature,
)
from support import random_batch, scramble, tiny_model


def three_domains(stages: int = 2, shared: int = 2, own: int = 1, width: int = 4) -> Domains:
    generator = torch.Generator().manual_seed(3)

    def draw(count: int) -> Tensor:
        return torch.randn(stages, count, width, generator=generator)

    return Domains(("a", "b", "c"), draw(shared), [draw(own) for _ in range(3)])


def tensors_of(domains: Domains) -> dict[str, Tensor]:
    return {f"domains.{name}": tensor for name, tensor in domains.named_parameters()}


# ---- prompts ----


def test_joined_is_the_shared_prompts_then_the_mean_of_the_domains() -> None:
    domains = three_domains()
    joined = domains.joined()
    assert joined.shape == (2, 3, 4) and not joined.requires_grad
    assert torch.equal(joined[:, :2], domains.shared)
    a, b, c = domains.own
    torch.testing.assert_close(joined[:, 2:], (a + b + c).detach() / 3)
    weighted = domains.joined(torch.tensor([0.5, 0.25, 0.25]))
    torch.testing.assert_close(weighted[:, 2:], (0.5 * a + 0.25 * b + 0.25 * c).detach())
    assert torch.equal(domains.joined(torch.eye(3)[1])[:, 2:], b)


def test_the_mean_is_told_from_prompts_that_moved() -> None:
    domains = three_domains()
    joined = domains.joined()
    assert is_mean(domains, joined)
    assert not is_mean(domains, joined + 1e-3)
    assert not is_mean(domains, joined[:, :2]) and not is_mean(domains, None)


def test_every_sample_gets_the_prompts_of_its_domain() -> None:
    domains = three_domains()
    owners = torch.tensor([2, 0, 2, 1])
    made = prompts_of_samples(tensors_of(domains), owners)
    assert made.shape == (4, 2, 3, 4)
    for row, owner in enumerate(owners.tolist()):
        assert torch.equal(made[row], torch.cat([domains.shared, domains.own[owner]], dim=1))


def test_an_absent_domain_has_no_gradient_at_all() -> None:
    """Zeros would not do: weight decay and momentum act on a gradient of zeros."""
    domains = three_domains()
    prompts_of_samples(tensors_of(domains), torch.tensor([0, 2, 2])).sum().backward()
    a, b, c = domains.own
    assert b.grad is None
    assert torch.equal(a.grad, torch.ones_like(a)) and torch.equal(c.grad, 2 * torch.ones_like(c))
    assert torch.equal(domains.shared.grad, 3 * torch.ones_like(domains.shared))


def test_a_mixed_batch_equals_each_domain_read_alone() -> None:
    model = tiny_model(prompts=3).double()
    scramble(model)
    domains = three_domains(width=32).double()
    images, owners = random_batch("t", 5).views[0].double(), [1, 0, 2, 2, 1]
    mixed = prompts_of_samples(tensors_of(domains), torch.tensor(owners))
    with torch.no_grad():
        together = model.read(images, adapter=Adapter({"prompts": mixed}), aggregated=True)
        for row, owner in enumerate(owners):
            alone = {"prompts": domains.joined(torch.eye(3, dtype=torch.float64)[owner])}
            expected = model.read(images[row : row + 1], adapter=Adapter(alone), aggregated=True)
            torch.testing.assert_close(together.logits[row], expected.logits[0], rtol=0, atol=1e-9)
            for one, other in zip(together.prompts, expected.prompts, strict=True):
                torch.testing.assert_close(one[row], other[0], rtol=0, atol=1e-9)


def test_sizes_and_names() -> None:
    domains = three_domains(shared=5, own=4)
    assert domains.sizes() == {"shared_prompts": 5, "domain_prompts": 4}
    assert {name for name, _ in domains.named_parameters()} == {"shared", "own.0", "own.1", "own.2"}
    assert domains.signatures.shape == (3, 2, 4)


# ---- signatures ----


def test_signature_is_mean_and_deviation_however_the_rows_are_cut() -> None:
    rows = 100 + torch.randn(11, 3, generator=torch.Generator().manual_seed(0))
    slow = torch.stack([rows.double().mean(dim=0), rows.double().std(dim=0, correction=0)]).float()
    for size in (1, 4, 11):
        torch.testing.assert_close(signature(rows.split(size)), slow)


def test_early_features_are_mean_patch_tokens_half_way_without_prompts() -> None:
    model = tiny_model().eval()
    scramble(model, scale=0.2)
    images = random_batch("t", 3).views[0]
    with torch.no_grad():
        tokens = model.embed(images).tokens
        for block in model.backbone.blocks[:2]:  # of four
            tokens = block(tokens)
        torch.testing.assert_close(early_features(model.backbone, images), tokens[:, 1:].mean(dim=1))
        before = early_features(model.backbone, images)
        model.prompts.mul_(5)
    assert torch.equal(early_features(model.backbone, images), before)


def test_distances_by_hand() -> None:
    """Two sources at (0, 0) and (6, 0) with deviations (1, 2) on average: 6 apart in those units."""
    sources = torch.tensor([[[0.0, 0.0], [1.0, 2.0]], [[6.0, 0.0], [1.0, 2.0]]])
    target = torch.tensor([[3.0, 8.0], [1.0, 2.0]])  # 3 units and 8 / 2 = 4 units away: 5 from each
    torch.testing.assert_close(domain_distances(target, sources), torch.tensor([5 / 6, 5 / 6]))
    wider = torch.tensor([[0.0, 0.0], [1.0, 5.0]])  # same mean as the first; deviation 3 / 2 units wider
    expected = torch.tensor([1.5 / 6, math.hypot(6, 1.5) / 6])
    torch.testing.assert_close(domain_distances(wider, sources), expected)


def test_distances_do_not_depend_on_the_scale_of_a_dimension() -> None:
    generator = torch.Generator().manual_seed(1)
    sources, target = torch.rand(3, 2, 5, generator=generator) + 0.1, torch.rand(2, 5, generator=generator)
    scale = torch.tensor([1.0, 1000.0, 0.01, 1.0, 7.0])
    torch.testing.assert_close(domain_distances(target * scale, sources * scale), domain_distances(target, sources))


def test_weights_by_hand() -> None:
    weights = domain_weights(torch.tensor([0.0, 1.0, 1.0]), temperature=0.5)
    share = 1 / (1 + 2 * math.exp(-2))
    torch.testing.assert_close(weights, torch.tensor([share, (1 - share) / 2, (1 - share) / 2]))
    assert domain_weights(torch.tensor([0.3, 0.2]), temperature=0.01)[1] > 0.99
    torch.testing.assert_close(domain_weights(torch.tensor([0.3, 9.0]), temperature=1e6), torch.tensor([0.5, 0.5]))


@pytest.mark.parametrize("same", [0, 1, 2])
def test_a_target_like_one_domain_gets_most_of_it(same: int) -> None:
    sources = torch.rand(3, 2, 8, generator=torch.Generator().manual_seed(2)) + 0.1
    weights = domain_weights(domain_distances(sources[same], sources), 0.5)
    assert int(weights.argmax()) == same and float(weights.sum()) == pytest.approx(1)


def test_equal_domains_get_equal_weights() -> None:
    sources = torch.ones(2, 2, 3)
    weights = domain_weights(domain_distances(torch.full((2, 3), 4.0), sources), 0.5)
    assert weights.tolist() == [0.5, 0.5]
