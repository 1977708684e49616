"""Three ways to limit gradients in place: tensor by tensor, row by row of one tensor, all together; and a check."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor


def clip_each(parameters: Iterable[Tensor], max_norm: float) -> None:
    """Clip the gradient of each tensor to L2 norm `max_norm` separately (DINO style, not a global norm)."""
    for parameter in parameters:
        if parameter.grad is not None:
            torch.nn.utils.clip_grad_norm_([parameter], max_norm)


def clip_rows(parameter: Tensor, max_norm: float) -> None:
    """The same for a tensor (M, …) that stands for M of them.

    The released code has a prompt tensor per stage. Clipped as one, a stage of large gradients would slow the others.
    """
    if parameter.grad is not None:
        norms = parameter.grad.flatten(1).norm(dim=1)
        # As torch does it, its 1e-6 included, for all rows at once.
        scale = (max_norm / (norms + 1e-6)).clamp(max=1.0)
        parameter.grad.mul_(scale.view(-1, *[1] * (parameter.ndim - 1)))


def clip_together(parameters: Iterable[Tensor], max_norm: float) -> None:
    """Clip the norm of all gradients taken as one vector; 0 leaves them."""
    if max_norm:
        torch.nn.utils.clip_grad_norm_(list(parameters), max_norm)


@torch.no_grad()
def all_finite(tensors: Iterable[Tensor]) -> bool:
    """Whether no tensor holds a NaN or an infinity. One pass, one transfer from the device."""
    given = [tensor for tensor in tensors if tensor.numel()]
    if not given:
        return True
    largest = torch.stack(list(torch._foreach_norm(given, ord=float("inf"))))  # of |x|, which hands NaN on
    return bool(largest.isfinite().all())
