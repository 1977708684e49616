"""What lies below a folder, by names alone: no file is opened."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from dept.data.places import ARCHIVE, NOT_REGULAR, SUFFIXES, UNREAD, Skipped, not_read, sort_key, suffix_of


@dataclass
class Listing:
    """Names relative to a folder, with forward slashes, and what is there but not read."""

    folders: list[str] = field(default_factory=list)
    images: list[str] = field(default_factory=list)
    archives: list[str] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)


def images_below(folder: Path) -> Listing:
    """Images and archives at any depth, in the order of their paths; hidden files and folders are left out.

    Links to folders are followed, and every folder is read once.
    """
    below = Listing()
    waiting, linked, seen = [""], list[str](), set[str]()
    while waiting or linked:
        linked.sort(key=sort_key, reverse=True)
        # Folders before links: a link into the tree itself must not change what images are called.
        place = waiting.pop() if waiting else linked.pop()
        if (real := os.path.realpath(folder / place)) in seen:
            below.skipped.append((folder / place, "the folder is read already, under another name"))
            continue
        seen.add(real)
        found = look(folder / place)
        inside = f"{place}/" if place else ""
        below.images += [inside + name for name in found.images]
        below.archives += [inside + name for name in found.archives]
        below.skipped += found.skipped
        for name in found.folders:
            (linked if (folder / place / name).is_symlink() else waiting).append(inside + name)
    below.images.sort(key=sort_key)
    below.archives.sort(key=sort_key)
    below.skipped.sort()
    return below


def look(folder: Path) -> Listing:
    """Folders, images and archives directly below a folder, and what looks like an image but is not read."""
    found = Listing()
    try:
        with os.scandir(folder) as entries:
            visible = [entry for entry in entries if not entry.name.startswith(".")]
    except OSError as error:
        found.skipped.append((folder, f"the folder cannot be read ({error.strerror})"))
        return found
    for entry in visible:
        suffix, kind = suffix_of(entry.name), _kind(entry)
        if kind == "folder":
            found.folders.append(entry.name)
        elif kind == "nothing" and suffix in {"", *SUFFIXES, *UNREAD}:
            why = "the link leads nowhere" if entry.is_symlink() else "the file cannot be read"
            found.skipped.append((folder / entry.name, why))
        elif suffix in UNREAD:
            found.skipped.append((folder / entry.name, not_read(suffix)))
        elif kind == "file" and suffix == ARCHIVE:
            found.archives.append(entry.name)
        elif suffix in SUFFIXES:
            if kind == "file":
                found.images.append(entry.name)
            else:
                found.skipped.append((folder / entry.name, NOT_REGULAR))
    return found


def _kind(entry: os.DirEntry[str]) -> str:
    """What an entry is, or a link leads to. Mostly the folder itself says it, so that no file is asked."""
    with suppress(OSError):
        if entry.is_file():
            return "file"
        if entry.is_dir():
            return "folder"
        entry.stat()
        return "other"
    return "nothing"
