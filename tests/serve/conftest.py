from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from serve_support import service, write_adapter

from dept.models.files import save_model
from dept.serve.api import create_app
from support import spread_predictions, tiny_model


@pytest.fixture(scope="session")
def model_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny ViT with prompts whose predictions differ from image to image."""
    return save_model(spread_predictions(tiny_model()), tmp_path_factory.mktemp("serve") / "model.safetensors")


@pytest.fixture(scope="session")
def adapters(model_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three adapters: a.safetensors, b.safetensors (prompts and head) and norms.safetensors (the backbone)."""
    folder = tmp_path_factory.mktemp("adapters")
    write_adapter(model_file, folder / "a.safetensors", seed=1)
    write_adapter(model_file, folder / "b.safetensors", seed=2)
    write_adapter(
        model_file, folder / "norms.safetensors", seed=3, names=("backbone.norm.weight", "backbone.norm.bias")
    )
    return folder


@pytest.fixture
def pool_folder(adapters: Path, tmp_path: Path) -> Path:
    """A folder that a server adopts: domains a, b and norms."""
    folder = tmp_path / "pool"
    folder.mkdir()
    for file in adapters.glob("*.safetensors"):
        (folder / file.name).write_bytes(file.read_bytes())
    return folder


@pytest.fixture
def client(model_file: Path, pool_folder: Path) -> Iterator[TestClient]:
    """A server without tokens on the folder."""
    app = create_app(service(model_file, pool_folder, poll=0.05))
    with TestClient(app, base_url="http://127.0.0.1") as opened:
        yield opened
