"""Files on the Hugging Face hub, only when a user names them: hf-hub:USER/REPO[@REVISION][/FILE].

The one place where such a name becomes a file: whatever reads a model, an adapter or statistics asks `located`.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from os import PathLike
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from dept.errors import DataError, DeptError, UsageError, missing_extra

SCHEME = "hf-hub:"
WEIGHTS = ("model.safetensors", "pytorch_model.bin")
"""in the order of preference"""
CONFIG, PROCESSOR = "config.json", "preprocessor_config.json"
progress = logging.getLogger("dept.progress")
# No part begins with a dot: none of them leads out of the repository.
_NAME = re.compile(r"hf-hub:(\w[\w.-]*/\w[\w.-]*)(?:@(\w[\w.-]*))?(?:/(\w[\w.-]*(?:/\w[\w.-]*)*))?")


class Reference(NamedTuple):
    """A repository on the hub, or one file in it."""

    repo: str
    """USER/REPO"""
    revision: str | None = None
    file: str | None = None


def is_reference(place: object) -> bool:
    """Whether a place is on the hub."""
    return str(place).startswith(SCHEME)


def parse(place: str | PathLike[str]) -> Reference:
    """The parts of a reference; a UsageError if it is not well-formed."""
    match = _NAME.fullmatch(Path(place).as_posix())
    if not match:
        raise UsageError(
            f"A model or adapter on the hub is named {SCHEME}USER/REPO, {SCHEME}USER/REPO@REVISION or "
            f"{SCHEME}USER/REPO/FILE, not {place}."
        )
    return Reference(*match.groups())


def located(
    place: str | PathLike[str], names: Sequence[str], *, beside: Sequence[str] = (), cached: bool = False
) -> Path:
    """A path as it is; for a reference, the file in the hub's cache, fetched if need be.

    Args:
        names: what is looked for, in the order of preference, where the reference names no file.
        beside: files that are fetched into the same folder if the repository has them.
        cached: only take what was fetched earlier, and ask nobody.
    """
    return _fetched(parse(place), tuple(names), tuple(beside), cached) if is_reference(place) else Path(place)


@cache  # a run reads its model several times, and must not be given another one in between
def _fetched(named: Reference, names: tuple[str, ...], beside: tuple[str, ...], cached: bool) -> Path:
    wanted = names if named.file is None else (named.file,)
    folder = PurePosixPath(named.file or "").parent
    if not cached:
        progress.info("Fetching %s from the Hugging Face hub …", named.repo)
    advice = "Check the name and the network, or download its files elsewhere and give their folder."
    with explained(f"{named.repo} could not be fetched from the Hugging Face hub", advice):
        found = next((path for name in wanted if (path := _download(named, name, cached)) is not None), None)
        if found is None:
            raise DataError(f"{named.repo} on the Hugging Face hub has no {' or '.join(wanted)}.")
        for name in beside:
            _download(named, str(folder / name), cached)
    return found


def _download(named: Reference, file: str, cached: bool) -> Path | None:
    """The file; None if the repository has no such file."""
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

    try:
        return Path(hf_hub_download(named.repo, file, revision=named.revision, local_files_only=cached))
    except LocalEntryNotFoundError:  # nobody knows whether the file exists: there is no connection, or none is wanted
        if cached:
            return None
        raise
    except EntryNotFoundError:
        return None


@contextmanager
def explained(failure: str, advice: str) -> Iterator[None]:
    """Around calls to the hub, whose many errors become one sentence: what failed, why, and what to do."""
    try:
        from huggingface_hub import errors
    except ImportError as error:
        raise missing_extra("huggingface_hub", "hub") from error
    known = {
        errors.GatedRepoError: "access to it must be granted on its page first",
        errors.RepositoryNotFoundError: "there is no such repository, or it is private",
        errors.RevisionNotFoundError: "there is no such revision",
        errors.LocalEntryNotFoundError: "no connection",
    }
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # it would print a line for every attempt
    try:
        yield
    except DeptError:
        raise
    except Exception as error:  # many more types: HTTP, TLS, a full disk
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        reason = next((text for kind, text in known.items() if isinstance(error, kind)), first)
        raise DataError(f"{failure} ({reason}). {advice}") from error
