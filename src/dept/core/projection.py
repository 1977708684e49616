"""DINO-style projection heads: one per stage; CLS shares the last stage's."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations

_PROTOTYPES = "prototypes.parametrizations.weight.original1"


class ProjectionHead(nn.Module):
    """Linear, GELU, Linear, L2-normalise, weight-normalised Linear with gain fixed at 1: (…, D) -> (…, K).

    Every output is the product of two unit vectors, hence within [-1, 1].
    """

    def __init__(self, width: int, *, hidden: int = 2048, bottleneck: int = 256, out: int = 2048) -> None:
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, bottleneck))
        for layer in self.mlp:
            if isinstance(layer, nn.Linear):
                nn.init.trunc_normal_(layer.weight, std=0.02)
                nn.init.zeros_(layer.bias)
        self.prototypes = parametrizations.weight_norm(nn.Linear(bottleneck, out, bias=False), dim=0)
        gain = self.prototypes.parametrizations.weight.original0
        nn.init.ones_(gain)
        gain.requires_grad_(False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Project tokens of any leading shape."""
        projected: Tensor = self.prototypes(F.normalize(self.mlp(tokens), dim=-1))
        return projected


def projection_sizes(heads: nn.ModuleList) -> dict[str, int]:
    """The three widths of a list of equal heads, as the constructor takes them."""
    tensors = dict(heads[0].named_parameters())
    hidden, bottleneck = tensors["mlp.0.weight"].shape[0], tensors["mlp.2.weight"].shape[0]
    return {"hidden": hidden, "bottleneck": bottleneck, "out": tensors[_PROTOTYPES].shape[0]}
