"""The adaptation of one site as a job: idempotent, named by the hash of model, images and settings.

A site's folder is an ordinary run folder with one more file, job.json: the key of the job, how often it was begun, and
whether it is finished or why it failed.
"""

from __future__ import annotations

import hashlib
import json
import platform
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypedDict

import torch
from filelock import FileLock
from numpy.typing import NDArray

from dept.data.images import ImageSet, files_state, list_hash
from dept.data.loader import resolve_device
from dept.errors import DataError
from dept.io import read_json, read_tensors, write_json
from dept.methods.auto import Auto
from dept.methods.base import BaseConfig
from dept.models.files import ModelFile
from dept.runs.adapt import AdaptJob, AdaptOptions, adapt
from dept.runs.folder import MAY_CHANGE, PLAN, RunFolder
from dept.runs.sites import Site

RECORD = "job.json"
STATES = ("resume.safetensors", PLAN)
"""files from which an interrupted adaptation is resumed"""
Finish = Callable[[Path, ModelFile], None]
"""what else is to be made of a run folder, with its source model at hand, such as a report; can be pickled"""


class Record(TypedDict, total=False):
    """What job.json says."""

    key: str
    attempts: int
    adapted: bool
    finished: int
    """how often the job has come to its end: once, whatever died on the way"""
    seconds: float
    """of the last attempt"""
    host: str
    error: str


@dataclass(frozen=True)
class Settings:
    """How a site is adapted."""

    method: str
    config: BaseConfig | Auto.Config
    preset: str | None
    options: AdaptOptions

    def record(self) -> dict[str, Any]:
        """Everything that the result depends on."""
        options = {name: value for name, value in asdict(self.options).items() if name not in MAY_CHANGE}
        return {"method": self.method, "config": asdict(self.config), "preset": self.preset, "options": options}


@dataclass(frozen=True)
class SiteJob:
    """A `Job` of the runners."""

    site: Site
    folder: Path
    model: Path
    identity: str
    """of the model file's content"""
    settings: Settings
    key: str
    then: Finish | None = None
    overwrite: bool = False
    """replace a run that no fleet has made"""

    @property
    def title(self) -> str:
        """The site's name."""
        return self.site.name

    def done(self) -> bool:
        """Whether the site was adapted with exactly this model, these images and these settings."""
        record = read_record(self.folder)
        found = record.get("key") == self.key and record.get("finished", 0) > 0
        return found and (self.folder / "result.json").is_file()

    def run(self) -> None:
        """Adapt, or resume an adaptation that was interrupted, then `then`."""
        self.folder.mkdir(parents=True, exist_ok=True)
        # Ends with its process. Another one that runs the same job waits here, and finds it done.
        with FileLock(self.folder / ".job.lock"):
            if not self.done():
                self._run(read_record(self.folder))

    def _run(self, old: Record) -> None:
        began, again = time.monotonic(), old.get("key") == self.key
        if "key" not in old and not self.overwrite:
            RunFolder(self.folder, AdaptJob.product, resume=False)  # refuses a run that no fleet has made
        record: Record = {"key": self.key, "attempts": 1, "adapted": False, "finished": 0}
        if again:
            record |= {"attempts": old.get("attempts", 0) + 1, "finished": old.get("finished", 0)}
            record["adapted"] = old.get("adapted", False) and (self.folder / "result.json").is_file()
        write_json(self.folder / RECORD, record)
        source = loaded(self.model, self.identity, resolve_device(self.settings.options.device))
        if not record["adapted"]:
            # A state that was saved with other settings or images is no beginning for this run.
            self._adapt(source, resume=again and any((self.folder / name).exists() for name in STATES))
            record["adapted"] = True
            write_json(self.folder / RECORD, record)
        if self.then is not None:
            self.then(self.folder, source)
        record |= {"finished": record["finished"] + 1, "host": platform.node()}
        record["seconds"] = round(time.monotonic() - began, 2)
        write_json(self.folder / RECORD, record)

    def _adapt(self, source: ModelFile, *, resume: bool) -> None:
        adapt(
            source,
            str(self.site.images),
            out=self.folder,
            method=self.settings.method,
            config=self.settings.config,
            preset=self.settings.preset,
            options=self.settings.options,
            resume=resume,
            overwrite=not resume,
        )


def job_key(identity: str, images: ImageSet, settings: Settings) -> str:
    """First 12 hex digits of the sha256 of the model, the images (names, sizes, times of change) and the settings."""
    parts = {"model": identity, "images": [list_hash(images), files_state(images)], "settings": settings.record()}
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()[:12]


def read_record(folder: Path) -> Record:
    """What is known about the job of a site; nothing if it was never begun, or if the file is damaged."""
    file = folder / RECORD
    try:
        found = read_json(file) if file.is_file() else {}
    except DataError:
        return {}
    types = {"key": str, "error": str, "host": str, "attempts": int, "finished": int, "seconds": float | int}
    odd = [name for name, kind in types.items() if name in found and not isinstance(found[name], kind)]
    return {} if odd else Record(**found)  # type: ignore[typeddict-item]


def note_error(folder: Path, error: str) -> None:
    """Remember why a site has no result, or that it has one."""
    record = read_record(folder)
    if record.get("error", "") != error:
        write_json(folder / RECORD, {**record, "error": error})


# ---- the model of a process ----

_LOADED: dict[str, ModelFile] = {}
"""the model that the jobs of this process start from, by its identity"""


def loaded(path: Path, identity: str, device: str) -> ModelFile:
    """The model file, read by the first job of a process and kept for the others."""
    if identity not in _LOADED:
        _keep(ModelFile(path, device=device), identity)
    return _LOADED[identity]


def _keep(file: ModelFile, identity: str) -> None:
    if file.identity != identity:
        raise DataError(f"{file.path} has changed since the fleet was started. Start it again.")
    _LOADED.clear()  # one at a time
    _LOADED[identity] = file


@dataclass(frozen=True)
class Weights:
    """A model file on its way to the nodes of a cluster (a `Freight` of the runners)."""

    path: Path
    identity: str
    device: str

    def pack(self) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        """Tensors and metadata of the file; arrays are what Ray's workers can share without a copy."""
        tensors, meta = read_tensors(self.path, "model")
        return {name: tensor.numpy() for name, tensor in tensors.items()}, meta

    def unpack(self, packed: tuple[dict[str, NDArray[Any]], dict[str, Any]]) -> None:
        """Build the model of this process from them."""
        if self.identity in _LOADED:
            return
        arrays, meta = packed
        with warnings.catch_warnings():  # the arrays are read-only, and building only reads them
            warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
            tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
            _keep(ModelFile(self.path, contents=(tensors, meta), device=resolve_device(self.device)), self.identity)
