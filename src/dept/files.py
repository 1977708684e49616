"""Model and adapter files: safetensors with one JSON in the header. No pickle, atomic writes, fingerprints checked."""

from __future__ import annotations

import hashlib
import json
import os
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from dept._version import __version__
from dept.core.adapter import Adapter, pick
from dept.core.domains import is_mean
from dept.core.projection import projection_sizes
from dept.core.select import select
from dept.data.views import Augment, Preprocess
from dept.errors import DataError, UsageError
from dept.models import Card, Model, build_empty, fingerprint, tensors_hash

FORMAT = 1
_SHORT_CLASS_LIST = 2048  # bytes of JSON up to which an adapter repeats the class names
# Only between elements does JSON have line ends, so nothing inside a string matches.
_NUMBERS = re.compile(r"\[\n[-+\d.eE,\s]+\n\s*\]")


def write_atomic(path: Path, data: bytes) -> None:
    """Write a file so that readers see the old or the new content, never a part; a DataError if that cannot be."""
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
            f"{path} could not be written ({error.strerror or error}). Is there room on the disk, and may the folder "
            "be written to?"
        ) from error


def holds_tensors(path: Path) -> bool:
    """Whether a file is a model, an adapter or the like, by its name."""
    return path.suffix == ".safetensors"


def check_output(out: Path, *inputs: Path, keep: Callable[[Path], bool] = holds_tensors) -> None:
    """Refuse, before any work is done, a file that cannot be written, or that would replace one still needed.

    Args:
        inputs: what the command reads; none of it is replaced.
        keep: says of an existing file whether it must stay.
    """
    if out.is_dir():
        raise UsageError(f"{out} is a folder; --out needs the name of a file.")
    above = next(folder for folder in out.absolute().parents if folder.exists())
    _check_writable(out, above)
    if any(given.exists() and out.exists() and out.samefile(given) for given in inputs):
        raise UsageError(f"{out} is what the command reads and is not replaced; choose another --out.")
    if out.exists() and keep(out):
        raise UsageError(f"{out} exists already and is not replaced; choose another --out.")


def make_folder(out: Path) -> None:
    """Make the folder that a run writes to; a UsageError if that cannot be."""
    above = next(folder for folder in (out.absolute(), *out.absolute().parents) if folder.exists())
    _check_writable(out, above)
    out.mkdir(parents=True, exist_ok=True)


def _check_writable(out: Path, above: Path) -> None:
    """Whether something can be made below `above`, which is there already."""
    if not above.is_dir():
        raise UsageError(f"--out {out} cannot be made: {above} is a file, and a folder is needed there.")
    if not os.access(above, os.W_OK | os.X_OK):
        raise UsageError(f"--out {out} cannot be made: {above} may not be written to. Choose another --out.")


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
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


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
            yield file, _checked(path, file.metadata() or {})
    except (SafetensorError, OSError) as error:
        raise DataError(
            f"{path} is not a readable safetensors file ({error}). A .pt or .pth checkpoint is brought in by "
            "`dept convert`."
        ) from error


def _checked(path: Path, header: Mapping[str, str]) -> dict[str, Any]:
    if "dept" not in header:
        raise DataError(f"{path} holds plain weights without dept's metadata; bring it in with `dept convert`.")
    with intact(path):
        meta: dict[str, Any] = json.loads(header["dept"])
        if meta.get("format") != FORMAT:
            raise DataError(f"{path} has format {meta.get('format')}; this version of dept reads format {FORMAT}.")
        str(meta["kind"])  # every file says what it is
    return meta


@contextmanager
def intact(path: str | Path) -> Iterator[None]:
    """Around code that reads the metadata of a file: what it lacks, or has in another form, becomes a sentence."""
    try:
        yield
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise DataError(
            f"The metadata of {path} is damaged, or was written by another version of dept "
            f"({type(error).__name__}: {error}). Make the file anew, or use the version that wrote it."
        ) from error


def save_model(model: Model, path: str | Path) -> Path:
    """Write the full model: backbone, prompts, head, projection heads, and what the prompts are the mean of.

    A model of several source domains is an ordinary one whose `prompts` are the shared ones and the mean of the
    domains'; `domains.*` beside them say of what. Prompts that have moved on since (by training with target images)
    are no such mean, and then `domains.*` is left out.
    """
    card = model.card
    domains = model.domains if model.domains is not None and is_mean(model.domains, model.prompts) else None
    meta = {
        "format": FORMAT,
        "kind": "model",
        "arch": card.arch,
        "options": card.options,
        "stages": model.stages,
        "prompts": model.prompts_per_stage,
        "classes": card.classes,
        "preprocess": asdict(card.preprocess),
        "augment": asdict(card.augment),
        "projection": projection_sizes(model.projections) if len(model.projections) else None,
        "auxiliary": model.auxiliary.out_features if model.auxiliary is not None else None,
        "backbone_sha256": fingerprint(model),
        "history": card.history,
        "dept_version": __version__,
    }
    if domains is not None:
        meta["domains"] = {"names": domains.names, **domains.sizes()}
    tensors = {n: t for n, t in model.state_dict().items() if domains is not None or not n.startswith("domains.")}
    write_tensors(Path(path), tensors, meta)
    return Path(path)


def load_model(path: str | Path) -> Model:
    """Read a model file."""
    tensors, meta = read_tensors(path, "model")
    with intact(path):
        card = Card(
            meta["arch"],
            tuple(meta["classes"]),
            Preprocess(**_tuples(meta["preprocess"])),
            Augment(**_tuples(meta["augment"])),
            meta["options"],
            meta["history"],
        )
        model = build_empty(
            card,
            stages=meta["stages"],
            prompts=meta["prompts"],
            projection=meta["projection"],
            auxiliary=meta.get("auxiliary"),
            domains=meta.get("domains"),
        )
        stored = str(meta["backbone_sha256"])
    try:
        model.load_state_dict(tensors)
    except RuntimeError as error:
        raise DataError(f"The tensors of {path} do not fit {card.arch!r}: {error}") from error
    found = tensors_hash({n.removeprefix("backbone."): t for n, t in tensors.items() if n.startswith("backbone.")})
    if found != stored:
        raise DataError(
            f"The backbone in {path} has changed since the file was written: its metadata says {stored[:16]}…, its "
            f"tensors are {found[:16]}…. Make or fetch the file anew."
        )
    return model.eval()


def adapter_meta(model: Model, **entries: Any) -> dict[str, Any]:
    """Metadata of an adapter over this model; `entries` say how it came about."""
    card = model.card
    meta = {
        "format": FORMAT,
        "kind": "adapter",
        "arch": card.arch,
        "stages": model.stages,
        "prompts": model.prompts_per_stage,
        "classes_sha256": _classes_hash(card.classes),
        "preprocess": asdict(card.preprocess),
        "dept_version": __version__,
        **entries,
    }
    if len(json.dumps(card.classes)) <= _SHORT_CLASS_LIST:
        meta["classes"] = card.classes
    return meta


def rest_hash(model: Model, adapted: Iterable[str]) -> str:
    """sha256 of the head and prompts that an adapter does not hold: two models over one backbone differ in them."""
    rest = set(select(model, "head", "prompts")) - set(adapted)
    return tensors_hash(pick(model, rest))


def save_adapter(adapter: Adapter, path: str | Path, *, half: bool = False) -> Path:
    """Write an adapter with its metadata (see `adapter_meta`); `half` stores the tensors in fp16."""
    tensors = {n: t.half() if half and t.is_floating_point() else t for n, t in adapter.tensors.items()}
    write_tensors(Path(path), tensors, adapter.meta)
    return Path(path)


def load_adapter(path: str | Path, model: Model, *, backbone_sha256: str | None = None) -> Adapter:
    """Read an adapter for this model; another backbone or class list is refused, and so is another head or other
    prompts where the adapter does not bring them.

    Args:
        backbone_sha256: fingerprint of the model's backbone, if the caller knows it already.
    """
    tensors, meta = read_tensors(path, "adapter")
    ours = backbone_sha256 or fingerprint(model)
    with intact(path):
        if meta["backbone_sha256"] != ours:
            raise DataError(
                f"{path} was made for another backbone: adapter {meta['backbone_sha256'][:16]}… ({meta['arch']}), "
                f"model {ours[:16]}… ({model.card.arch}). Use the model file it was adapted from."
            )
        if meta["classes_sha256"] != _classes_hash(model.classes):
            theirs = meta.get("classes", f"sha256 {meta['classes_sha256'][:16]}…")
            raise DataError(f"{path} was made for other classes: adapter {theirs}, model {list(model.classes)[:20]}.")
    rest = rest_hash(model, tensors)
    if meta.get("rest_sha256", rest) != rest:  # older files do not say
        raise DataError(
            f"{path} was made for a model with the same backbone, but another head or other prompts. "
            "Use the model file it was adapted from."
        )
    return Adapter({n: t.float() if t.dtype == torch.half else t for n, t in tensors.items()}, meta)


def apply_adapter(model: Model, adapter: Adapter) -> Model:
    """The model with the adapter written into it; fresh prompts are made room for if it has none."""
    prompts = adapter.tensors.get("prompts")
    if prompts is not None and (model.prompts is None or model.prompts.shape != prompts.shape):
        model = model.with_prompts(prompts.shape[0], prompts.shape[1])
    adapter.copy_to(model)
    return model


def load(path: str | Path, *, adapter: str | Path | None = None) -> Model:
    """Read a model file and, on top, an adapter file. The result is an ordinary nn.Module in eval mode."""
    model = load_model(path)
    if adapter is None:
        return model
    return apply_adapter(model, load_adapter(adapter, model)).eval()


def _classes_hash(classes: Sequence[str]) -> str:
    return hashlib.sha256(json.dumps(list(classes)).encode()).hexdigest()


def _tuples(values: dict[str, Any]) -> dict[str, Any]:
    """JSON has no tuples; dataclasses that are compared and hashed want them."""
    return {key: tuple(value) if isinstance(value, list) else value for key, value in values.items()}
