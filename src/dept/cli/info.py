"""`dept info FILE`."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Annotated, Any

import tyro

from dept.cli.parse import parse
from dept.cli.show import as_json, table
from dept.io import read_meta, read_shapes


@dataclass(frozen=True)
class Files:
    """Which file."""

    file: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="FILE")]
    """a model, adapter or resume file"""
    json: bool = False
    """print the whole metadata as JSON"""


def run(argv: list[str]) -> int:
    """Print the metadata and the tensors of a file."""
    files: Files = parse("info", "Look inside a model or adapter file.", argv, files=Files).files
    meta, shapes = read_meta(files.file), read_shapes(files.file)
    groups: dict[str, list[int]] = {}
    for name, shape in shapes.items():
        group = groups.setdefault(name.split(".")[0], [0, 0])
        group[0] += 1
        group[1] += prod(shape)
    if files.json:
        print(as_json(meta | {"tensors": shapes}))
        return 0
    print(f"{files.file}: dept {meta['kind']}, {files.file.stat().st_size / 1024:.0f} KiB\n")
    for key, value in meta.items():
        if key not in ("format", "kind"):
            print(f"{key:<16}{_domains(value) if key == 'domains' else _short(value)}")
    rows = [[name, str(count), f"{size:,}"] for name, (count, size) in groups.items()]
    print("\n" + table(["group", "tensors", "parameters"], rows))
    return 0


def _domains(value: dict[str, Any]) -> str:
    """Source domains of a model, or, with weights, of an adapter."""
    names = value["names"]
    if "weights" in value:
        names = [f"{name} {weight:.2f}" for name, weight in zip(names, value["weights"], strict=True)]
    sizes = f"prompts per stage: {value['shared_prompts']} shared, {value['domain_prompts']} for each domain"
    return f"{', '.join(names)} ({sizes})"


def _short(value: Any, most: int = 300) -> str:
    text = str(value)
    return text if len(text) <= most else text[: most - 1] + "…"
