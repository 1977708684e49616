"""The adapters of a folder, resident over one backbone. Added, replaced, pinned and rolled back while serving.

FOLDER/index.sqlite3                       what is active, and who changed it
FOLDER/versions/DOMAIN/NUMBER.safetensors  every version, never changed
FOLDER/DOMAIN.safetensors and FOLDER/DOMAIN/adapter.safetensors are adopted as new versions when a server starts.
"""

from __future__ import annotations

import os
import re
import shutil
import threading
import time
import uuid
from collections.abc import Hashable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from filelock import FileLock
from torch import Tensor

from dept.core.adapter import Adapter, pick
from dept.core.blocks import check_promptable
from dept.core.select import TRAINING_ONLY
from dept.errors import DataError, DeptError, UsageError
from dept.io import file_sha256
from dept.models.files import load_adapter
from dept.models.model import Model
from dept.serve.index import Domain, Index, Transaction, Version
from dept.serve.routing import Reference, Router, dump, load

SOURCE = "source"
"""the name of the source model, which is served as it is"""
MOST_PROMPTS = 1_000
"""per stage: attention over more would slow every batch down that the adapter is in"""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


class NotFound(UsageError):
    """There is no such domain, version or job."""


class Conflict(UsageError):
    """The request contradicts the state that things are in."""


@dataclass(frozen=True)
class Entry:
    """What is served for a domain: tensors that replace the model's own for its samples."""

    domain: str
    version: int
    lane: Hashable
    """samples may share a batch if their lanes are equal"""
    tensors: dict[str, Tensor] = field(repr=False, default_factory=dict)


def check_name(name: str) -> str:
    """The name of a domain, which is part of file names; a UsageError if it cannot be one."""
    if not _NAME.fullmatch(name) or name == SOURCE:
        raise UsageError(
            f"{name[:80]!r} cannot be the name of a domain: up to 64 letters, digits, '_', '-' and '.', beginning with "
            f"a letter or digit, and not {SOURCE!r}."
        )
    return name


def check_not_pinned(domain: Domain) -> None:
    """Raise if nothing may change what is served for a domain."""
    if domain.pinned:
        raise Conflict(f"Domain {domain.name!r} is pinned to version {domain.active}. Unpin it first.")


class Pool:
    """The resident adapters, in step with the index. Reading an entry never waits."""

    def __init__(self, model: Model, sha: str, folder: Path, *, keep: int = 20) -> None:
        self.model, self.sha, self.folder, self.keep = model, sha, folder, keep
        self.index = Index(folder / "index.sqlite3")
        self.source = Entry(SOURCE, 0, _lane(model, SOURCE, 0, {}))
        self.domains: dict[str, Domain] = {}
        self.problems: dict[str, str] = {}
        """domain -> why its active version is not the one that is served"""
        self._entries: dict[str, Entry] = {}
        self._revision = -1
        self.router = Router({})
        self.references: dict[str, Reference] = {}
        """what drift is measured from"""
        self._signed = 0.0
        self._lock = threading.Lock()
        self.sync()

    # -- what is served -------------------------------------------------------------------------------------

    def get(self, domain: str) -> Entry:
        """The entry of a domain."""
        if domain == SOURCE:
            return self.source
        entry = self._entries.get(domain)
        if entry is None:
            raise NotFound(f"There is no domain {domain[:80]!r}.")
        return entry

    def names(self) -> list[str]:
        """All domains."""
        return sorted(self._entries)

    def bytes(self) -> int:
        """Of all resident adapters together."""
        return sum(tensor.nbytes for entry in self._entries.values() for tensor in entry.tensors.values())

    def sync(self) -> bool:
        """Take over what this or another process has changed; returns whether there was anything.

        A version that cannot be read does not replace the one that is served.
        """
        with self._lock:
            revision = self.index.revision()
            if revision == self._revision:
                return False
            domains = {domain.name: domain for domain in self.index.domains()}
            problems: dict[str, str] = {}
            entries: dict[str, Entry] = {}
            for name, domain in domains.items():
                held = self._entries.get(name, Entry(name, 0, self.source.lane))
                try:
                    entries[name] = held if held.version == domain.active else self._load(name, domain.active)
                except DeptError as error:
                    entries[name], problems[name] = held, str(error)
            # One assignment each: whoever predicts sees the old table or the new one.
            self._entries, self.domains, self.problems = entries, domains, problems
            self._revision = revision
            self._take_signatures()
            return True

    def _take_signatures(self) -> None:
        """What the images of the domains look like, if that has changed."""
        new = self.index.signatures(since=self._signed)
        if new:
            self._signed = max(at for at, _ in new.values())
            samples = {name: load(data) for name, (_, data) in self.index.signatures(since=0.0).items()}
            self.references = {name: Reference.of(rows) for name, rows in samples.items()}
            self.router = Router(samples)

    def _load(self, domain: str, number: int) -> Entry:
        if number == 0:
            return Entry(domain, 0, self.source.lane)
        adapter = self.read(self.file(domain, number))
        device = self.model.device
        tensors = {name: tensor.to(device) for name, tensor in adapter.tensors.items()}
        return Entry(domain, number, _lane(self.model, domain, number, tensors), tensors)

    def read(self, file: Path) -> Adapter:
        """An adapter file that fits the model; a DataError if it is damaged or made for another one."""
        adapter = load_adapter(file, self.model, backbone_sha256=self.sha)
        check_fit(self.model, adapter)
        return adapter

    def file(self, domain: str, number: int) -> Path:
        """Where a version is."""
        return self.folder / "versions" / check_name(domain) / f"{number:06}.safetensors"

    # -- changes --------------------------------------------------------------------------------------------

    @contextmanager
    def _changing(self, domain: str) -> Iterator[tuple[Transaction, Domain]]:
        """A change of one domain, served by this process as soon as it is made."""
        with self.index.changing() as change:
            found = change.domain(domain)
            if found is None:
                raise NotFound(f"There is no domain {domain[:80]!r}.")
            yield change, found
        self.sync()

    def create(self, domain: str, made_by: str) -> None:
        """A domain that is served by the source model, unless it exists."""
        check_name(domain)
        if self.index.domain(domain) is None:
            with self.index.changing() as change:
                change.add_domain(domain)
                change.note(made_by, domain, "create")
            self.sync()

    def add(
        self,
        domain: str,
        file: Path,
        made_by: str,
        *,
        note: str = "",
        job: str = "",
        verdict: dict[str, Any] | None = None,
    ) -> Version:
        """Add a copy of an adapter file as the next version of a domain, checked, not active."""
        place = self.file(domain, 0).parent
        place.mkdir(parents=True, exist_ok=True)
        private = place / f".incoming-{uuid.uuid4().hex}"
        try:
            shutil.copyfile(file, private)  # what is checked must be what is served
            adapter = self.read(private)
            method, images = str(adapter.meta.get("method", "")), adapter.meta.get("images", 0)
            with self.index.changing() as change:
                change.add_domain(domain)
                number = change.next_number(domain)
                version = Version(
                    domain, number, file_sha256(private), private.stat().st_size, method[:64],
                    images if isinstance(images, int) else 0, job, verdict or {}, note, time.time(), made_by,
                )  # fmt: skip
                os.replace(private, self.file(domain, number))  # noqa: PTH105 (a rename over what a crash has left)
                change.add_version(version)
                change.note(made_by, domain, "add", number, note)
                old = self._pruned(change, domain)
        except DataError as error:
            raise DataError(str(error).replace(str(private), "The adapter")) from error
        finally:
            private.unlink(missing_ok=True)
            with suppress(OSError):
                place.rmdir()  # of a domain that has come to nothing
        for number in old:
            self.file(domain, number).unlink(missing_ok=True)
        self.sync()
        return version

    def activate(self, domain: str, number: int, made_by: str, *, force: bool = False, automatic: bool = False) -> None:
        """Serve a version (0: the source model). A harmful one must be forced.

        Args:
            automatic: not asked for by a person; a pinned domain stays as it is.
        """
        with self._changing(domain) as (change, found):
            version = change.version(domain, number)
            if number != 0 and version is None:
                raise NotFound(f"Domain {domain!r} has no version {number}.")
            check_not_pinned(found)
            if version is not None and version.verdict.get("verdict") == "harmful" and not force:
                raise Conflict(f"Version {number} of {domain!r} was judged harmful. Use `force` to serve it anyway.")
            if found.active == number:
                return
            if number:
                self.read(self.file(domain, number))  # a damaged file is refused before it counts as active
            change.activate(domain, number)
            change.note(made_by, domain, "publish" if automatic else "activate", number, "forced" if force else "")

    def rollback(self, domain: str, made_by: str) -> int:
        """Serve what was served before the last activation; returns its number (0: the source model)."""
        with self._changing(domain) as (change, found):
            check_not_pinned(found)
            number = change.undo_activation(domain)
            if number is None:
                raise Conflict(f"Domain {domain!r} has nothing to roll back to: it is served by the source model.")
            change.note(made_by, domain, "rollback", number, f"from version {found.active}")
        return number

    def pin(self, domain: str, pinned: bool, made_by: str) -> None:
        """Keep a domain at its active version, or release it."""
        with self._changing(domain) as (change, found):
            change.update_domain(domain, pinned=int(pinned))
            change.note(made_by, domain, "pin" if pinned else "unpin", found.active)

    def set_online(self, domain: str, mode: str, method: str, made_by: str) -> None:
        """Switch online adaptation of a domain: off, shadow or on."""
        with self._changing(domain) as (change, found):
            change.update_domain(domain, online=mode, method=method)
            change.note(made_by, domain, f"online {mode}", found.active, method)

    def set_verdict(self, domain: str, number: int, verdict: dict[str, Any], made_by: str) -> None:
        """What is known of the gain of a version, from now on."""
        with self._changing(domain) as (change, _):
            change.set_verdict(domain, number, verdict)
            change.note(made_by, domain, "verdict", number, str(verdict.get("verdict", "")))

    def set_signature(self, domain: str, features: Tensor) -> None:
        """What the images of a domain look like: early features (n, D)."""
        with self._changing(domain) as (change, _):
            change.set_signature(domain, dump(features))

    def _pruned(self, change: Transaction, domain: str) -> list[int]:
        """Forget the oldest versions beyond those that are kept, but not the active one; returns their numbers."""
        found = change.domain(domain)
        active = found.active if found is not None else 0
        old = [number for number in change.numbers(domain)[self.keep :] if number != active]
        for number in old:
            change.remove_version(domain, number)
        return old

    # -- files that were put into the folder ----------------------------------------------------------------

    def adopt(self) -> tuple[list[Version], dict[Path, str]]:
        """Add and activate adapter files that lie in the folder and are new; returns them, and what was refused."""
        with FileLock(self.folder / ".adopt.lock"):  # several processes start at the same time
            return self._adopt()

    def _adopt(self) -> tuple[list[Version], dict[Path, str]]:
        known = {(version.domain, version.sha256) for version in self.index.versions()}
        added: list[Version] = []
        refused: dict[Path, str] = {}
        for name, file in sorted(_lying(self.folder).items()):
            try:
                if (name, file_sha256(file)) in known:
                    continue
                version = self.add(check_name(name), file, "start", note=f"found as {file.relative_to(self.folder)}")
                self.activate(name, version.number, "start")
                added.append(version)
            except DeptError as error:
                refused[file] = str(error)
        return added, refused


def _lying(folder: Path) -> dict[str, Path]:
    """Domain -> adapter file, for files beside the index and for run folders."""
    files = {file.stem: file for file in folder.glob("*.safetensors") if file.is_file()}
    runs = {file.parent.name: file for file in folder.glob("*/adapter.safetensors") if file.is_file()}
    return files | runs


def check_fit(model: Model, adapter: Adapter) -> None:
    """Refuse tensors that the model does not have, or has in another shape. Prompts may be more or fewer."""
    tensors = dict(adapter.tensors)
    if not tensors:
        raise DataError("The adapter holds no tensors.")
    if any(name.startswith(TRAINING_ONLY) for name in tensors):
        raise DataError("The adapter holds tensors that serve training only. It was not written by dept.")
    prompts = tensors.pop("prompts", None)
    if prompts is not None:
        _check_prompts(model, prompts)
    try:
        own = pick(model, tensors)
    except ValueError as error:
        raise DataError(f"The adapter does not fit the model: {error}") from error
    for name, tensor in tensors.items():
        if tensor.shape != own[name].shape or tensor.dtype != own[name].dtype:
            raise DataError(
                f"The adapter does not fit the model: {name} is {tuple(tensor.shape)} of {tensor.dtype}, expected "
                f"{tuple(own[name].shape)} of {own[name].dtype}."
            )


def _check_prompts(model: Model, prompts: Tensor) -> None:
    width, expected = model.head.in_features, "(stages, prompts, width)"
    if prompts.dim() != 3 or prompts.shape[2] != width or prompts.dtype != model.head.weight.dtype:
        raise DataError(
            f"The prompts of the adapter are {tuple(prompts.shape)} of {prompts.dtype}; expected {expected} of width "
            f"{width} and {model.head.weight.dtype}."
        )
    stages, per_stage = prompts.shape[:2]
    try:
        layers = len(check_promptable(model.backbone))
    except ValueError as error:
        raise DataError(f"The adapter has prompts. {error}") from error
    if not (0 < per_stage <= MOST_PROMPTS and stages > 0 and layers % stages == 0):
        raise DataError(
            f"The adapter has {stages} x {per_stage} prompts; expected 1 to {MOST_PROMPTS} in a number of stages that "
            f"divides {layers} layers."
        )


def _lane(model: Model, domain: str, version: int, tensors: dict[str, Tensor]) -> Hashable:
    """Which samples may share a batch: those whose adapters differ in nothing but prompts and head."""
    if any(name.startswith("backbone.") for name in tensors):
        return ("own", domain, version)
    prompts = tensors.get("prompts", model.prompts)
    return ("prompts", *prompts.shape[:2]) if prompts is not None else ("plain",)
