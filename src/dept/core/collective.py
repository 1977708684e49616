"""One run in several processes: which rows are whose, and how parts become wholes.

All W processes run the same program on the same batch and end every step with the same numbers. Two things are shared
out: decoding images, and the backbone (`AdaptedModel.read`). Row i goes to process i mod W. What is found comes back
in order, so that losses, banks, centers, centroids and labels see the whole batch and know nothing of processes.

Gradients. `all_rows` multiplies the gradient of a process's own rows by W, and a step takes the mean over the
processes (`core.gradient_mean`). A process's gradient of the backbone is then W times the part that its rows have in
it, and the mean is the sum of the parts. What works on whole batches (a discriminator) has the whole gradient in every
process, and so has the mean. A batch of fewer than W rows is not shared out: every process does all of it.

In one process all of this gives back what it was given.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

T = TypeVar("T")
P = ParamSpec("P")
Rows = TypeVar("Rows", Tensor, list[Any])

_group: dist.ProcessGroup | None = None
"""the processes of this run. Not torch's default group: a program of many processes may call dept in each by itself"""


@contextmanager
def together(group: dist.ProcessGroup | None) -> Iterator[None]:
    """The processes of a group do what is inside together; None for each process by itself."""
    global _group
    before, _group = _group, group
    try:
        yield
    finally:
        _group = before


def size() -> int:
    """W, the number of processes."""
    return 1 if _group is None else _group.size()


def rank() -> int:
    """The number of this process, from 0."""
    return 0 if _group is None else _group.rank()


@contextmanager
def answered() -> Iterator[None]:
    """Say it in a sentence if another process does not answer."""
    try:
        yield
    except RuntimeError as error:  # of gloo and nccl alike
        # Their first sentence, without line numbers: the rest is advice to the authors of a program.
        reason = re.sub(r"^\[[^\]]*\]\s*", "", str(error)).partition("\n")[0].partition(". ")[0]
        raise ConnectionError(f"Another process of this run has ended, or no longer answers ({reason}).") from error


# -- rows ------------------------------------------------------------------------------------------------------


def own_rows(rows: Rows) -> Rows:
    """This process's rows (or items of a list): those at positions i ≡ rank (mod W)."""
    return rows[rank() :: size()] if 1 < size() <= len(rows) else rows


def all_rows(own: Tensor, count: int) -> Tensor:
    """The `count` rows of all processes, in order, from each one's own: (n, …) -> (count, …)."""
    if not 1 < size() <= count:
        return own
    whole: Tensor = _AllRows.apply(own, count)
    return whole


def all_items(own: list[Any], count: int) -> list[Any]:
    """The same for a list of anything."""
    if not 1 < size() <= count:
        return own
    parts = everyones(own)
    return [parts[place % size()][place // size()] for place in range(count)]


class _AllRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, own: Tensor, count: int) -> Tensor:
        most = -(-count // size())
        padded = own.new_zeros(most, *own.shape[1:])  # all send the same number of rows; padding is dropped below
        padded[: len(own)] = own
        parts = own.new_empty(size(), *padded.shape)
        with answered():
            dist.all_gather_into_tensor(parts.flatten(0, 1), padded, group=_group)
        ctx.place = (rank(), size())
        return parts.transpose(0, 1).flatten(0, 1)[:count]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        first, step = ctx.place
        return step * grads[0][first::step], None


# -- numbers ---------------------------------------------------------------------------------------------------


def sum_over_processes(part: Tensor) -> Tensor:
    """Σ over the processes, with a gradient: for what every process uses in its own way, such as batch statistics."""
    if size() == 1:
        return part
    total: Tensor = _Sum.apply(part)
    return total


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, part: Tensor) -> Tensor:
        return _reduced(part)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return _reduced(grads[0])


def _reduced(part: Tensor) -> Tensor:
    total = part.clone()
    with answered():
        start_sum(total).wait()
    return total


def start_sum(tensor: Tensor) -> dist.Work:
    """Begin to replace the tensor by its sum over the processes; it has become that when the result was waited for."""
    with answered():
        work = dist.all_reduce(tensor, group=_group, async_op=True)
    assert work is not None
    return work


def mean_over_rows(mean: Tensor, count: int) -> Tensor:
    """The mean over all rows, from each process's mean () over its `count` own rows.

    For terms that are means over samples and too large to put together row by row. The gradient goes to own rows.
    """
    if size() == 1:
        return mean
    total, rows = _reduced(torch.stack([count * mean.detach(), torch.full_like(mean, count)])).unbind()
    own = size() * count / rows * mean  # the mean of this over the processes is the mean over all rows
    return total / rows + (own - own.detach())  # the value of all, the gradient of its own


# -- words and files -------------------------------------------------------------------------------------------


def everyones(own: T) -> list[T]:
    """What each process gives, by its number."""
    if _group is None:
        return [own]
    parts: list[Any] = [None] * size()
    with answered():
        dist.all_gather_object(parts, own, group=_group)
    return parts


def from_first(make: Callable[[], T]) -> T:
    """What the first process makes, for all of them; so is an error that it meets. It makes it alone."""
    if _group is None:
        return make()
    made: list[Any] = [None]
    if rank() == 0:
        with together(None):
            made = [_outcome(make)]
    with answered():
        dist.broadcast_object_list(made, src=0, group=_group)
    value, error = made[0]
    if error is not None:
        raise error
    return value  # type: ignore[no-any-return]


def _outcome(make: Callable[[], T]) -> tuple[T | None, Exception | None]:
    try:
        return make(), None
    except Exception as error:
        return None, error


def by_first(function: Callable[P, T]) -> Callable[P, T]:
    """The function, run by the first process for all."""

    @wraps(function)
    def called(*args: P.args, **kwargs: P.kwargs) -> T:
        return from_first(lambda: function(*args, **kwargs))

    return called


def only_first(function: Callable[P, object]) -> Callable[P, None]:
    """The function, run by the first process alone; the others do not wait for it."""

    @wraps(function)
    def called(*args: P.args, **kwargs: P.kwargs) -> None:
        if rank() == 0:
            function(*args, **kwargs)

    return called
