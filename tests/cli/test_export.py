"""`dept export` as a user types it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from dept.cli.main import main
from dept.core.adapter import Adapter
from dept.models.files import adapter_meta, load_model, rest_hash, save_adapter, save_model
from dept.models.model import fingerprint
from support import tiny_model


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder: model.safetensors, and a/adapter.safetensors and b/adapter.safetensors for it."""
    monkeypatch.chdir(tmp_path)
    model = tiny_model(stages=1, prompts=2, depth=1)
    save_model(model, "model.safetensors")
    for name in ("a", "b"):
        adapter = Adapter.of(model, ["prompts", "head.weight", "head.bias"])
        hashes = {"backbone_sha256": fingerprint(model), "rest_sha256": rest_hash(model, adapter.tensors)}
        adapter.meta = adapter_meta(model, **hashes)
        save_adapter(adapter, f"{name}/adapter.safetensors")
    return tmp_path


A, B = "a/adapter.safetensors", "b/adapter.safetensors"


def export(*words: str) -> int:
    return main(["export", "model.safetensors", *words])


def test_onnx_and_triton(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for package in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(package, reason="the extra onnx is not installed")
    assert export("--adapter", A, "--out", "out/a.onnx", "--triton", "models/my site") == 0
    out, err = capsys.readouterr()
    assert out.startswith("out/a.onnx (") and "images (batch, 3, 32, 32) -> logits (batch, 3)" in out
    assert "Largest difference from the model's logits: " in out
    assert out.splitlines()[-2] == "Next:  python examples/09_export_and_serve.py out/a.onnx IMAGE…"
    assert out.splitlines()[-1] == f"Next:  tritonserver --model-repository {site / 'models'}"
    assert err.splitlines()[0] == "Tracing vit_tiny_patch16_224" and len(err.splitlines()) == 2
    assert (site / "models/my site/1/model.onnx").read_bytes() == (site / "out/a.onnx").read_bytes()


@pytest.mark.parametrize("adapters", [["--adapter", A, B], ["--adapter", A, "--adapter", B]])
def test_several_adapters(adapters: list[str], site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert export(*adapters, "--adapter-inputs", "--out", "all.pt2") == 0
    assert {file.name for file in site.glob("all*")} == {"all.pt2", "all-a.safetensors", "all-b.safetensors"}
    text = capsys.readouterr().out
    assert "Adapter inputs: head.bias (3,), head.weight (3, 32), prompts (1, 2, 32)" in text
    assert "defaults" not in text  # which only an ONNX graph has
    assert export("--adapter", B, "--out", "more.safetensors") == 0  # for the same graph, later
    assert (site / "more.safetensors").read_bytes() == (site / "all-b.safetensors").read_bytes()
    assert "exported with --adapter-inputs" in capsys.readouterr().out


@pytest.fixture
def _no_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dept.export.write.trace", None)
    monkeypatch.setattr("dept.export.formats.find_spec", lambda name: name)


def refused(capsys: pytest.CaptureFixture[str], *words: str, code: int = 2) -> str:
    """The sentence of an export that must fail before it traces anything; no file appears or changes."""
    here = Path()
    before = {file: file.read_bytes() for file in here.rglob("*") if file.is_file()}
    assert export(*words) == code
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("dept: ") and len(err.splitlines()) == 1
    assert before == {file: file.read_bytes() for file in here.rglob("*") if file.is_file()}
    return err


@pytest.mark.usefixtures("_no_work", "site")
def test_requests_that_make_no_sense(capsys: pytest.CaptureFixture[str]) -> None:
    assert "Nothing to write: give --out (a file), --triton (a folder), or both." in refused(capsys)
    assert "--out must end in .onnx or .pt2" in refused(capsys, "--out", "model.tflite")
    assert "--out must end in .onnx or .pt2" in refused(capsys, "--out", "model")
    assert "2 adapters cannot be baked into one graph. Use --adapter-inputs" in refused(
        capsys, "--adapter", A, B, "--out", "m.onnx"
    )
    assert "--triton and --adapter-inputs exclude each other" in refused(capsys, "--adapter-inputs", "--triton", "t")
    for words in ([], ["--adapter", A, B], ["--adapter", A, "--triton", "t"]):
        assert "needs exactly one --adapter and no --triton" in refused(capsys, *words, "--out", "m.onnx_adapter")


@pytest.mark.usefixtures("_no_work")
def test_nothing_is_replaced(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (site / "mine.onnx").write_text("mine")
    (site / "all-b.onnx_adapter").write_text("mine")
    (site / "folder.onnx").mkdir()
    os.link(site / "model.safetensors", site / "link.onnx")
    assert "mine.onnx already exists and is not replaced" in refused(capsys, "--out", "mine.onnx")
    assert "link.onnx is an input and is not replaced" in refused(capsys, "--out", "link.onnx")
    words = ["--adapter", A, B, "--adapter-inputs", "--out"]
    assert "all-b.onnx_adapter already exists" in refused(capsys, *words, "all.onnx")
    assert "is a folder. --out must be the name of a file" in refused(capsys, "--out", "folder.onnx")
    assert "a is not empty and is not replaced. Choose another --triton." in refused(capsys, "--triton", "a")
    assert "is an input and is not replaced" in refused(capsys, "--adapter", A, "--out", A)


@pytest.mark.usefixtures("_no_work", "site")
def test_places_that_cannot_be_written(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert "model.safetensors is a file, not a folder" in refused(capsys, "--out", "model.safetensors/m.onnx")
    assert "is a file, not a folder. Choose another --triton" in refused(capsys, "--triton", "model.safetensors/t")
    monkeypatch.setattr("dept.io.os.access", lambda *_: False)  # root may write everywhere
    assert "is not writable. Choose another --out." in refused(capsys, "--out", "new/m.onnx")
    assert "is not writable. Choose another --triton." in refused(capsys, "--triton", "new/t")


@pytest.mark.usefixtures("_no_work")
def test_files_that_do_not_fit(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "nope.safetensors does not exist" in refused(
        capsys, "--adapter", "nope.safetensors", "--out", "m.pt2", code=3
    )
    said = refused(capsys, "--adapter", "model.safetensors", "--out", "m.pt2", code=3)
    assert "model.safetensors is a dept model file" in said
    other = tiny_model(stages=1, prompts=2, depth=1, seed=1)
    shutil.move("model.safetensors", "first.safetensors")
    save_model(other, "model.safetensors")
    assert load_model("model.safetensors").classes == other.classes
    assert "was made for another backbone" in refused(capsys, "--adapter", A, "--out", "m.pt2", code=3)
