"""`dept info FILE`."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import zip_longest
from math import prod
from pathlib import Path
from typing import Annotated

from dept.cli.command import Command, Positional
from dept.cli.parse import parse
from dept.cli.show import as_json, table

MOST = 300  # characters of a value


@dataclass(frozen=True)
class InfoInput:
    """The file to look into."""

    file: Annotated[Path, Positional("FILE")]
    """a model, adapter or resume file"""
    json: bool = False
    """print all metadata as JSON"""


COMMAND = Command("info", "Look inside a model or adapter file.", {"Arguments": InfoInput})


def run(argv: list[str]) -> None:
    """Print the metadata and the tensors of a file."""
    (given,) = parse(COMMAND, argv)
    from dept.io import read_meta, read_shapes

    meta, shapes = read_meta(given.file), read_shapes(given.file)
    groups: dict[str, list[int]] = {}
    for name, shape in shapes.items():
        group = groups.setdefault(name.split(".")[0], [0, 0])
        group[0] += 1
        group[1] += prod(shape)
    if given.json:
        print(as_json(meta | {"tensors": shapes}))
        return
    print(f"{given.file}: dept {meta['kind']}, {given.file.stat().st_size / 1024:.0f} KiB\n")
    for key, value in meta.items():
        if key not in ("format", "kind"):
            text = str(value)
            if key == "domains":
                shares = [f" {weight:.2f}" for weight in value.get("weights", ())]  # an adapter's; a model has none
                names = ", ".join(name + share for name, share in zip_longest(value["names"], shares, fillvalue=""))
                sizes = f"{value['shared_prompts']} shared, {value['domain_prompts']} for each domain"
                text = f"{names} (prompts per stage: {sizes})"
            print(f"{key:<16}{text if len(text) <= MOST else text[: MOST - 1] + '…'}")
    rows = [[name, str(count), f"{size:,}"] for name, (count, size) in groups.items()]
    print("\n" + table(["group", "tensors", "parameters"], rows))
