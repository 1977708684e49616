"""`dept info FILE`."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice, zip_longest
from math import prod
from pathlib import Path
from typing import Annotated, Any

from dept.cli.command import Command, Positional
from dept.cli.parse import parse
from dept.cli.show import as_json, show, table, visible

MOST = 300  # characters of a value
MOST_ROWS = 60  # our own files have about twenty


@dataclass(frozen=True)
class InfoInput:
    """The file to look into."""

    file: Annotated[Path, Positional("FILE")]
    """a model, adapter or resume file; a model or adapter may be hf-hub:USER/REPO"""
    json: bool = False
    """print all metadata as JSON"""


COMMAND = Command("info", "Look inside a model or adapter file.", {"Arguments": InfoInput})


def run(argv: list[str]) -> None:
    """Print the metadata and the tensors of a file."""
    (given,) = parse(COMMAND, argv)
    from dept.io import read_meta, read_shapes
    from dept.models.hub import located

    file = located(given.file, ("adapter.safetensors", "model.safetensors"))
    meta, shapes = read_meta(file), read_shapes(file)
    groups: dict[str, list[int]] = {}
    for name, shape in shapes.items():
        group = groups.setdefault(name.split(".")[0], [0, 0])
        group[0] += 1
        group[1] += prod(shape)
    if given.json:
        print(as_json(meta | {"tensors": shapes}))
        return
    show(f"{given.file}: dept {_short(meta['kind'])}, {file.stat().st_size / 1024:.0f} KiB\n")
    for key, value in islice(meta.items(), MOST_ROWS):
        if key not in ("format", "kind"):
            show(visible(f"{_short(key):<16}{_short(_domains(value) if key == 'domains' else value)}"))
    rows = [[_short(name), str(count), f"{size:,}"] for name, (count, size) in islice(groups.items(), MOST_ROWS)]
    print("\n" + table(["group", "tensors", "parameters"], rows))
    if max(len(meta), len(groups)) > MOST_ROWS:
        print(f"… {len(meta):,} entries and {len(groups):,} groups in all. --json prints them.")


def _domains(value: Any) -> Any:
    """The source domains of a file in words; as they are if the file was not written by us."""
    try:
        shares = [f" {weight:.2f}" for weight in value.get("weights", ())]  # an adapter's; a model has none
        names = ", ".join(name + share for name, share in zip_longest(value["names"], shares, fillvalue=""))
        sizes = f"{value['shared_prompts']} shared, {value['domain_prompts']} for each domain"
        return f"{names} (prompts per stage: {sizes})"
    except (AttributeError, KeyError, TypeError, ValueError):
        return value


def _short(value: Any) -> str:
    try:
        text = str(value)
    except RecursionError:
        return "(nested too deeply to be shown)"
    return text if len(text) <= MOST else text[: MOST - 1] + "…"
