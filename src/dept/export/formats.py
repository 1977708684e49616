"""Traced graphs as files: ONNX for ONNX Runtime, .pt2 for torch. Adapters as files that these graphs take.

Everything is made in memory and run once from there, so that nothing wrong reaches the disk.
"""

from __future__ import annotations

import io
import json
import logging
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import Tensor
from torch.export import ExportedProgram

from dept.errors import UsageError, missing_extra
from dept.export.graph import Graph, Tensors

LARGEST_ONNX = 2**31 - 2**24
"""bytes of weights; protobuf ends at 2 GiB, and the graph needs some of it"""
Run = Callable[[Tensor, Tensors], Tensor]
"""images (B, channels, H, W) and adapter -> logits (B, C)"""


def require_onnx() -> None:
    """Raise if a package of the extra is missing."""
    for package in ("onnx", "onnxscript", "onnxruntime"):
        if find_spec(package) is None:
            raise missing_extra(package, "onnx")


def onnx_file(program: ExportedProgram, graph: Graph) -> bytes:
    """An ONNX file. Its inputs `images`, and prompts and head if wanted; those have the model's values by default."""
    import onnx

    size = sum(tensor.nbytes for tensor in program.state_dict.values())
    if size > LARGEST_ONNX:
        raise UsageError(
            f"The model has {size / 2**30:.1f} GiB of weights, and an ONNX file holds 2. Use an `out` in .pt2."
        )
    with _quiet("onnxscript", "onnx_ir", "torch.onnx"):
        made = torch.onnx.export(
            program, dynamo=True, verbose=False, input_names=["images", *graph.inputs], output_names=["logits"]
        )
    assert made is not None
    proto = made.model_proto
    _name_batch(proto.graph)
    for node in proto.graph.node:
        node.ClearField("metadata_props")  # where in the Python code it comes from
    # An input with an initializer is optional, and only optional ones may be left to an active adapter.
    values = (onnx.numpy_helper.from_array(tensor.numpy(), name) for name, tensor in graph.inputs.items())
    proto.graph.initializer.extend(values)
    onnx.helper.set_model_props(proto, {"dept": json.dumps(graph.meta)})
    proto.model_version = graph.version
    onnx.checker.check_model(proto)
    data: bytes = proto.SerializeToString()
    return data


def _name_batch(graph: object) -> None:
    """Call the free dimension `batch`; torch calls it s34 or the like."""
    name = graph.input[0].type.tensor_type.shape.dim[0].dim_param  # type: ignore[attr-defined]
    for value in (*graph.input, *graph.output, *graph.value_info):  # type: ignore[attr-defined]
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param == name:
                dim.dim_param = "batch"


def run_onnx(data: bytes) -> Run:
    """ONNX Runtime on an ONNX file in memory."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # it warns of inputs with defaults
    session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])

    def run(images: Tensor, adapter: Tensors) -> Tensor:
        feeds = {"images": images, **adapter}
        return torch.from_numpy(session.run(None, {name: tensor.numpy() for name, tensor in feeds.items()})[0])

    return run


def onnx_adapter(tensors: Tensors, version: int) -> bytes:
    """An adapter file of ONNX Runtime (1.20 or newer), for graphs that take prompts and head as inputs."""
    import onnxruntime

    made = onnxruntime.AdapterFormat()
    made.set_adapter_version(1)
    made.set_model_version(version)
    values = {name: onnxruntime.OrtValue.ortvalue_from_numpy(tensor.numpy()) for name, tensor in tensors.items()}
    made.set_parameters(values)
    with tempfile.TemporaryDirectory() as folder:  # it can only write to a path
        file = Path(folder) / "adapter"
        made.export_adapter(str(file))
        return file.read_bytes()


def pt2_file(program: ExportedProgram, graph: Graph) -> bytes:
    """A .pt2 file of torch.export, with the metadata as `dept.json` among its extra files."""
    flat = program.run_decompositions({})  # the same operators, but not inside the scope of an `autocast`
    for node in flat.graph.nodes:
        for name in ("stack_trace", "from_node", "custom"):  # files and addresses of this machine
            node.meta.pop(name, None)
    buffer = io.BytesIO()
    torch.export.save(flat, buffer, extra_files={"dept.json": json.dumps(graph.meta)})
    return buffer.getvalue()


def run_pt2(data: bytes) -> Run:
    """torch on a .pt2 file in memory."""
    module = torch.export.load(io.BytesIO(data)).module()

    def run(images: Tensor, adapter: Tensors) -> Tensor:
        logits: Tensor = module(images, adapter) if adapter else module(images)
        return logits

    return run


@contextmanager
def _quiet(*names: str) -> Iterator[None]:
    """Loggers that report errors only: what the converter could not simplify is of no use to anybody here."""
    loggers = [logging.getLogger(name) for name in names]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
