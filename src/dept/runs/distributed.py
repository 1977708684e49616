"""One run in several processes, on one machine or several: `torchrun --nproc-per-node N -m dept adapt …`.

The processes join here and make sure that they mean the same run. How they share the work is in `core.collective`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from dept.core import collective
from dept.data.images import ImageSet, list_hash
from dept.errors import DataError, UsageError
from dept.io import tensors_hash
from dept.methods.base import Method, part


@dataclass(frozen=True)
class Processes:
    """The processes of a run, seen from one of them."""

    rank: int
    size: int
    store: Store
    """where they meet"""

    def speaks(self) -> bool:
        """At an error: whether this process is the first to end, and so the one that says why."""
        try:
            return int(self.store.add("ended", 1)) == 1
        except RuntimeError:  # the store has gone with the process that kept it
            return True


@contextmanager
def joined() -> Iterator[Processes]:
    """The processes that torchrun has started do what is inside as one run."""
    processes = _met()
    if (local := _local_rank()) < torch.cuda.device_count():
        torch.cuda.set_device(local)  # which is what "cuda" means from here on
    # Tensors on the CPU go by gloo, those on GPUs by nccl.
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    with collective.answered():
        store = PrefixStore("group", processes.store)
        dist.init_process_group(backend, store=store, rank=processes.rank, world_size=processes.size)
    with collective.together(dist.group.WORLD):
        yield processes
    dist.destroy_process_group()  # not after an error: it would wait for the others


def _met() -> Processes:
    """Meet the other processes, as torchrun's environment says."""
    try:
        store, rank, size = next(iter(rendezvous("env://")))
    except (ValueError, RuntimeError) as error:
        reason = str(error).splitlines()[0]
        raise UsageError(f"The processes of this run do not find each other ({reason}). Use torchrun.") from error
    return Processes(rank, size, store)


def _local_rank() -> int:
    """The number of this process on its machine."""
    return int(os.environ.get("LOCAL_RANK", "0"))


# -- do they mean the same run? --------------------------------------------------------------------------------


def check_words(words: Sequence[str]) -> None:
    """Refuse processes that were told to do different things."""
    first, *others = collective.everyones(_arguments(words))
    for number, theirs in enumerate(others, 1):
        if theirs != first:
            odd = [" ".join(word for word in one if word not in two) for one, two in ((first, theirs), (theirs, first))]
            raise UsageError(
                f"The processes of this run were started with different arguments: process 0 with "
                f"[{odd[0]}], process {number} with [{odd[1]}]. Start all with the same command."
            )


def _arguments(words: Sequence[str]) -> list[str]:
    """A command line in pieces, each flag with its value."""
    pieces: list[str] = []
    for word in words:
        if pieces and pieces[-1].startswith("--") and not word.startswith("--"):
            pieces[-1] += f" {word}"
        else:
            pieces.append(word)
    return pieces


def check_share(batch: int, device: str) -> None:
    """Refuse a batch that cannot be shared out, and a device that several processes cannot use."""
    size, gpus = collective.size(), torch.cuda.device_count()
    if size == 1:
        return
    if batch < size:
        raise UsageError(
            f"`batch` is {batch}, but there are {size} processes, and each needs an image of every batch. Raise it to "
            f"{size} or more, or start fewer processes."
        )
    if device.startswith("cuda") and (device != "cuda" or _local_rank() >= gpus):
        raise UsageError(
            f"Every process needs a GPU of its own; `device` is {device!r}, and this machine has {gpus}. Use "
            "`device=cuda` and start at most one process per GPU."
        )
    if device == "mps":
        raise UsageError("Several processes cannot share an MPS device. Use `device=cpu`, or start one process.")


def check_inputs(model: str = "", **images: ImageSet | None) -> None:
    """Refuse processes that see different files, and more processes than images.

    Args:
        model: its fingerprint.
    """
    if collective.size() == 1:
        return
    given = {name: one for name, one in images.items() if one is not None}
    seen = {"model": model} | {name: f"{len(one)} files, sha256 {list_hash(one)}" for name, one in given.items()}
    first, *others = collective.everyones(seen)
    for number, theirs in enumerate(others, 1):
        for name in seen:
            if theirs[name] != first[name]:
                raise DataError(
                    f"Process {number} of this run sees another `{name}` than process 0 ({theirs[name]}, not "
                    f"{first[name]}). All must see the same files. Is the folder shared between the machines?"
                )
    for name, one in given.items():
        if len(one) < collective.size():
            raise DataError(
                f"The run has more processes ({collective.size()}) than images in `{name}` ({len(one)} in {one.root}). "
                "Start fewer processes."
            )


def keep_in_step(method: Method) -> None:
    """Processes on unlike devices may round differently; where they did, all continue with what the first one has."""
    if collective.size() > 1 and len(set(collective.everyones(tensors_hash(part(method.state_dict(), "tuned"))))) > 1:
        method.load_state_dict(collective.from_first(method.state_dict))
