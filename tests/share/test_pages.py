"""docs/share.md, docs/integrations.md and docs/convert.md, block by block; hub and other tools are stand-ins."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
import timm
import torch
from torchvision.models.vision_transformer import VisionTransformer

import dept
from dept.cli.main import main
from dept.runs import auto
from dept.runs.train import TrainRun
from doc_world import World
from fake_hub import FakeHub
from foreign_models import config_of, folder, vit_tensors
from support import CLASSES, TIMM


@pytest.fixture
def place(
    source_run: TrainRun, target_images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> dict[str, MagicMock]:
    """A folder with what the pages speak of; returns the stand-ins by name."""
    monkeypatch.chdir(tmp_path)
    for name in ("images", "new_site"):
        shutil.copytree(target_images, name)
    shutil.copytree(source_run.folder, "runs/source")
    source = "runs/source/model.safetensors"
    dept.adapt(source, "new_site", out="runs/site", method="neo", accept=True, device="cpu")
    shutil.copy(source, "model.safetensors")
    shutil.copy("runs/site/adapter.safetensors", "adapter.safetensors")
    FakeHub(tmp_path / "hub", monkeypatch)
    assert main(["push", "runs/source", "hf-hub:me/source"]) == 0
    monkeypatch.setattr(auto, "LEAST_STEPS", 1)
    monkeypatch.setattr(auto, "EPOCHS", 1)
    tools = {name: MagicMock() for name in ("fiftyone", "wandb")}
    for name, tool in tools.items():
        monkeypatch.setitem(sys.modules, name, tool)
    return tools


def run_page(name: str) -> dict[str, Any]:
    """Run the blocks in their order; returns what the Python has named."""
    return World(Path.cwd()).run_page(f"docs/{name}", test="tests/share/test_pages.py")


def test_share(place: dict[str, MagicMock]) -> None:
    names = run_page("share.md")
    assert names["model"].classes == dept.load("model.safetensors").classes
    assert sorted(path.name for path in Path("to_publish").iterdir()) == ["README.md", "adapter.safetensors"]


def test_integrations(place: dict[str, MagicMock]) -> None:
    names = run_page("integrations.md")
    assert names["labels"].shape == (10,) and names["probabilities"].shape == (10, 3)
    assert Path("for_fiftyone/samples.json").is_file() and Path("for_label_studio/label_studio.xml").is_file()
    place["fiftyone"].Dataset.from_dir.assert_called_once()
    assert place["wandb"].init.call_count == place["wandb"].finish.call_count >= 2 and place["wandb"].log.called


def test_convert(place: dict[str, MagicMock], monkeypatch: pytest.MonkeyPatch) -> None:
    """Every kind of checkpoint that the page names."""
    monkeypatch.setattr("foreign_models.LAYERS", 4)  # as many as prompts have stages
    config = config_of("vit", num_hidden_layers=4, id2label=dict(enumerate(CLASSES)))
    for where in ("my_vit", "hub/google/vit-base-patch16-224"):
        folder(Path(where), vit_tensors(), config)
    torch.save(VisionTransformer(32, 8, 2, 1, 64, 96, num_classes=3).state_dict(), "vit_b_16.pth")
    own = timm.create_model("vit_tiny_patch16_224", num_classes=3, **TIMM | {"embed_dim": 64, "num_heads": 1})
    torch.save({"state_dict": {f"model.net.{n}": t for n, t in own.state_dict().items()}}, "last.ckpt")
    torch.save(timm.create_model("vit_small_patch16_dinov3", num_classes=3).state_dict(), "dinov3.pth")
    Path("classes.txt").write_text("\n".join(CLASSES))
    Path("model.safetensors").unlink()
    shutil.rmtree("runs/site")
    run_page("convert.md")
    for name in ("model", "hub", "vit", "own", "dinov3"):
        assert dept.load(f"{name}.safetensors").classes == CLASSES
