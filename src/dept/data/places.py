"""Where an image lies: a file, a file inside a tar archive, or an object behind a URL.

A file inside an archive is written as if the archive were a folder: shards/0001.tar/key.jpg.
"""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath
from typing import TypeAlias
from urllib.parse import urlsplit

from dept.errors import UsageError

SUFFIXES = {".jpg", ".jpeg", ".png", ".bmp", ".webp", ".tif", ".tiff", ".ppm", ".pgm", ".gif"}
UNREAD = {
    ".arw", ".avif", ".cr2", ".cr3", ".dng", ".eps", ".exr", ".heic", ".heif", ".jfif", ".jp2", ".jpe", ".jxl", ".nef",
    ".pbm", ".pnm", ".psd", ".svg", ".tga",
}  # fmt: skip
"""suffixes of images that are not read: such files are named, not passed over"""
NOT_REGULAR = "not a regular file"
ARCHIVE = ".tar"
_URL = re.compile(r"[a-z][a-z0-9+.:-]+://", re.IGNORECASE)
_FLAT = re.compile(r"[a-z][a-z0-9+.:-]+:/[^/]", re.IGNORECASE)
"""an address after pathlib, which keeps one slash of any two"""


class Url(PurePosixPath):
    """An address that fsspec understands: s3://bucket/folder, hf://datasets/…, memory://…"""

    def __str__(self) -> str:
        return super().__str__().replace(":/", "://", 1)  # pathlib keeps one slash of any two

    def absolute(self) -> Url:
        """An address is absolute already."""
        return self

    def resolve(self) -> Url:
        """Nobody follows links behind an address."""
        return self


Place: TypeAlias = Path | Url
State: TypeAlias = tuple[int, int]
"""size in bytes, and time of the last change or another number that a change changes"""
Skipped: TypeAlias = tuple[Place, str]
"""a file that is left out, and why"""


def as_place(given: str | Place) -> Place:
    """A path or an address, whichever it looks like; file:// is a path."""
    text = str(given)
    if isinstance(given, Path):
        if not _FLAT.match(text) or given.exists():
            return given
        text = text.replace(":/", "://", 1)  # an address that somebody, perhaps a parser, took for a path
    if text.startswith("file://"):
        return Path("/" + text.removeprefix("file://").lstrip("/"))
    if not is_url(text):
        return Path(text)
    if urlsplit(text.rpartition("::")[2]).password:
        raise UsageError(
            "The address of the images holds a password, which would be recorded with every result. Give it in the way "
            "that the storage has for it: a variable of the environment, or a file."
        )
    return Url(text)


def is_url(text: str) -> bool:
    """Whether a text is an address that is not simply a path."""
    return bool(_URL.match(text)) and not text.startswith("file://")


def suffix_of(name: str) -> str:
    """The suffix of a file name in lower case, as `Path(name).suffix` has it."""
    dot = name.rfind(".")
    return name[dot:].lower() if name.rfind("/") + 1 < dot < len(name) - 1 else ""


def not_read(suffix: str) -> str:
    """Why a file with such a suffix is left out."""
    return f"{suffix} files are not read; convert it to JPEG or PNG"


def sort_key(name: str) -> str:
    """Names sorted by it come in the order of their paths, folder by folder: a/z before a-b."""
    return name.replace("/", "\0")


def joined(base: str, name: str) -> str:
    """The text of `Path(base) / name`, for texts of paths or addresses."""
    if base == "." or name.startswith("/") or is_url(name):
        return name
    return f"{base}{name}" if base.endswith("/") else f"{base}/{name}"


def name_below(text: str, root: str) -> str:
    """A path relative to a root, or as it is when it lies elsewhere; both as texts."""
    if root == ".":
        return text
    start = root if root.endswith("/") else f"{root}/"
    return text.removeprefix(start)
