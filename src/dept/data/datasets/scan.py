"""What lies on disk, by names alone: class folders and list files. Nothing is opened or decoded."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath

from dept.data.lists import list_lines
from dept.data.places import SUFFIXES


@dataclass(frozen=True)
class Contents:
    """The images of one domain, each with the name of its class, and what is odd about them."""

    root: Path = Path()
    """names of images are relative to it: the domain's folder, or of a list the data set's"""
    files: tuple[tuple[str, str], ...] = ()
    """(path, class): in the order of the list file, or sorted"""
    folders: tuple[str, ...] = ()
    """class folders that were seen, with or without images"""
    missing: tuple[str, ...] = ()
    """files that the list names and that are not there"""
    problems: tuple[str, ...] = ()


def read_tree(folder: Path) -> Contents:
    """The images of `folder/<class>/…/image`, classes and files sorted by name."""
    entries = _visible(folder)
    names = sorted(entry.name for entry in entries if entry.is_dir())
    loose = sum(_is_image(entry.name) for entry in entries if not entry.is_dir())
    files = tuple((path, name) for name in names for path in sorted(_images_below(f"{folder}/{name}")))
    problems = (f"{loose:,} images lie directly in {folder} instead of in class folders",) if loose else ()
    return Contents(folder, files, tuple(names), problems=problems)


def read_list(file: Path, root: Path, classes: Sequence[str]) -> Contents:
    """The images of a list file: lines "path label", paths from the file's folder, labels indices into `classes`."""
    listed, problems = _parse(file, classes)
    present: dict[str, set[str]] = {}
    files: list[tuple[str, str]] = []
    missing: list[str] = []
    for name, label in listed:
        folder, _, last = f"{file.parent}/{name}".rpartition("/")
        if folder not in present:  # one look at each folder is faster than one at each file
            present[folder] = _names_in(folder)
        if last in present[folder]:
            files.append((f"{folder}/{last}", classes[label]))
        else:
            missing.append(name)
    return Contents(root, tuple(files), missing=tuple(missing), problems=tuple(problems))


def sub_folders(folder: Path) -> list[str]:
    """Names of the visible folders directly below, sorted; none if the folder is not there."""
    return sorted(entry.name for entry in _visible(folder) if entry.is_dir()) if folder.is_dir() else []


def _parse(file: Path, classes: Sequence[str]) -> tuple[list[tuple[str, int]], list[str]]:
    """(name, label) of every good line, and one sentence for each kind of bad one."""
    good: list[tuple[str, int]] = []
    malformed, contradicting = [], []
    for number, line in list_lines(file):
        name, _, text = line.rpartition(" ")
        if not name or not text.isdecimal() or int(text) >= len(classes):
            malformed.append(number)
            continue
        parent = PurePath(name).parent.name
        if parent in classes and parent != classes[int(text)]:
            contradicting.append(number)
        good.append((name.strip().removeprefix("./"), int(text)))
    problems = []
    if malformed:
        problems.append(
            f"{len(malformed):,} lines of {file} are not 'relative/path label' with a label from 0 to "
            f"{len(classes) - 1} (first: line {malformed[0]})"
        )
    if contradicting:
        problems.append(
            f"{len(contradicting):,} labels of {file} contradict the class folder (first: line {contradicting[0]})"
        )
    repeated = len(good) - len({name for name, _ in good})
    if repeated:
        problems.append(f"{repeated:,} images are listed more than once in {file}")
    return good, problems


def _visible(folder: str | Path) -> list[os.DirEntry[str]]:
    # Archives made on a Mac carry a second tree of files that look like images.
    with os.scandir(folder) as entries:
        return [entry for entry in entries if not entry.name.startswith(".") and entry.name != "__MACOSX"]


def _images_below(folder: str) -> list[str]:
    found: list[str] = []
    for entry in _visible(folder):
        if entry.is_dir():
            found += _images_below(entry.path)
        elif _is_image(entry.name):
            found.append(entry.path)
    return found


def _names_in(folder: str) -> set[str]:
    try:
        with os.scandir(folder) as entries:
            return {entry.name for entry in entries}
    except (FileNotFoundError, NotADirectoryError):
        return set()


def _is_image(name: str) -> bool:
    return PurePath(name).suffix.lower() in SUFFIXES
