"""Tar archives of images, in the layout of WebDataset: key.jpg, and its label in key.cls or key.json.

Archives come from anywhere. Nothing is ever unpacked: an index says where each image begins and how long it is, and an
image is read from there. Links, devices, sparse files and names that lead out of the archive are not read.
"""

from __future__ import annotations

import json
import os
import sys
import tarfile
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from dept.data.paths import Paths
from dept.data.places import (
    ARCHIVE,
    NOT_REGULAR,
    SUFFIXES,
    UNREAD,
    Place,
    Skipped,
    State,
    Url,
    as_place,
    not_read,
    sort_key,
    suffix_of,
)
from dept.data.remote import open_url, read_url, url_state
from dept.errors import DataError

MAX_BYTES = 400_000_000
"""of one image: 80 megapixels without compression, and a header"""
MAX_HEADER = 1_000_000
"""bytes that the headers of one file may ask to read; a long name has some thousand"""
MAX_LABEL = 65_536
"""bytes of a label file"""
LABELS = (".cls", ".json")
JSON_FIELDS = ("label", "cls", "class")


@dataclass(frozen=True)
class Shard:
    """Where the images of one archive lie in it."""

    images: Paths
    """names inside the archive, in the order that a folder would have"""
    spans: NDArray[np.int64]
    """(n, 2): first byte and number of bytes"""
    labels: tuple[str, ...]
    """what key.cls or key.json says of each image; empty where there is none"""
    skipped: tuple[Skipped, ...]

    def span(self, name: str) -> tuple[int, int]:
        """First byte and number of bytes of an image; a DataError if the archive does not hold it."""
        at = bisect_left(range(len(self.images)), sort_key(name), key=lambda row: sort_key(self.images.name(row)))
        if at == len(self.images) or self.images.name(at) != name:
            raise DataError("the archive does not hold it")
        start, size = self.spans[at].tolist()
        return start, size


def archive_of(text: str) -> tuple[Place, str] | None:
    """The archive that a place lies in, and its name there; None for any other place."""
    lower, at = text.lower(), 0
    while (at := lower.find(f"{ARCHIVE}/", at)) >= 0:
        at += len(ARCHIVE)
        outer = as_place(text[:at])
        if isinstance(outer, Url) or outer.is_file():  # a folder may have such a name too
            return outer, text[at + 1 :]
    return None


def shard(archive: Place) -> Shard:
    """The index of an archive, which is made once as long as the file does not change."""
    return _indexed(archive, None if isinstance(archive, Url) else file_state(archive))


def read_member(archive: Place, name: str) -> bytes:
    """The bytes of an image in an archive."""
    start, size = shard(archive).span(name)
    if isinstance(archive, Url):
        data = read_url(archive, start, start + size)
    else:
        with archive.open("rb") as file:
            file.seek(start)
            data = file.read(size)
    if len(data) < size:
        raise DataError("the archive ends in the middle of it")
    return data


def member_state(archive: Place, name: str) -> State | None:
    """Size of an image in an archive, and when the archive has changed."""
    try:
        size = shard(archive).span(name)[1]
    except DataError:
        return None
    outer = url_state(archive) if isinstance(archive, Url) else file_state(archive)
    return (size, outer[1]) if outer else None


def file_state(path: str | Path) -> State | None:
    """Size and time of the last change; None for a file that is not there."""
    try:
        found = os.stat(path)  # noqa: PTH116 (a million times, mostly on texts)
    except (OSError, ValueError):  # ValueError: a name that no file can have
        return None
    return found.st_size, found.st_mtime_ns


@cache  # an index is small; without it every image would read its whole archive
def _indexed(archive: Place, state: State | None) -> Shard:
    spans: dict[str, tuple[int, int]] = {}
    labels: dict[str, str] = {}
    skipped: list[Skipped] = []
    seen = 0
    try:
        for member, tar in _members(archive):
            seen += 1
            name, suffix = member.name.removeprefix("./"), suffix_of(member.name)
            if any(part.startswith(".") and part != ".." for part in name.split("/")):
                continue  # hidden, as in folders
            if suffix in LABELS:
                if (label := _label(member, tar, suffix)) and (suffix == ".cls" or _key(name) not in labels):
                    labels[_key(name)] = sys.intern(label)
            elif suffix in SUFFIXES and not (problem := _problem(member, name)):
                spans[name] = (member.offset_data, member.size)  # of two with one name the last counts, as for tar
            elif suffix in SUFFIXES | UNREAD:
                why = problem if suffix in SUFFIXES else not_read(suffix)
                skipped.append((archive / name.lstrip("/"), why))
    except Exception as error:  # hostile headers raise many types; what was read before is good
        said = str(error).splitlines()[0] if str(error) else type(error).__name__
        skipped.append((archive, f"the archive is damaged after {seen:,} of its files ({said})"))
    names = sorted(spans, key=sort_key)
    return Shard(
        Paths(archive, names),
        np.array([spans[name] for name in names], dtype=np.int64).reshape(-1, 2),
        tuple(labels.get(_key(name), "") for name in names),
        tuple(skipped),
    )


def _members(archive: Place) -> Iterator[tuple[tarfile.TarInfo, tarfile.TarFile]]:
    """The headers of an archive, checked to lead forwards and to end where the archive ends."""
    with open_url(archive) if isinstance(archive, Url) else archive.open("rb") as file:
        end = file.seek(0, 2)
        file.seek(0)
        careful = _Careful(file)
        tar = tarfile.open(fileobj=careful, mode="r:")  # type: ignore[call-overload]  # noqa: SIM115
        at = -1
        while (member := tar.next()) is not None:
            tar.members = []  # it would keep them all
            careful.left = MAX_HEADER
            if member.size < 0 or tar.offset <= at:  # a negative size leads back, for ever
                raise DataError("its headers lead in a circle")
            at = tar.offset
            if member.isreg() and not member.issparse() and member.offset_data + member.size > end:
                raise DataError(f"it ends in the middle of {member.name}")
            yield member, tar
        file.seek(tar.offset)
        if file.read(tarfile.BLOCKSIZE).strip(b"\0"):
            raise DataError("what follows is not a header")


class _Careful:
    """A file of which not too much is read at a time: a header may ask for gigabytes."""

    def __init__(self, file: IO[bytes]) -> None:
        self.seek, self.tell, self._read = file.seek, file.tell, file.read
        self.left = MAX_HEADER

    def read(self, size: int = -1) -> bytes:
        self.left -= size
        if size < 0 or self.left < 0:
            raise DataError(f"a header asks for more than {MAX_HEADER / 1e6:.0f} MB")
        return self._read(size)


def _problem(member: tarfile.TarInfo, name: str) -> str:
    """Why a member that is called like an image is not read; empty if it is."""
    if name.startswith("/") or ".." in name.split("/") or "\0" in name:
        return "its name leads out of the archive"
    if member.issym() or member.islnk():
        return "a link; links inside an archive are not followed"
    if not member.isreg():
        return NOT_REGULAR
    if member.issparse():
        return "a sparse file; pack it again without holes"
    if member.size > MAX_BYTES:
        return f"{member.size / 1e6:,.0f} MB; the limit is {MAX_BYTES / 1e6:.0f}"
    return ""


def _key(name: str) -> str:
    """What an image and its label have in common: the name up to the first dot after the folders."""
    folder, slash, last = name.rpartition("/")
    return folder + slash + last.partition(".")[0]


def _label(member: tarfile.TarInfo, tar: tarfile.TarFile, suffix: str) -> str:
    """The label in a small file: its text, or a field of its JSON object; empty if there is none."""
    file = tar.extractfile(member) if member.isreg() and not member.issparse() and member.size <= MAX_LABEL else None
    if file is None:
        return ""
    try:
        text = file.read().decode("utf-8").strip()
        value: Any = text if suffix == ".cls" else json.loads(text)
    except (ValueError, RecursionError):
        return ""
    if isinstance(value, dict):
        value = next((value[field] for field in JSON_FIELDS if field in value), "")
    return str(value).strip() if isinstance(value, (str, int)) and not isinstance(value, bool) else ""
