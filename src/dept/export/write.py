"""`export_model`, `export_adapter`: a model file and its adapters -> files that other programs serve."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from torch import nn

from dept._version import __version__
from dept.core.adapter import Adapter
from dept.core.vit import adapter_names
from dept.errors import UsageError
from dept.export.formats import onnx_adapter, onnx_file, pt2_file, require_onnx, run_onnx, run_pt2
from dept.export.graph import Classifier, Graph, Tensors, check, model_version, trace
from dept.export.triton import check_triton, write_triton
from dept.io import check_output, write_atomic
from dept.models.files import apply_adapter, load_adapter, read_model, rest_hash, save_adapter
from dept.models.model import Model

FORMATS = {".onnx": (onnx_file, run_onnx), ".pt2": (pt2_file, run_pt2)}
"""ending of a graph -> what makes the file, and what runs it"""
ADAPTERS = {".onnx": ".onnx_adapter", ".pt2": ".safetensors"}
"""ending of a graph -> ending of its adapters"""

progress = logging.getLogger("dept.progress")


@dataclass(frozen=True)
class Exported:
    """A graph that was written."""

    graph: Graph
    files: tuple[Path, ...]
    """graph, adapters, files of the Triton folder"""
    difference: float
    """largest difference between the logits of the files and the model's, on random images"""


def export_model(
    model: str | Path,
    *,
    out: str | Path | None = None,
    adapters: Sequence[str | Path] = (),
    adapter_inputs: bool = False,
    triton: str | Path | None = None,
) -> Exported:
    """Write a model for other programs, and check that its logits are the same there.

    Args:
        out: the graph, .onnx or .pt2.
        adapters: adapter files of the model. One is baked into the graph.
        adapter_inputs: prompts and head are inputs of the graph instead. Each adapter becomes a file beside `out`.
        triton: a model folder to write for NVIDIA Triton.
    """
    source, paths = Path(model), [Path(path) for path in adapters]
    out, triton = (None if path is None else Path(path) for path in (out, triton))
    _check_request(out, triton, len(paths), adapter_inputs)
    beside = _beside(out, paths) if out is not None and adapter_inputs else {}
    for target in [*beside.values(), *([] if out is None else [out])]:
        check_output(target, source, *paths, keep=Path.exists)
    if triton is not None:
        check_triton(triton)
    if triton is not None or (out is not None and out.suffix == ".onnx"):
        require_onnx()

    loaded, sha = read_model(source)
    found = {path: load_adapter(path, loaded, backbone_sha256=sha) for path in paths}
    if adapter_inputs:
        found = {path: _completed(loaded, path, adapter) for path, adapter in found.items()}
        graph = _graph_with_inputs(loaded, sha, found)
    else:
        built = apply_adapter(loaded, found[paths[0]]) if paths else loaded
        graph = _graph(built, sha, inputs={}, adapter=domain_name(paths[0]) if paths else None)
    kinds = {*([] if out is None else [out.suffix]), *([] if triton is None else [".onnx"])}
    made, difference = _make(graph, kinds, list(found.values()) if adapter_inputs else [])

    files = []
    if out is not None:
        write_atomic(out, made[out.suffix])
        files.append(out)
    for path, file in beside.items():
        _write_adapter(file, found[path], sha, graph.meta["classes"])
        files.append(file)
    if triton is not None:
        files += write_triton(triton, made[".onnx"], graph)
    return Exported(graph, tuple(files), difference)


def export_adapter(model: str | Path, adapter: str | Path, *, out: str | Path) -> Path:
    """Write one more adapter for a graph that was exported with `adapter_inputs`.

    Args:
        out: .onnx_adapter for an ONNX graph, .safetensors for a .pt2 graph.
    """
    source, path, out = Path(model), Path(adapter), Path(out)
    check_output(out, source, path, keep=Path.exists)
    if out.suffix not in ADAPTERS.values():
        raise UsageError(f"`out` must end in .onnx_adapter or .safetensors for an adapter, found {out}.")
    if out.suffix == ".onnx_adapter":
        require_onnx()
    loaded, sha = read_model(source)
    completed = _completed(loaded, path, load_adapter(path, loaded, backbone_sha256=sha))
    _write_adapter(out, completed, sha, loaded.classes)
    return out


def domain_name(adapter: Path) -> str:
    """What a domain is called: its file, or its folder if that is a run, where every adapter has the same name."""
    return adapter.stem if adapter.stem != "adapter" else adapter.absolute().parent.name or adapter.stem


def _check_request(out: Path | None, triton: Path | None, adapters: int, adapter_inputs: bool) -> None:
    """Raise if the arguments contradict each other."""
    if out is None and triton is None:
        raise UsageError("Nothing to write: give `out` (a file), `triton` (a folder), or both.")
    if out is not None and out.suffix not in FORMATS:
        raise UsageError(f"`out` must end in .onnx or .pt2, which decides the format; found {out}.")
    if adapters > 1 and not adapter_inputs:
        raise UsageError(
            f"{adapters} adapters cannot be baked into one graph. Use `adapter_inputs` for one graph and a file per "
            "adapter, or export them one by one."
        )
    if adapter_inputs and triton is not None:
        raise UsageError(
            "Requests to a Triton server cannot choose an adapter, so `triton` and `adapter_inputs` exclude each "
            "other. Write one folder per adapter."
        )


def _beside(out: Path, adapters: list[Path]) -> dict[Path, Path]:
    """Where the adapters of a graph go: model.onnx -> model-DOMAIN.onnx_adapter."""
    names = [domain_name(path) for path in adapters]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        same = [str(path) for path in adapters if domain_name(path) == twice]
        raise UsageError(
            f"Two adapters would be called {twice!r}: {same[0]} and {same[1]}. Rename or copy one of them."
        )
    return {path: out.with_name(f"{out.stem}-{domain_name(path)}{ADAPTERS[out.suffix]}") for path in adapters}


def _completed(model: Model, path: Path, adapter: Adapter) -> Adapter:
    """The adapter with all inputs of the graph: what it does not hold of prompts and head is the model's."""
    others = sorted(adapter.tensors.keys() - {"prompts", "head.weight", "head.bias"})
    if others:
        raise UsageError(
            f"{path} changes the backbone ({len(others)} tensors, the first is {others[0]}). Only prompts and head can "
            "be inputs of a graph: export this adapter baked in, without `adapter_inputs`."
        )
    named = {**model.adapter.tensors, **adapter.tensors}
    tensors = {name: named[name].detach() for name in sorted(named)}
    return Adapter(tensors, adapter.meta | {"rest_sha256": rest_hash(model, tensors)})


def _graph_with_inputs(model: Model, sha: str, adapters: dict[Path, Adapter]) -> Graph:
    """A graph whose prompts and head are inputs. By default they are the model's, if it has prompts like the adapters'.

    A model without prompts can have adapters with them. Then the default is the first adapter.
    """
    shapes = {path: _prompt_shape(adapter.tensors) for path, adapter in adapters.items()}
    if len(set(shapes.values())) > 1:
        told = ", ".join(f"{path} {shape}" for path, shape in shapes.items())
        raise UsageError(f"The adapters have prompts of different shapes, and a graph takes only one: {told}.")
    default = next((path for path in adapters if shapes[path] != _prompt_shape(model.adapter.tensors)), None)
    if default is not None:
        model = apply_adapter(model, adapters[default])
    inputs = {name: model.get_parameter(name).detach() for name in sorted(adapter_names(model))}
    return _graph(model, sha, inputs=inputs, adapter=None if default is None else domain_name(default))


def _prompt_shape(tensors: Tensors) -> tuple[int, ...] | None:
    return tuple(tensors["prompts"].shape) if "prompts" in tensors else None


def _graph(model: Model, sha: str, *, inputs: Tensors, adapter: str | None) -> Graph:
    # Only training uses these, and torch would write them into the file.
    model.projections, model.auxiliary, model.domains = nn.ModuleList(), None, None
    card, pre = model.card, model.card.preprocess
    meta = {
        "kind": "graph",
        "arch": card.arch,
        "classes": list(card.classes),
        "preprocess": asdict(pre),
        "adapter": adapter,
        "adapter_inputs": list(inputs),
        "backbone_sha256": sha,
        "dept_version": __version__,
    }
    module = Classifier(model).eval().requires_grad_(False)
    return Graph(module, (pre.channels, pre.size, pre.size), meta, inputs)


def _make(graph: Graph, kinds: set[str], adapters: list[Adapter]) -> tuple[dict[str, bytes], float]:
    """The files of a graph in memory, and the largest difference of their logits from the model's."""
    progress.info("Tracing %s", graph.meta["arch"])
    program = trace(graph)
    made, differences = {}, []
    for kind in sorted(kinds):
        make, runner = FORMATS[kind]
        progress.info("Making the %s file and comparing its logits with the model's", kind)
        made[kind] = make(program, graph)
        cases = [graph.inputs, *(adapter.tensors for adapter in adapters)]
        differences.append(check(graph, runner(made[kind]), cases))
    return made, max(differences)


def _write_adapter(file: Path, adapter: Adapter, sha: str, classes: Sequence[str]) -> None:
    """Write an adapter in the format that the ending of its name says."""
    if file.suffix == ".safetensors":
        save_adapter(adapter, file)
    else:
        write_atomic(file, onnx_adapter(adapter.tensors, model_version(sha, classes)))
