"""The Python of the README runs as it stands, on a tiny model in place of the downloaded one."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

import dept
from support import CLASSES, TIMM, write_labelled, write_unlabelled

README = Path(__file__).parent.parent / "README.md"
NAMES = ("bus", "car", "truck")


def labelled(root: Path) -> None:
    """root/<class of the README>/<number>.png"""
    write_labelled(root, 4)
    for ours, theirs in zip(CLASSES, NAMES, strict=True):
        (root / ours).rename(root / theirs)


def test_the_python_snippet_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (snippet,) = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    labelled(tmp_path / "source")
    labelled(tmp_path / "labelled")
    for name in ("new_site", "images"):
        write_unlabelled(tmp_path / name, 4)
    create = dept.create_model

    def tiny(arch: str, classes: Any, *, pretrained: bool, **options: Any) -> dept.Model:
        assert pretrained
        return create(arch.split(".")[0], classes, **options, **TIMM)

    monkeypatch.setattr(dept, "create_model", tiny)
    for place in ("train", "auto"):  # a default run is long enough to learn something
        monkeypatch.setattr(f"dept.runs.{place}.LEAST_STEPS", 1)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"images": torch.randn(2, 3, 32, 32)}
    exec(compile(snippet, str(README), "exec"), names)
    assert names["logits"].shape == (2, 3) and names["model"].classes == NAMES
    assert "dept predict runs/source/model.safetensors" in capsys.readouterr().out
