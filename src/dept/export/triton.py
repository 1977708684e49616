"""A model folder of NVIDIA Triton, which KServe serves too: config.pbtxt, labels.txt and 1/model.onnx."""

from __future__ import annotations

import json
from pathlib import Path

from dept.errors import UsageError
from dept.export.graph import Graph
from dept.io import check_folder, write_atomic

MAX_BATCH = 64
"""images that the server puts together at most, the batch of `dept predict`"""


def check_triton(folder: Path) -> None:
    """Refuse, before any work is done, a folder that cannot be written, or that holds something."""
    check_folder(folder, "triton")
    if folder.exists() and any(folder.iterdir()):
        raise UsageError(f"{folder} is not empty and is not replaced. Choose another `triton`.")


def write_triton(folder: Path, data: bytes, graph: Graph) -> list[Path]:
    """Write the folder. The server takes its name as the name of the model."""
    names = [" ".join(name.split()) for name in graph.meta["classes"]]  # one line each
    files = {
        folder / "1" / "model.onnx": data,
        folder / "labels.txt": "".join(f"{name}\n" for name in names).encode(errors="surrogateescape"),
        folder / "config.pbtxt": config(graph).encode(),  # last: a polling server looks for it
    }
    for file, content in files.items():
        write_atomic(file, content)
    return list(files)


def config(graph: Graph) -> str:
    """The text of config.pbtxt. The metadata is a parameter, which a client can ask the server for."""
    # JSON of JSON: ASCII without control characters, whose only escapes (of quotes and backslashes) protobuf has too.
    meta = json.dumps(json.dumps(graph.meta))
    sides = ", ".join(map(str, graph.image))
    return f"""backend: "onnxruntime"
max_batch_size: {MAX_BATCH}
dynamic_batching {{ }}
input [ {{ name: "images" data_type: TYPE_FP32 dims: [ {sides} ] }} ]
output [
  {{ name: "logits" data_type: TYPE_FP32 dims: [ {len(graph.meta["classes"])} ] label_filename: "labels.txt" }}
]
parameters [ {{ key: "dept" value {{ string_value: {meta} }} }} ]
"""
