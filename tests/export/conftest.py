"""Tiny models and adapters as files, and their exports: made once, because converting to ONNX takes seconds."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from dept.core.adapter import Adapter, pick
from dept.export.write import Exported, export_model
from dept.models.files import adapter_meta, rest_hash, save_adapter, save_model
from dept.models.model import Model, fingerprint
from support import random_batch, scramble, spread_predictions, tiny_model, tiny_resnet


@dataclass(frozen=True)
class Site:
    """A model file and adapter files over it, by name."""

    model: Path
    adapters: dict[str, Path]


def save_site(root: Path, model: Model, **changed: dict[str, float]) -> Site:
    """`changed`: per adapter the tensors it holds, each the model's own times a number."""
    root.mkdir(parents=True)
    adapters = {}
    for name, factors in changed.items():
        tensors = {
            key: factor * tensor.detach() for key, tensor in pick(model, factors).items() for factor in [factors[key]]
        }
        meta = adapter_meta(model, backbone_sha256=fingerprint(model), rest_sha256=rest_hash(model, tensors))
        adapters[name] = save_adapter(Adapter(tensors, meta), root / name / "adapter.safetensors")
    return Site(save_model(model, root / "model.safetensors"), adapters)


@pytest.fixture
def onnxruntime() -> Any:
    """ONNX Runtime, if everything that makes an ONNX file is installed."""
    pytest.importorskip("onnx", reason="the extra onnx is not installed")
    pytest.importorskip("onnxscript", reason="the extra onnx is not installed")
    return pytest.importorskip("onnxruntime", reason="the extra onnx is not installed")


ALL = {"prompts": 2.0, "head.weight": -1.5, "head.bias": 0.5}


@pytest.fixture(scope="session")
def prompted(tmp_path_factory: pytest.TempPathFactory) -> Site:
    """A prompted ViT (a stage has a first, a middle and a last layer), with heads that only training uses."""
    model = tiny_model(stages=1, depth=3)
    model.add_projections(hidden=64, bottleneck=16, out=64)
    scramble(model)
    norms = {"backbone.norm.weight": 0.5, "backbone.norm.bias": 2.0}
    root = tmp_path_factory.mktemp("export") / "prompted"
    return save_site(root, model, attic=ALL, barn={"prompts": 3.0}, tent=norms)


@pytest.fixture(scope="session")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Site:
    """A ViT without prompts, and an adapter of its head."""
    model = tiny_model(stages=0, prompts=0, depth=2)
    scramble(model)
    return save_site(tmp_path_factory.mktemp("export") / "plain", model, attic={"head.weight": -2.0})


@pytest.fixture(scope="session")
def convnet(tmp_path_factory: pytest.TempPathFactory) -> Site:
    """A ConvNet with batch norm, and an adapter that changes its parameters and statistics."""
    model = tiny_resnet().train()
    with torch.no_grad():
        for seed in range(10):  # running statistics of its own
            model(random_batch("t", 16, seed=seed).views[0])
    spread_predictions(model.eval())
    names = [name for name, _ in model.named_parameters() if "bn" in name and name.endswith("weight")]
    names += [name for name, _ in model.named_buffers() if name.endswith("running_var")]
    return save_site(tmp_path_factory.mktemp("export") / "convnet", model, attic=dict.fromkeys(names, 1.2))


@pytest.fixture(scope="session")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Exports a site once for each set of arguments; returns the result and its folder."""
    done: dict[str, Exported] = {}

    def export(site: Site, out: str, *names: str, **settings: Any) -> Exported:
        key = f"{site.model} {out} {names} {settings}"
        if key not in done:
            file = tmp_path_factory.mktemp("exported") / out
            adapters = [site.adapters[name] for name in names]
            done[key] = export_model(site.model, out=file, adapters=adapters, **settings)
        return done[key]

    return export


def images(count: int, seed: int = 3) -> Tensor:
    return random_batch("t", count, seed=seed).views[0]
