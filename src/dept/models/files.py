"""Model and adapter files: safetensors with one JSON in the header. No pickle, atomic writes, fingerprints checked."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from functools import cache
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dept._version import __version__
from dept.core.adapter import Adapter, pick
from dept.core.domains import is_mean
from dept.core.projection import projection_sizes
from dept.core.select import select
from dept.core.sharing import borrowed
from dept.data.views import Augment, Preprocess
from dept.errors import DataError, UsageError
from dept.io import file_sha256, intact, is_dept_file, read_tensors, tensors_hash, write_tensors
from dept.models.foreign.read import read_foreign, weights_file
from dept.models.hub import CONFIG, PROCESSOR, WEIGHTS, is_reference, located
from dept.models.model import Card, Model, build_empty, fingerprint, from_checkpoint
from dept.models.profile import read_profile
from dept.models.schema import check_buffers, check_model

progress = logging.getLogger("dept.progress")
_SHORT_CLASS_LIST = 2048  # bytes of JSON up to which an adapter repeats the class names


def save_model(model: Model, path: str | Path) -> Path:
    """Write the full model: backbone, prompts, head, projection heads, and what the prompts are the mean of.

    A model of several source domains is an ordinary one whose `prompts` are the shared ones and the mean of the
    domains'; `domains.*` beside them say of what. Prompts that have moved on since (by training with target images)
    are no such mean, and then `domains.*` is left out.
    """
    card = model.card
    domains = model.domains if model.domains is not None and is_mean(model.domains, model.prompts) else None
    meta = {
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
        **({"auxiliary_task": model.auxiliary_task} if model.auxiliary is not None else {}),
        "backbone_sha256": fingerprint(model),
        "history": card.history,
        **({"prior": card.prior} if card.prior else {}),
        **({"profile": asdict(card.profile)} if card.profile else {}),
        "dept_version": __version__,
    }
    if domains is not None:
        meta["domains"] = {"names": domains.names, **domains.sizes()}
    tensors = {n: t for n, t in model.state_dict().items() if domains is not None or not n.startswith("domains.")}
    write_tensors(Path(path), tensors, meta)
    return Path(path)


class ModelFile:
    """A model file that is read once, however many runs of a process start from it. It can be given as its path.

    Every run gets a model of its own over the backbone that was read (see `core.sharing`).

    Args:
        contents: tensors and metadata of the file, if somebody has read them already.
        device: where the tensors are kept.
    """

    def __init__(
        self,
        path: str | PathLike[str],
        *,
        contents: tuple[dict[str, Tensor], dict[str, Any]] | None = None,
        device: str = "cpu",
    ) -> None:
        self.path = Path(path)
        tensors, meta = contents or read_tensors(path, "model")
        self.identity = identity(meta, self.path)
        model, self.backbone_sha256 = _built(tensors, meta, self.path)
        self._model = model.to(device)

    def __fspath__(self) -> str:
        return str(self.path)

    def borrow(self) -> Model:
        """A model as it is in the file, to be changed at will."""
        return borrowed(self._model, self._model.backbone)


def identity(meta: dict[str, Any], path: Path) -> str:
    """sha256 of what a model file holds: the checksum in its metadata, or of the whole file if it has none."""
    return str(meta["sha256"]) if "sha256" in meta else file_sha256(path)


def load_model(place: str | PathLike[str]) -> Model:
    """Read a model, see `read_model`."""
    return read_model(place)[0]


def read_model(place: str | PathLike[str]) -> tuple[Model, str]:
    """Read a model; returns the fingerprint of its backbone too, which hashes as many bytes as the file has.

    Args:
        place: a model file, here or on the hub (hf-hub:USER/REPO). Or a model of another library there, or in a
            folder as transformers and timm write them: what converts without a question is converted.
    """
    if isinstance(place, ModelFile):
        return place.borrow(), place.backbone_sha256
    path = located(place, WEIGHTS, beside=(CONFIG, PROCESSOR))
    if _is_foreign(path, is_reference(place)):
        model = _converted(path, place)
        return model, fingerprint(model)
    return _built(*read_tensors(path, "model"), path)


def _built(tensors: dict[str, Tensor], meta: dict[str, Any], path: str | PathLike[str]) -> tuple[Model, str]:
    """The model that tensors and metadata of a file describe, and the fingerprint of its backbone."""
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    with intact(path):
        check_model(meta, shapes)
        card = Card(
            meta["arch"],
            tuple(meta["classes"]),
            Preprocess(**_tuples(meta["preprocess"])),
            Augment(**_tuples(meta["augment"])),
            meta["options"],
            meta["history"],
            tuple(meta.get("prior", ())),
            read_profile(meta.get("profile"), shapes["head.weight"][1]),
        )
        parts: dict[str, Any] = {
            name: meta.get(name) for name in ("stages", "prompts", "projection", "auxiliary", "domains")
        }
        parts["task"] = meta.get("auxiliary_task", "rotation")  # older files know no other
        # First without memory: what is built is no larger than what the file holds.
        with torch.device("meta"):
            skeleton = build_empty(card, **parts)
        check_buffers(skeleton)
        expected = {name: tuple(tensor.shape) for name, tensor in skeleton.state_dict().items()}
        odd = sorted(name for name in expected.keys() | shapes.keys() if expected.get(name) != shapes.get(name))
        if odd:
            raise DataError(
                f"The tensors of {path} do not fit {card.arch!r}: {odd[0]} is {shapes.get(odd[0], 'missing')}, "
                f"{expected.get(odd[0], 'nothing')} is expected. {len(odd)} tensors differ."
            )
        model = build_empty(card, **parts)
        stored = str(meta["backbone_sha256"])
    model.load_state_dict(tensors)
    backbone = {n.removeprefix("backbone."): t for n, t in tensors.items() if n.startswith("backbone.")}
    # Later formats have a checksum over everything, which has been checked already.
    if meta["format"] == 1 and (found := tensors_hash(backbone)) != stored:
        raise DataError(
            f"The backbone in {path} has changed since the file was written: its metadata says {stored[:16]}…, its "
            f"tensors are {found[:16]}…. Make or fetch the file anew."
        )
    return model.eval(), stored


def _is_foreign(path: Path, fetched: bool) -> bool:
    """Whether this is a model of another library. A file of the user's is not: that may be a mistake."""
    if path.is_dir() and (path / CONFIG).is_file():  # a run folder has one too, and a model file of ours
        return any((path / name).is_file() for name in WEIGHTS) and not is_dept_file(weights_file(path))
    return fetched and not is_dept_file(path)


def _converted(path: Path, place: str | PathLike[str]) -> Model:
    found = read_foreign(path)
    if found.classes is None and found.head.weight is not None:
        raise UsageError(
            f"{place} is a {found.layout} checkpoint without class names. Convert it with `dept convert`, which takes "
            "them from a file."
        )
    model = from_checkpoint(found, found.class_names())
    for line in (f"{place}: {found.described()}, converted", *found.notes):
        _note_once(line)
    return model


@cache  # a run may read its model several times
def _note_once(line: str) -> None:
    progress.info("Note: %s", line)


def adapter_meta(model: Model, **entries: Any) -> dict[str, Any]:
    """Metadata of an adapter over this model; `entries` say how it came about."""
    card = model.card
    meta = {
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


def read_adapter(place: str | Path, *, cached: bool = False) -> Adapter:
    """Read an adapter file, here or on the hub (hf-hub:USER/REPO), for whatever model it was made.

    Args:
        cached: of the hub, only take what was fetched earlier.
    """
    tensors, meta = read_tensors(located(place, ("adapter.safetensors",), cached=cached), "adapter")
    return Adapter({n: t.float() if t.dtype == torch.half else t for n, t in tensors.items()}, meta)


def load_adapter(place: str | Path, model: Model, *, backbone_sha256: str | None = None) -> Adapter:
    """Read an adapter for this model, see `check_adapter`."""
    adapter = read_adapter(place)
    check_adapter(adapter, model, str(place), backbone_sha256=backbone_sha256)
    return adapter


def check_adapter(adapter: Adapter, model: Model, name: str, *, backbone_sha256: str | None = None) -> None:
    """Refuse an adapter of another backbone or class list, or of another head or other prompts where it does not
    bring them.

    Args:
        name: what the adapter is called in an error.
        backbone_sha256: fingerprint of the model's backbone, if the caller knows it already.
    """
    meta, ours = adapter.meta, backbone_sha256 or fingerprint(model)
    with intact(name):
        if meta["backbone_sha256"] != ours:
            raise DataError(
                f"{name} was made for another backbone: adapter {meta['backbone_sha256'][:16]}… ({meta['arch']}), "
                f"model {ours[:16]}… ({model.card.arch}). Use the model file it was adapted from."
            )
        if meta["classes_sha256"] != _classes_hash(model.classes):
            theirs = meta.get("classes", f"sha256 {meta['classes_sha256'][:16]}…")
            raise DataError(f"{name} was made for other classes: adapter {theirs}, model {list(model.classes)[:20]}.")
    rest = rest_hash(model, adapter.tensors)
    if meta.get("rest_sha256", rest) != rest:  # older files do not say
        raise DataError(
            f"{name} was made for a model with the same backbone, but another head or other prompts. "
            "Use the model file it was adapted from."
        )


def apply_adapter(model: Model, adapter: Adapter) -> Model:
    """The model with the adapter written into it; room for prompts is made if it has none."""
    prompts = adapter.tensors.get("prompts")
    if prompts is not None and (model.prompts is None or model.prompts.shape != prompts.shape):
        model = model.with_room_for_prompts(prompts.shape[0], prompts.shape[1])
    adapter.copy_to(model)
    return model


def load(path: str | Path, *, adapter: str | Path | Adapter | None = None) -> Model:
    """Read a model and, on top, an adapter: files, here or on the hub. An ordinary nn.Module in eval mode."""
    model = load_model(path)
    if adapter is None:
        return model
    if isinstance(adapter, Adapter):
        check_adapter(adapter, model, "The adapter")
    else:
        adapter = load_adapter(adapter, model)
    return apply_adapter(model, adapter).eval()


def _classes_hash(classes: Sequence[str]) -> str:
    return hashlib.sha256(json.dumps(list(classes)).encode()).hexdigest()


def _tuples(values: dict[str, Any]) -> dict[str, Any]:
    """JSON has no tuples; dataclasses that are compared and hashed want them."""
    return {key: tuple(value) if isinstance(value, list) else value for key, value in values.items()}
