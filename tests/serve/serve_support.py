"""Tiny models, adapters and servers for the tests of `dept.serve`."""

from __future__ import annotations

import io
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dept.core.adapter import Adapter
from dept.models.files import adapter_meta, read_model, rest_hash, save_adapter
from dept.serve.options import ServeOptions
from dept.serve.service import Service
from support import picture


def write_adapter(
    model_file: Path,
    file: Path,
    *,
    seed: int = 0,
    names: tuple[str, ...] = ("prompts", "head.weight"),
    scale: float = 0.5,
    **meta: Any,
) -> Path:
    """An adapter of the model with some tensors moved at random."""
    model, sha = read_model(model_file)
    generator = torch.Generator().manual_seed(seed)
    own = dict(model.named_parameters())
    tensors = {name: own[name].detach() + scale * torch.randn(own[name].shape, generator=generator) for name in names}
    made = adapter_meta(
        model, backbone_sha256=sha, rest_sha256=rest_hash(model, tensors), **({"method": "test", "images": 8} | meta)
    )
    return save_adapter(Adapter(tensors, made), file)


def png(colour: int = 0, seed: int = 0, **look: Any) -> bytes:
    buffer = io.BytesIO()
    picture(colour, np.random.default_rng(seed), **look).save(buffer, "PNG")
    return buffer.getvalue()


def service(model_file: Path, folder: Path, **settings: Any) -> Service:
    return Service(model_file, folder, ServeOptions(**({"no_auth": True, "device": "cpu", "rate": 0} | settings)))


def until(condition: Callable[[], Any], seconds: float = 60.0, poll: float = 0.02) -> Any:
    """Wait for something to become true; its value."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if found := condition():
            return found
        time.sleep(poll)
    raise AssertionError("It did not happen in time.")
