from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from dept.cli.main import main
from dept.models.files import adapter_meta, save_adapter, save_model
from dept.models.model import fingerprint
from dept.report.embedding import separation
from support import tiny_model, write_labelled


def test_separation_counts_neighbours_of_the_same_class() -> None:
    points = np.array([[0.0, 0.0], [0.1, 0.0], [5.0, 0.0], [5.2, 0.0], [5.1, 0.05]])
    assert separation(points, [0, 0, 1, 1, 1]) == 1.0
    assert separation(points, [0, 1, 1, 1, 1]) == pytest.approx(3 / 5)  # the first two are each other's neighbours


def test_a_panel_per_adapter(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    images = write_labelled(tmp_path / "images", 4)
    model = tiny_model()
    file = save_model(model, tmp_path / "model.safetensors")
    adapter = model.adapter.clone()
    adapter.meta = adapter_meta(model, backbone_sha256=fingerprint(model))
    saved = save_adapter(adapter, tmp_path / "site" / "adapter.safetensors")
    figure = tmp_path / "tsne.png"
    assert main(["bench", "tsne", str(file), str(images), "--adapters", str(saved), "--out", str(figure)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["images"] == 12 and list(found["nearest_neighbour_agrees"]) == ["source model", "adapted: site"]
    assert figure.read_bytes().startswith(b"\x89PNG")
