"""`dept export MODEL [--adapter A …] --out FILE.onnx|FILE.pt2`."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from dept.cli.command import REPEATABLE, Command
from dept.cli.parse import parse
from dept.cli.parts import ModelFile
from dept.cli.show import show
from dept.errors import UsageError

if TYPE_CHECKING:
    from dept.export.write import Exported


@dataclass(frozen=True)
class ExportInput(ModelFile):
    """The model, and the domains it is exported for."""

    adapter: Annotated[tuple[tuple[Path, ...], ...], REPEATABLE] = ()
    """adapter file of the domain, baked into the graph; several with `adapter_inputs`"""
    adapter_inputs: bool = False
    """make prompts and head inputs of the graph, which then serves all domains; every adapter gets a file"""


@dataclass(frozen=True)
class ExportOutput:
    """What to write."""

    out: Path | None = None
    """graph to write, FILE.onnx or FILE.pt2; FILE.onnx_adapter or FILE.safetensors adds one adapter to such a graph"""
    triton: Path | None = None
    """model folder to write for NVIDIA Triton or KServe"""


COMMAND = Command(
    "export",
    """Write a model for programs that serve it without dept: ONNX or torch.export, with an adapter baked in.

The graph takes any number of normalised images and gives logits. The metadata of the file says how to
preprocess images and what the classes are called. Logits are compared with the model's before anything is written.
ONNX needs the extra `onnx`. docs/export.md shows how to serve the files.""",
    {"Input": ExportInput, "Output": ExportOutput},
)


def run(argv: list[str]) -> None:
    """Export, and say what was written."""
    given, output = parse(COMMAND, argv)
    from dept.export.write import ADAPTERS, export_adapter, export_model

    adapters = list(chain.from_iterable(given.adapter))  # `--adapter A B` and `--adapter A --adapter B` are the same
    out: Path | None = output.out
    if out is not None and out.suffix in ADAPTERS.values():
        if len(adapters) != 1 or output.triton is not None:
            raise UsageError(
                f"{out} would be an adapter, which needs exactly one --adapter and no --triton, found {len(adapters)} "
                "adapters. A graph ends in .onnx or .pt2."
            )
        file = export_adapter(given.model, adapters[0], out=out)
        show(f"{_sized(file)}\nFor graphs of the same model that were exported with --adapter-inputs.")
        return
    inputs = given.adapter_inputs
    done = export_model(given.model, out=out, adapters=adapters, adapter_inputs=inputs, triton=output.triton)
    show("\n".join([*map(_sized, done.files), *_about(done), *_next(out, output.triton)]))


def _sized(file: Path) -> str:
    return f"{file} ({file.stat().st_size / 1024:,.0f} KiB)"


def _about(done: Exported) -> list[str]:
    """Inputs and outputs of the graph, and how exact it is."""
    meta, sides = done.graph.meta, ", ".join(map(str, done.graph.image))
    lines = [f"images (batch, {sides}) -> logits (batch, {len(meta['classes'])})"]
    if done.graph.inputs:
        shapes = [f"{name} {tuple(tensor.shape)}" for name, tensor in done.graph.inputs.items()]
        lines.append(f"Adapter inputs: {', '.join(shapes)}")
        if done.files[0].suffix == ".onnx":  # those of a .pt2 graph must be given
            lines.append(f"Their defaults: {'adapter ' + meta['adapter'] if meta['adapter'] else 'the model itself'}")
    return [*lines, f"Largest difference from the model's logits: {done.difference:.1g}"]


def _next(out: Path | None, triton: Path | None) -> list[str]:
    """What can be done with the files."""
    lines = []
    if out is not None and out.suffix == ".onnx":
        lines.append(f"Next:  python examples/09_export_and_serve.py {shlex.quote(str(out))} IMAGE…")
    if triton is not None:
        lines.append(f"Next:  tritonserver --model-repository {shlex.quote(str(triton.absolute().parent))}")
    return lines
