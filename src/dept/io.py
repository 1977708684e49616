"""Files: atomic writes, JSON, safetensors with one JSON in the header, and checks on outputs. No pickle."""

from __future__ import annotations

import glob
import hashlib
import json
import logging
import os
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from dept.errors import DataError, UsageError

FORMAT = 2
"""what we write. Format 1 has no checksum, and is still read"""
MEASURED = ("model", "adapter", "stats")
"""kinds of files whose numbers must all be finite"""

LEFTOVER = ".part"
logger = logging.getLogger(__name__)
# Only between elements does JSON have line ends, so nothing inside a string matches.
_NUMBERS = re.compile(r"\[\n[-+\d.eE,\s]+\n\s*\]")


def write_atomic(path: Path, data: bytes) -> None:
    """Write a file so that readers see the old or the new content, never a part; a DataError if it fails."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        for old in path.parent.glob(f".{glob.escape(path.name)}.*{LEFTOVER}"):
            old.unlink(missing_ok=True)  # of a save that was killed
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=LEFTOVER)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(handle)  # before the rename: after a power loss the name must not point to nothing
            Path(name).chmod(0o666 & ~_umask())  # mkstemp is private by default; results are meant to be shared
            Path(name).replace(path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise DataError(
            f"{path} could not be written ({error.strerror or error}). Check disk space and permissions."
        ) from error


def _umask() -> int:
    """The umask of the process, which can only be read by setting it."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def check_output(
    out: Path,
    *inputs: Path,
    keep: Callable[[Path], bool] = lambda file: file.suffix == ".safetensors",
    name: str = "out",
) -> None:
    """Refuse, before any work is done, a file that cannot be written, or that would replace one still needed.

    Args:
        inputs: files that are read; none of them is replaced.
        keep: says of an existing file whether it must stay. By default models, adapters and the like do.
        name: the parameter that the file was given as.
    """
    if out.is_dir():
        raise UsageError(f"{out} is a folder. `{name}` must be the name of a file.")
    check_folder(out.absolute().parent, name)
    if any(given.exists() and out.exists() and out.samefile(given) for given in inputs):
        raise UsageError(f"{out} is an input and is not replaced. Choose another `{name}`.")
    if out.exists() and keep(out):
        raise UsageError(f"{out} already exists and is not replaced. Choose another `{name}`.")


def check_folder(folder: Path, name: str = "out") -> None:
    """Refuse, before any work is done, a folder that cannot be created or written to."""
    above = next(place for place in (folder.absolute(), *folder.absolute().parents) if place.exists())
    if not above.is_dir():
        raise UsageError(f"{folder} cannot be written to: {above} is a file, not a folder. Choose another `{name}`.")
    if not os.access(above, os.W_OK | os.X_OK):
        raise UsageError(f"{folder} cannot be written to: {above} is not writable. Choose another `{name}`.")


def write_json(path: Path, value: Any) -> None:
    """Write JSON as `indented` makes it, atomically."""
    write_atomic(path, (indented(value) + "\n").encode())


def indented(value: Any) -> str:
    """Indented JSON in which a list of numbers takes one line, not one for each."""
    text = json.dumps(value, indent=2, default=str)
    return _NUMBERS.sub(lambda match: " ".join(match[0].split()).replace("[ ", "[").replace(" ]", "]"), text)


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object; a DataError if the file holds anything else."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, RecursionError, ValueError) as error:
        raise DataError(f"{path} is not readable JSON ({error}).") from error
    if not isinstance(value, dict):
        raise DataError(f"{path} holds a {type(value).__name__}; a JSON object is expected.")
    return value


def write_tensors(path: Path, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> None:
    """Write tensors with their metadata and a checksum over both, atomically."""
    plain = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    if meta["kind"] in MEASURED and (bad := not_finite(plain)):
        raise DataError(f"{path} was not written: {bad} holds numbers that are not finite (NaN, or too large).")
    full = {**meta, "format": FORMAT}
    full["sha256"] = checksum(plain, full)
    write_atomic(path, save(plain, metadata={"dept": json.dumps(full, separators=(",", ":"))}))


def checksum(tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> str:
    """sha256 over the metadata, as it is read back, and all tensors. It finds damage, not an attacker."""
    said = {name: value for name, value in meta.items() if name != "sha256"}
    text = json.dumps(json.loads(json.dumps(said)), sort_keys=True)
    return hashlib.sha256(f"{text}\n{tensors_hash(tensors)}".encode()).hexdigest()


def tensors_hash(tensors: Mapping[str, Tensor]) -> str:
    """sha256 over names, shapes and bytes, in the order of the names."""
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        flat = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        digest.update(flat.numpy().data)  # no copy
    return digest.hexdigest()


def not_finite(tensors: Mapping[str, Tensor]) -> str:
    """Name of a tensor that holds a NaN or an infinity; empty if there is none."""
    floats = ((name, tensor) for name, tensor in tensors.items() if tensor.is_floating_point())
    return next((name for name, tensor in floats if not bool(tensor.isfinite().all())), "")


def file_sha256(path: Path) -> str:
    """sha256 of a file's bytes."""
    if not path.is_file():
        raise DataError(f"The file {path} does not exist.")
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_meta(path: str | Path) -> dict[str, Any]:
    """The metadata of a dept file, checked for its format version; no tensor is read."""
    with _opened(Path(path)) as (_, meta):
        return meta


def is_dept_file(path: str | Path) -> bool:
    """Whether this is a file that dept wrote."""
    try:
        return bool(read_meta(path))
    except DataError:
        return False


def read_shapes(path: str | Path) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the tensors of a dept file; no tensor is read."""
    with _opened(Path(path)) as (file, _):
        return {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118 (not a dict)


def read_tensors(path: str | PathLike[str], kind: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and metadata of a dept file of the given kind ("model", "adapter", "resume"), checked for damage."""
    with _opened(Path(path)) as (file, meta):
        if meta["kind"] != kind:
            raise DataError(f"{path} is a dept {meta['kind']} file; a {kind} file is needed here.")
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    if meta["format"] == 1 and "sha256" not in meta:  # one that has a checksum is not of that format
        logger.info("%s has format 1, which carries no checksum: damage is not noticed.", path)
    elif meta.get("sha256") != checksum(tensors, meta):
        raise DataError(f"{path} is damaged: its checksum is not that of its content. Create or fetch it again.")
    if kind in MEASURED and (bad := not_finite(tensors)):
        raise DataError(f"{path} holds numbers that are not finite, in {bad}. Create the file again.")
    return tensors, meta


@contextmanager
def _opened(path: Path) -> Iterator[tuple[Any, dict[str, Any]]]:
    """A dept file and its checked metadata; a tensor is read when it is asked for."""
    if path.is_dir():
        held = [str(path / name) for name in ("model.safetensors", "adapter.safetensors") if (path / name).is_file()]
        hint = f" Did you mean {' or '.join(held)}?" if held else ""
        raise DataError(f"{path} is a folder; a file is needed here.{hint}")
    if not path.is_file():
        raise DataError(f"{path} does not exist.")
    try:
        with safe_open(path, framework="pt") as file:
            header = file.metadata() or {}
            if "dept" not in header:
                raise DataError(f"{path} holds plain weights without dept's metadata. Convert it with `dept convert`.")
            with intact(path):
                meta: dict[str, Any] = json.loads(header["dept"])
                if (found := meta.get("format")) not in (1, FORMAT):
                    raise DataError(f"{path} has format {found}; this version of dept reads formats 1 and {FORMAT}.")
                if not isinstance(meta["kind"], str):
                    raise ValueError("kind must be a word")
            yield file, meta
    except (SafetensorError, OSError) as error:
        raise DataError(
            f"{path} is not a readable safetensors file ({error}). A .pt or .pth checkpoint must first be "
            "converted with `dept convert`."
        ) from error


@contextmanager
def intact(path: str | PathLike[str]) -> Iterator[None]:
    """Around code that reads the metadata of a file: what it lacks, or has in another form, becomes a sentence."""
    try:
        yield
    except (AttributeError, IndexError, KeyError, RecursionError, TypeError, ValueError) as error:
        raise DataError(
            f"The metadata of {path} is damaged, or was written by another version of dept "
            f"({type(error).__name__}: {error}). Create the file again, or use the version that wrote it."
        ) from error
