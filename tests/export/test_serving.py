"""Files that others serve: the example without torch, and the folder of a Triton server."""

from __future__ import annotations

import ast
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from dept.data import views
from dept.data.decoding import upright
from dept.data.loader import normalised
from dept.errors import UsageError
from dept.export.graph import Classifier, Graph
from dept.export.triton import check_triton, config, write_triton
from dept.export.write import export_adapter
from dept.inference import predict
from dept.models.files import load
from support import CLASSES, tiny_model, write_unlabelled

from .conftest import Site, images

ROOT = Path(__file__).parents[2]
EXAMPLE, GUIDE = ROOT / "examples" / "09_export_and_serve.py", ROOT / "docs" / "export.md"
WITHOUT_TORCH = """
import runpy, sys
sys.modules |= dict.fromkeys(["torch", "torchvision", "timm", "dept", "onnx", "safetensors"])  # importing them fails
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0])
"""

# ---- the example ----


def serve(*words: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", WITHOUT_TORCH, str(EXAMPLE), *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


@pytest.mark.usefixtures("onnxruntime")
def test_the_example_predicts_as_dept_does(prompted: Site, exported: Any, tmp_path: Path) -> None:
    graph, adapter, _ = exported(prompted, "all.onnx", "attic", "barn", adapter_inputs=True).files
    root = write_unlabelled(tmp_path / "images", 18)  # more than a batch
    turned = Image.Exif()
    turned[0x0112] = 6
    Image.open(root / "img000.png").resize((50, 30)).save(root / "turned.jpg", exif=turned)
    Image.open(root / "img000.png").convert("L").save(root / "grey.png")
    for words, file in (([], None), (["--adapter", adapter], prompted.adapters["attic"])):
        rows = predict(load(prompted.model, adapter=file), root, device="cpu")
        done = serve(graph, *words, *(root / row.path for row in rows))
        assert done.returncode == 0 and done.stderr == ""
        lines = done.stdout.splitlines()
        assert len(lines) == len(rows) == 20
        for line, row in zip(lines, rows, strict=True):
            path, label, confidence = re.fullmatch(r"(.*): (\w+) \((.*)\)", line).groups()  # type: ignore[union-attr]
            assert (path, label) == (str(root / row.path), row.label)
            assert float(confidence) == pytest.approx(row.confidence, abs=2e-4)


@pytest.mark.usefixtures("onnxruntime")
def test_the_example_refuses_an_adapter_of_another_model(
    prompted: Site, plain: Site, exported: Any, tmp_path: Path
) -> None:
    graph = exported(prompted, "all.onnx", "attic", "barn", adapter_inputs=True).files[0]
    other = export_adapter(plain.model, plain.adapters["attic"], out=tmp_path / "other.onnx_adapter")
    done = serve(graph, "--adapter", other, "image.png")
    assert done.returncode == 1 and "belongs to another model" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize("rule", ["squash", "shorter", "none"])
@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize("channels", [1, 3])
def test_the_example_preprocesses_as_dept_does(rule: Any, interpolation: Any, channels: int, tmp_path: Path) -> None:
    tree = ast.parse(EXAMPLE.read_text())
    tree.body = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom | ast.FunctionDef)]
    tree.body = [node for node in tree.body if "onnxruntime" not in ast.unparse(node)]
    names: dict[str, Any] = {}
    exec(compile(tree, str(EXAMPLE), "exec"), names)
    pre = views.Preprocess(32, 37, rule, interpolation, (0.4, 0.5, 0.6)[:channels], (0.2, 0.25, 0.3)[:channels])
    rng = np.random.default_rng(0)
    for size in ((40, 40), (61, 45), (33, 90), (20, 24)):
        Image.fromarray(rng.integers(0, 256, (*size, 3), dtype=np.uint8)).save(tmp_path / "i.png")
        view = np.array(views.test_view(upright(Image.open(tmp_path / "i.png"), channels), pre)).reshape(
            1, 32, 32, channels
        )
        stored = json.loads(json.dumps(vars(pre)))  # tuples become lists
        found = names["preprocess"](tmp_path / "i.png", **stored)
        assert found.dtype == np.float32
        assert np.abs(found - normalised(torch.from_numpy(view), pre)[0].numpy()).max() < 1e-6


def test_the_example_is_short() -> None:
    assert len(EXAMPLE.read_text().splitlines()) < 60


@pytest.mark.usefixtures("onnxruntime")
def test_the_python_of_the_guide_runs(
    prompted: Site, exported: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    both = ("attic", "barn")
    for kind, ending in ((".onnx", ".onnx_adapter"), (".pt2", ".safetensors")):
        graph, adapter, _ = exported(prompted, f"all{kind}", *both, adapter_inputs=True).files
        shutil.copy(graph, f"all{kind}")
        shutil.copy(graph, f"site{kind}")
        shutil.copy(adapter, f"all-site{ending}")
    for file, place in ((prompted.model, "runs/source"), (prompted.adapters["attic"], "runs/site")):
        Path(place).mkdir(parents=True)
        shutil.copy(file, place)
    given = images(3)
    names: dict[str, Any] = {"images": given.numpy()}
    logits = load(prompted.model, adapter=prompted.adapters["attic"])(given).detach()
    for snippet in re.findall(r"```python\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL):
        exec(compile(snippet, str(GUIDE), "exec"), names)
        if "logits = " in snippet or "(logits,) = " in snippet:
            assert float((torch.as_tensor(names["logits"]) - logits).abs().max()) <= 1e-4
    assert names["meta"]["classes"] == list(CLASSES) and "hall.pt2" in capsys.readouterr().out


# ---- Triton ----


def small_graph(classes: list[str]) -> Graph:
    meta = {"kind": "graph", "arch": "a", "classes": classes, "preprocess": {"size": 32}, "backbone_sha256": "0" * 64}
    return Graph(Classifier(tiny_model(depth=2)), (3, 32, 32), meta, {})


def parsed(text: str) -> Any:
    """The text as the part of Triton's ModelConfig that we use (same names and types as in model_config.proto)."""
    pytest.importorskip("google.protobuf", reason="the extra onnx is not installed")
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format

    file = descriptor_pb2.FileDescriptorProto(name="part.proto", package="part", syntax="proto3")
    string, int32, int64, message, enum = 9, 5, 3, 11, 14

    def add(name: str, /, **fields: tuple[int, bool, str]) -> Any:
        made = file.message_type.add(name=name)
        for number, (field, (kind, several, of)) in enumerate(fields.items(), 1):
            made.field.add(name=field, number=number, type=kind, label=3 if several else 1, type_name=of or None)
        return made

    file.enum_type.add(name="DataType").value.add(name="TYPE_FP32", number=0)
    tensor = {"name": (string, False, ""), "data_type": (enum, False, ".part.DataType"), "dims": (int64, True, "")}
    add("Input", **tensor)
    add("Output", **tensor, label_filename=(string, False, ""))
    add("Parameter", string_value=(string, False, ""))
    add("Batching")
    whole = add(
        "ModelConfig",
        backend=(string, False, ""),
        max_batch_size=(int32, False, ""),
        dynamic_batching=(message, False, ".part.Batching"),
        input=(message, True, ".part.Input"),
        output=(message, True, ".part.Output"),
        parameters=(message, True, ".part.ModelConfig.ParametersEntry"),
    )
    entry = whole.nested_type.add(name="ParametersEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=string, label=1)
    entry.field.add(name="value", number=2, type=message, label=1, type_name=".part.Parameter")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    kind = message_factory.GetMessageClass(pool.FindMessageTypeByName("part.ModelConfig"))
    return text_format.Parse(text, kind())


def test_the_config_is_what_triton_reads() -> None:
    classes = ["ant", 'a "b" \\', "naïve\n", "\udcff"]
    graph = small_graph(classes)
    found = parsed(config(graph))
    assert found.backend == "onnxruntime" and found.max_batch_size == 64 and found.HasField("dynamic_batching")
    (given,), (output,) = found.input, found.output
    assert (given.name, list(given.dims)) == ("images", [3, 32, 32])
    assert (output.name, list(output.dims), output.label_filename) == ("logits", [4], "labels.txt")
    assert json.loads(found.parameters["dept"].string_value) == graph.meta


def test_the_folder_of_triton(tmp_path: Path) -> None:
    folder = tmp_path / "models" / "site"
    check_triton(folder)
    write_triton(folder, b"graph", small_graph(["one", "two\nlines", "\udcff"]))
    assert sorted(str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file()) == [
        "1/model.onnx", "config.pbtxt", "labels.txt",
    ]  # fmt: skip
    assert (folder / "1" / "model.onnx").read_bytes() == b"graph"
    assert (folder / "labels.txt").read_bytes() == b"one\ntwo lines\n\xff\n"  # one line for each class
    with pytest.raises(UsageError, match="is not empty and is not replaced"):
        check_triton(folder)
