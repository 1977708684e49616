"""Gradients as means over the processes of a run, sent in buckets while the backward is still running."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from dept.core import collective

BUCKET = 25 * 2**20
"""bytes. Prompts or norm layers are one bucket, a ViT-B is fourteen"""


class Sent(NamedTuple):
    """Gradients on their way: the parameters that have them, all of them in one tensor, and what to wait for."""

    parameters: list[Tensor]
    flat: Tensor
    work: dist.Work


class GradientMean:
    """Replaces the gradients of some parameters by their means over all processes; in one process, nothing.

    Parameters that fill several buckets are sent bucket by bucket as soon as the backward, which goes from the last
    layer to the first, has passed them. All processes run the same graph: they fill the buckets in the same order, and
    a parameter without a gradient has none anywhere.
    """

    def __init__(self, parameters: Iterable[Tensor]) -> None:
        self.buckets = packed(list(parameters)[::-1]) if collective.size() > 1 else []
        self._place = {parameter: number for number, bucket in enumerate(self.buckets) for parameter in bucket}
        self._start()
        if len(self.buckets) > 1:
            for parameter in self._place:
                parameter.register_post_accumulate_grad_hook(self._arrived)  # type: ignore[no-untyped-call]

    def __call__(self) -> None:
        """Wait until all gradients are means; called between backward and clipping."""
        while self._next < len(self.buckets):
            self._send()
        for parameters, flat, work in self._sent:
            with collective.answered():
                work.wait()
            # The means stay where they are, at the same place in all processes: how a norm is summed, and so its last
            # bit, may depend on that. What the backward has left lies where each process's rows happen to put it.
            for parameter, mean in zip(parameters, like(flat.div_(collective.size()), parameters), strict=True):
                parameter.grad = mean
        self._start()

    def _start(self) -> None:
        self._missing = [set(bucket) for bucket in self.buckets]
        self._next, self._sent = 0, list[Sent]()

    def _arrived(self, parameter: Tensor) -> None:
        """Called by the backward; sends the buckets that are full, always in the same order."""
        self._missing[self._place[parameter]].discard(parameter)
        while self._next < len(self.buckets) and not self._missing[self._next]:
            self._send()

    def _send(self) -> None:
        used = [parameter for parameter in self.buckets[self._next] if parameter.grad is not None]
        self._next += 1
        if used:
            flat = flattened([parameter.grad for parameter in used if parameter.grad is not None])
            self._sent.append(Sent(used, flat, collective.start_sum(flat)))


def means(tensors: Sequence[Tensor]) -> list[Tensor]:
    """The means of tensors over all processes, for gradients that are nobody's `grad`."""
    if collective.size() == 1:
        return list(tensors)
    flat = flattened(tensors)
    with collective.answered():
        collective.start_sum(flat).wait()
    return like(flat.div_(collective.size()), tensors)


def packed(parameters: Sequence[Tensor], most: int = BUCKET) -> list[list[Tensor]]:
    """The parameters in order, in lists of at most `most` bytes; a larger one stands alone."""
    buckets: list[list[Tensor]] = []
    filled = 0
    for parameter in parameters:
        own = parameter.numel() * parameter.element_size()
        if not buckets or filled + own > most:
            buckets.append([])
            filled = 0
        buckets[-1].append(parameter)
        filled += own
    return buckets


def flattened(tensors: Sequence[Tensor]) -> Tensor:
    """All tensors as one vector, which is a copy."""
    return torch.cat([tensor.flatten() for tensor in tensors])


def like(flat: Tensor, tensors: Sequence[Tensor]) -> list[Tensor]:
    """Inverse of `flattened`: views of the vector in the shapes of the tensors."""
    parts = torch.split(flat, [tensor.numel() for tensor in tensors])
    return [part.view_as(tensor) for part, tensor in zip(parts, tensors, strict=True)]
