"""Files: atomic writes, JSON, safetensors with one JSON in the header, and checks on outputs. No pickle."""

from __future__ import annotations

import hashlib
import json
import os
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from dept.errors import DataError, UsageError

FORMAT = 1

# Only between elements does JSON have line ends, so nothing inside a string matches.
_NUMBERS = re.compile(r"\[\n[-+\d.eE,\s]+\n\s*\]")


def write_atomic(path: Path, data: bytes) -> None:
    """Write a file so that readers see the old or the new content, never a part; a DataError if it fails."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
            Path(name).chmod(0o644)  # mkstemp is private by default; results are meant to be shared
            Path(name).replace(path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise DataError(
            f"{path} could not be written ({error.strerror or error}). Check disk space and permissions."
        ) from error


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
    """Write indented JSON, atomically; a list of numbers takes one line, not one for each."""
    text = json.dumps(value, indent=2, default=str)
    compact = _NUMBERS.sub(lambda match: " ".join(match[0].split()).replace("[ ", "[").replace(" ]", "]"), text)
    write_atomic(path, (compact + "\n").encode())


def write_tensors(path: Path, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> None:
    """Write tensors with their metadata, atomically."""
    plain = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    write_atomic(path, save(plain, metadata={"dept": json.dumps(meta, separators=(",", ":"))}))


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


def read_shapes(path: str | Path) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the tensors of a dept file; no tensor is read."""
    with _opened(Path(path)) as (file, _):
        return {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118 (not a dict)


def read_tensors(path: str | Path, kind: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and metadata of a dept file of the given kind ("model", "adapter", "resume")."""
    with _opened(Path(path)) as (file, meta):
        if meta["kind"] != kind:
            raise DataError(f"{path} is a dept {meta['kind']} file; a {kind} file is needed here.")
        return {name: file.get_tensor(name) for name in file.keys()}, meta  # noqa: SIM118 (not a dict)


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
                if (found := meta.get("format")) != FORMAT:
                    raise DataError(f"{path} has format {found}; this version of dept reads format {FORMAT}.")
                str(meta["kind"])  # every file says what it is
            yield file, meta
    except (SafetensorError, OSError) as error:
        raise DataError(
            f"{path} is not a readable safetensors file ({error}). A .pt or .pth checkpoint must first be "
            "converted with `dept convert`."
        ) from error


@contextmanager
def intact(path: str | Path) -> Iterator[None]:
    """Around code that reads the metadata of a file: what it lacks, or has in another form, becomes a sentence."""
    try:
        yield
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise DataError(
            f"The metadata of {path} is damaged, or was written by another version of dept "
            f"({type(error).__name__}: {error}). Create the file again, or use the version that wrote it."
        ) from error
