from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from dept.core.projection import ProjectionHead, projection_sizes


def test_output_is_the_product_of_unit_vectors() -> None:
    head = ProjectionHead(8, hidden=16, bottleneck=6, out=10)
    with torch.no_grad():
        for parameter in head.mlp.parameters():
            parameter.normal_()
    tokens = torch.randn(3, 5, 8)
    out = head(tokens).detach()
    assert out.shape == (3, 5, 10) and float(out.abs().max()) <= 1 + 1e-6
    # Independent: unit rows of the direction tensor times the unit bottleneck.
    first, _, second = head.mlp
    hidden = F.gelu(tokens @ first.weight.T + first.bias) @ second.weight.T + second.bias
    hidden = hidden / hidden.norm(dim=-1, keepdim=True)
    rows = head.prototypes.parametrizations.weight.original1
    assert torch.allclose(out, hidden @ (rows / rows.norm(dim=1, keepdim=True)).T, atol=1e-6)


def test_gain_is_one_and_frozen_and_the_rest_trains() -> None:
    head = ProjectionHead(8, hidden=16, bottleneck=6, out=10)
    gain = head.prototypes.parametrizations.weight.original0
    assert torch.equal(gain, torch.ones_like(gain)) and not gain.requires_grad
    trainable = sum(p.numel() for p in head.parameters() if p.requires_grad)
    assert trainable == 8 * 16 + 16 + 16 * 6 + 6 + 6 * 10


def test_initialisation() -> None:
    head = ProjectionHead(64, hidden=256, bottleneck=32, out=16)
    for layer in (head.mlp[0], head.mlp[2]):
        assert torch.equal(layer.bias, torch.zeros_like(layer.bias))
        assert 0.018 < float(layer.weight.detach().std()) < 0.022


def test_sizes_are_read_back() -> None:
    heads = nn.ModuleList([ProjectionHead(8, hidden=16, bottleneck=6, out=10)])
    assert projection_sizes(heads) == {"hidden": 16, "bottleneck": 6, "out": 10}
