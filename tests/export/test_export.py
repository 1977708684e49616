"""Exported graphs: the model's logits, for any batch, in ONNX Runtime and in torch, and nothing but what is needed."""

from __future__ import annotations

import io
import json
import zipfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import dept
from dept.errors import DataError, DeptError, UsageError
from dept.export import formats, write
from dept.export.graph import Classifier, Graph, trace
from dept.export.write import Exported, domain_name, export_adapter, export_model
from dept.models.files import load, save_model
from support import CLASSES, tiny_model

from .conftest import ALL, Site, images, save_site

BATCHES = (1, 2, 5)
IN_ONNX = [("prompted", ("attic",)), ("plain", ()), ("convnet", ("attic",))]
IN_TORCH = [("prompted", ("attic",)), ("prompted", ("tent",)), ("plain", ())]
"""model, and the adapter that is baked in: prompts and head, norm layers of a prompted ViT, batch norm, or nothing"""


def session(runtime: Any, file: Path) -> Any:
    options = runtime.SessionOptions()
    options.log_severity_level = 3
    return runtime.InferenceSession(file, options, providers=["CPUExecutionProvider"])


def with_adapter(runtime: Any, file: Path) -> Any:
    """Run options in which an adapter file is active."""
    adapter, options = runtime.LoraAdapter(), runtime.RunOptions()
    adapter.Load(str(file))
    options.add_active_adapter(adapter)
    return options, adapter  # the caller keeps both alive


def expected(site: Site, *names: str, count: int) -> Tensor:
    """Logits of the model as dept loads it; different images have different ones, or a test would see nothing."""
    model = load(site.model, adapter=site.adapters[names[0]] if names else None)
    with torch.no_grad():
        logits: Tensor = model(images(count))
    assert count == 1 or float(logits.std(dim=0).min()) > 0.02
    return logits


def difference(found: Any, logits: Tensor) -> float:
    return float((torch.as_tensor(found) - logits).abs().max())


# ---- ONNX ----


@pytest.mark.parametrize(("name", "adapter"), IN_ONNX)
def test_onnx_runtime_has_the_logits(
    name: str, adapter: tuple[str, ...], onnxruntime: Any, exported: Any, request: pytest.FixtureRequest
) -> None:
    site = request.getfixturevalue(name)
    done: Exported = exported(site, "model.onnx", *adapter)
    run = session(onnxruntime, done.files[0])
    for count in BATCHES:
        logits = expected(site, *adapter, count=count)
        assert difference(run.run(None, {"images": images(count).numpy()})[0], logits) <= 1e-4
    if adapter:
        assert difference(expected(site, count=5), expected(site, *adapter, count=5)) > 1e-2
    assert done.difference <= 1e-4 and len(done.files) == 1


def test_one_graph_serves_all_domains(onnxruntime: Any, prompted: Site, exported: Any) -> None:
    done: Exported = exported(prompted, "all.onnx", "attic", "barn", adapter_inputs=True)
    assert [file.name for file in done.files] == ["all.onnx", "all-attic.onnx_adapter", "all-barn.onnx_adapter"]
    run = session(onnxruntime, done.files[0])
    assert [given.name for given in run.get_inputs()] == ["images"]  # the others are optional
    assert {given.name for given in run.get_overridable_initializers()} == set(ALL)
    for count in BATCHES:
        feeds = {"images": images(count).numpy()}
        assert difference(run.run(None, feeds)[0], expected(prompted, count=count)) <= 1e-4
        for name, file in zip(("attic", "barn"), done.files[1:], strict=True):
            options, _kept = with_adapter(onnxruntime, file)
            assert difference(run.run(None, feeds, options)[0], expected(prompted, name, count=count)) <= 1e-4
    version = onnxruntime.AdapterFormat.read_adapter(str(done.files[1])).get_model_version()
    assert version == run.get_modelmeta().version == done.graph.version != 0


def test_one_more_domain_for_a_graph(onnxruntime: Any, prompted: Site, exported: Any, tmp_path: Path) -> None:
    graph = exported(prompted, "all.onnx", "attic", "barn", adapter_inputs=True).files
    made = export_adapter(prompted.model, prompted.adapters["barn"], out=tmp_path / "new.onnx_adapter")
    assert made.read_bytes() == graph[2].read_bytes()


def test_the_onnx_graph_is_plain(onnxruntime: Any, prompted: Site, exported: Any) -> None:
    import onnx

    for settings in ({}, {"adapter_inputs": True}):
        names = ("attic", "barn") if settings else ("attic",)
        file = exported(prompted, "all.onnx" if settings else "model.onnx", *names, **settings).files[0]
        proto = onnx.load(file)
        assert {node.op_type for node in proto.graph.node}.isdisjoint({"If", "Loop", "Scan", "SequenceMap"})
        assert not proto.functions and {opset.domain for opset in proto.opset_import} == {""}
        for value in (proto.graph.input[0], proto.graph.output[0]):
            assert value.type.tensor_type.shape.dim[0].dim_param == "batch"
        assert not any("projections" in tensor.name for tensor in proto.graph.initializer)
        assert str(Path(dept.__file__).parent).encode() not in file.read_bytes() and b".py" not in file.read_bytes()


def test_onnx_metadata(onnxruntime: Any, prompted: Site, exported: Any) -> None:
    run = session(onnxruntime, exported(prompted, "model.onnx", "attic").files[0])
    meta = json.loads(run.get_modelmeta().custom_metadata_map["dept"])
    card = load(prompted.model).card
    assert meta["classes"] == list(CLASSES) and meta["adapter"] == "attic" and meta["adapter_inputs"] == []
    assert meta["preprocess"] == json.loads(json.dumps(asdict(card.preprocess)))


def test_an_onnx_file_has_an_end(
    onnxruntime: Any, plain: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(formats, "LARGEST_ONNX", 1000)
    with pytest.raises(UsageError, match=r"GiB of weights, and an ONNX file holds 2. Use an `out` in .pt2"):
        export_model(plain.model, out=tmp_path / "m.onnx")
    assert not list(tmp_path.iterdir())


# ---- torch.export ----


@pytest.mark.parametrize(("name", "adapter"), IN_TORCH)
def test_torch_has_the_logits(
    name: str, adapter: tuple[str, ...], exported: Any, request: pytest.FixtureRequest
) -> None:
    site = request.getfixturevalue(name)
    module = torch.export.load(exported(site, "model.pt2", *adapter).files[0]).module()
    for count in BATCHES:
        assert difference(module(images(count)), expected(site, *adapter, count=count)) <= 1e-5


def test_one_pt2_graph_serves_all_domains(prompted: Site, exported: Any) -> None:
    files = exported(prompted, "all.pt2", "attic", "barn", adapter_inputs=True).files
    assert [file.name for file in files] == ["all.pt2", "all-attic.safetensors", "all-barn.safetensors"]
    module = torch.export.load(files[0]).module()
    for name, file in zip(("attic", "barn"), files[1:], strict=True):
        for count in BATCHES:
            assert difference(module(images(count), load_file(file)), expected(prompted, name, count=count)) <= 1e-5
        # An adapter of dept all the same.
        model = load(prompted.model, adapter=file)
        assert difference(model(images(2)).detach(), expected(prompted, name, count=2)) == 0


def test_the_pt2_graph_is_plain(prompted: Site, exported: Any) -> None:
    file = exported(prompted, "model.pt2", "attic").files[0]
    program = torch.export.load(file)
    calls = {str(node.target) for node in program.graph.nodes if node.op == "call_function"}
    assert all(call.startswith("aten.") or "getitem" in call for call in calls), calls  # no control flow, no scopes
    assert not any("projections" in name for name in program.state_dict)
    with zipfile.ZipFile(io.BytesIO(file.read_bytes())) as archive:
        assert not any(str(Path(dept.__file__).parent).encode() in archive.read(name) for name in archive.namelist())


def test_pt2_metadata(prompted: Site, exported: Any) -> None:
    extra = {"dept.json": ""}
    torch.export.load(exported(prompted, "model.pt2", "attic").files[0], extra_files=extra)
    meta = json.loads(extra["dept.json"])
    assert meta["classes"] == list(CLASSES) and meta["preprocess"]["rule"] == "squash" and meta["adapter"] == "attic"


def test_the_same_export_has_the_same_bytes(plain: Site, exported: Any, tmp_path: Path) -> None:
    again = export_model(plain.model, out=tmp_path / "model.pt2").files[0]
    assert again.read_bytes() == exported(plain, "model.pt2").files[0].read_bytes()


# ---- adapters as inputs ----


def test_prompts_of_adapters_over_a_plain_model(tmp_path: Path) -> None:
    base = tiny_model(stages=0, prompts=0, depth=2)
    site = save_site(tmp_path / "site", base)
    model = base.with_prompts(1, 2)
    site.adapters.update(save_site(tmp_path / "more", model, one=ALL, two=ALL | {"prompts": 5.0}).adapters)
    files = [site.adapters["one"], site.adapters["two"]]
    done = export_model(site.model, out=tmp_path / "all.pt2", adapters=files, adapter_inputs=True)
    assert done.graph.meta["adapter"] == "one"  # the plain model has no prompts that could be the default
    module = torch.export.load(tmp_path / "all.pt2").module()
    for name in ("one", "two"):
        logits = load(site.model, adapter=site.adapters[name])(images(3)).detach()
        assert difference(module(images(3), load_file(tmp_path / f"all-{name}.safetensors")), logits) <= 1e-5


def test_head_adapters_of_a_model_without_prompts(plain: Site, tmp_path: Path) -> None:
    files = [plain.adapters["attic"]]
    done = export_model(plain.model, out=tmp_path / "all.pt2", adapters=files, adapter_inputs=True)
    assert done.graph.meta["adapter_inputs"] == ["head.bias", "head.weight"] and done.graph.meta["adapter"] is None
    module = torch.export.load(tmp_path / "all.pt2").module()
    found = module(images(2), load_file(tmp_path / "all-attic.safetensors"))
    assert difference(found, expected(plain, "attic", count=2)) <= 1e-5


def test_only_prompts_and_head_can_be_inputs(prompted: Site, convnet: Site, tmp_path: Path) -> None:
    for site, name in ((prompted, "tent"), (convnet, "attic")):
        with pytest.raises(UsageError, match=r"changes the backbone \(\d+ tensors, .* export this adapter baked in"):
            export_model(site.model, out=tmp_path / "m.pt2", adapters=[site.adapters[name]], adapter_inputs=True)
    with pytest.raises(UsageError, match="changes the backbone"):
        export_adapter(prompted.model, prompted.adapters["tent"], out=tmp_path / "a.safetensors")
    assert not list(tmp_path.iterdir())


def test_prompts_of_one_shape(tmp_path: Path) -> None:
    base = tiny_model(stages=0, prompts=0, depth=2)
    few = save_site(tmp_path / "few", base.with_prompts(1, 2), few=ALL).adapters["few"]
    many = save_site(tmp_path / "many", base.with_prompts(2, 3), many=ALL).adapters["many"]
    file = save_model(base, tmp_path / "m.safetensors")
    with pytest.raises(UsageError, match=r"different shapes, .*few.* \(1, 2, 32\), .*many.* \(2, 3, 32\)"):
        export_model(file, out=tmp_path / "m.pt2", adapters=[few, many], adapter_inputs=True)


def test_names_of_domains(prompted: Site, tmp_path: Path) -> None:
    assert domain_name(Path("runs/site/adapter.safetensors")) == "site"
    assert domain_name(Path("adapters/hall.safetensors")) == "hall"
    twin = tmp_path / "attic.safetensors"
    twin.write_bytes(prompted.adapters["attic"].read_bytes())
    adapters = [prompted.adapters["attic"], twin]
    with pytest.raises(UsageError, match=r"Two adapters would be called 'attic': .*adapter.safetensors and .*attic"):
        export_model(prompted.model, out=tmp_path / "m.pt2", adapters=adapters, adapter_inputs=True)


# ---- what is refused, and that nothing is written then ----


def test_other_adapters_are_refused(prompted: Site, plain: Site, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="was made for another backbone"):
        export_model(prompted.model, out=tmp_path / "m.pt2", adapters=[plain.adapters["attic"]])
    assert not list(tmp_path.iterdir())


@pytest.fixture
def wrong(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Exports take no time: the file is empty, and its logits are the model's plus the number in the list."""
    off = [0.0]

    def trace_nothing(graph: Graph) -> Graph:
        return graph

    def runner(data: bytes) -> formats.Run:
        return lambda images, adapter: made[0].module(images) + off[0]

    def make(program: Any, graph: Graph) -> bytes:
        made.append(graph)
        return b""

    made: list[Graph] = []
    monkeypatch.setattr(write, "trace", trace_nothing)
    monkeypatch.setitem(write.FORMATS, ".pt2", (make, runner))
    return off


@pytest.mark.parametrize("value", [1e-3, float("nan")])
def test_a_graph_with_other_logits_is_not_written(
    value: float, wrong: list[float], plain: Site, tmp_path: Path
) -> None:
    wrong[0] = value
    with pytest.raises(DeptError, match=r"is not the model: its logits differ by .* Nothing was written"):
        export_model(plain.model, out=tmp_path / "m.pt2")
    assert not list(tmp_path.iterdir())
    wrong[0] = 1e-5
    assert export_model(plain.model, out=tmp_path / "m.pt2").difference == pytest.approx(1e-5, rel=0.1)


@pytest.mark.usefixtures("wrong")
def test_a_failed_write_leaves_nothing(plain: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("dept.io.os.fsync", full)
    with pytest.raises(DataError, match="could not be written"):
        export_model(plain.model, out=tmp_path / "m.pt2")
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("wrong")
def test_grey_models(tmp_path: Path) -> None:
    save_model(tiny_model(stages=1, prompts=2, depth=1, in_chans=1), tmp_path / "m.safetensors")
    done = export_model(tmp_path / "m.safetensors", out=tmp_path / "m.pt2")
    assert done.graph.image == (1, 32, 32) and len(done.graph.meta["preprocess"]["mean"]) == 1


def test_a_branch_on_data_is_a_sentence(plain: Site) -> None:
    class Branching(nn.Module):
        def forward(self, images: Tensor, adapter: None) -> Tensor:
            return images.mean(dim=(1, 2)) if images.sum() > 0 else images.amax(dim=(1, 2))

    graph = Graph(Classifier(Branching()), (3, 32, 32), {"arch": "odd_net"}, {})  # type: ignore[arg-type]
    with pytest.raises(DeptError, match=r"torch.export cannot trace 'odd_net': \S"):
        trace(graph)


@pytest.mark.parametrize("package", ["onnx", "onnxscript", "onnxruntime"])
@pytest.mark.parametrize("target", [{"out": "m.onnx"}, {"triton": "folder"}])
def test_the_missing_extra_is_named_first(
    package: str, target: dict[str, str], plain: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(formats, "find_spec", lambda name: None if name == package else name)
    monkeypatch.setattr(write, "read_model", None)  # not read in vain
    places = {key: tmp_path / value for key, value in target.items()}
    with pytest.raises(UsageError, match=rf"^{package} is not installed. .*: pip install 'dept\[onnx\]'$"):
        export_model(plain.model, **places)
    with pytest.raises(UsageError, match=r"pip install 'dept\[onnx\]'$"):
        export_adapter(plain.model, plain.adapters["attic"], out=tmp_path / "a.onnx_adapter")
