"""Functions run in several processes at once, which work together over gloo."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import multiprocessing

from dept.core import collective


def run_together(function: Callable[..., Any], size: int, folder: Path, *args: Any) -> list[Any]:
    """What each of `size` processes returns; `function` must be importable."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.iterdir():
        old.unlink()
    multiprocessing.spawn(_process, (size, folder, function, args), nprocs=size)
    return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(size)]


def _process(rank: int, size: int, folder: Path, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", init_method=f"file://{folder / 'store'}", rank=rank, world_size=size)
    with collective.together(dist.group.WORLD):
        torch.save(function(*args), folder / f"{rank}.pt")
    dist.destroy_process_group()
