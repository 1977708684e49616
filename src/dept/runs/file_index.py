"""What a run has found out about its image files, stored beside it: `images.safetensors`.

A resumed run, and a second one into the same folder, decode only what has changed to know what decodes.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dept.data.index import Checked, FileIndex
from dept.data.paths import Paths
from dept.errors import DataError
from dept.io import intact, read_tensors, write_tensors

FILE = "images.safetensors"
logger = logging.getLogger(__name__)


def write_index(folder: Path, index: FileIndex) -> None:
    """Write the tables of this run, if it has any, in place of earlier ones."""
    tensors: dict[str, Tensor] = {}
    for number, table in enumerate(index.tables):
        text, ends = table.paths.packed()
        tensors[f"{number}.text"] = torch.from_numpy(np.frombuffer(text, np.uint8).copy())
        tensors[f"{number}.ends"] = torch.from_numpy(ends)
        tensors[f"{number}.states"] = torch.from_numpy(table.states)
    rows = [{"channels": table.channels, "problems": list(table.problems.items())} for table in index.tables]
    if rows:
        write_tensors(folder / FILE, tensors, {"kind": "images", "tables": rows})


def read_index(folder: Path) -> FileIndex:
    """The index beside a run. One that is missing or damaged is as good as an empty one: files are decoded again."""
    file = folder / FILE
    if not file.is_file():
        return FileIndex()
    try:
        tensors, meta = read_tensors(file, "images")
        with intact(file):
            return FileIndex([_table(tensors, number, row) for number, row in enumerate(meta["tables"])])
    except DataError as error:
        logger.info("%s Images are decoded again.", error)
        return FileIndex()


def _table(tensors: dict[str, Tensor], number: int, row: dict[str, Any]) -> Checked:
    text, ends, states = (tensors[f"{number}.{name}"].numpy() for name in ("text", "ends", "states"))
    paths = Paths.unpacked(text.tobytes(), ends)
    if states.shape != (len(paths), 2):
        raise ValueError(f"{len(paths)} files have {states.shape} states")
    problems = {int(at): str(why) for at, why in row["problems"]}
    return Checked(paths, states, problems, int(row["channels"]))
