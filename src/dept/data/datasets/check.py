"""One benchmark data set: where its domains are, what they should hold, and what they do hold."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from dept.data.datasets.scan import Contents, read_list, read_tree, sub_folders
from dept.data.images import ImageSet
from dept.errors import DataError, UsageError

State = Literal["complete", "partial", "missing"]
WNID = re.compile(r"n\d{8}")
IMAGENET = 1000


@dataclass(frozen=True)
class Domain:
    """One part of a data set: a folder of class folders, or a list file."""

    name: str
    images: int | None
    """how many the official release has; None where there is no official count"""
    folders: tuple[str, ...] = ()
    """where it may be, from the data set's folder; its name by default"""
    lists: tuple[str, ...] = ()
    """list files that may name its images, from the data set's folder"""
    needs_list: bool = False
    """whether the class folders alone do not say which images belong to it"""
    optional: bool = False
    """whether the data set counts as complete without it"""


@dataclass(frozen=True)
class Finding:
    """What is there of one domain, beside what should be."""

    benchmark: str
    domain: str
    path: Path
    found: int
    expected: int | None
    classes_found: int
    classes_expected: int
    optional: bool = False
    missing_classes: tuple[str, ...] = ()
    unknown_folders: tuple[str, ...] = ()
    missing_files: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()

    @property
    def complete(self) -> bool:
        """Whether a result on this domain is a result on the official data."""
        if self.unknown_folders or self.missing_files or self.problems or not self.found:
            return False
        same_classes = self.classes_found == self.classes_expected
        return self.expected is None or (self.found == self.expected and same_classes)

    @property
    def state(self) -> State:
        """complete, partial, or missing (not one image)."""
        return "complete" if self.complete else "partial" if self.found else "missing"

    def __str__(self) -> str:
        expected = "" if self.expected is None else f" of {self.expected:,}"
        parts = [f"{self.found:,}{expected} images in {self.path}"]
        if self.classes_found != self.classes_expected:
            names = f", without {_some(self.missing_classes)}" if self.missing_classes and self.found else ""
            parts.append(f"{self.classes_found:,} of {self.classes_expected:,} classes{names}")
        if self.unknown_folders:
            parts.append(f"folders that are none of its classes: {_some(self.unknown_folders)}")
        if self.missing_files:
            parts.append(f"{len(self.missing_files):,} listed files do not exist (first: {self.missing_files[0]})")
        return "; ".join([*parts, *self.problems])

    def mark(self) -> dict[str, Any]:
        """What to record beside a result, so that one on partial data is told from one on all of it."""
        return {
            "benchmark": self.benchmark,
            "domain": self.domain,
            "images_found": self.found,
            "images_expected": self.expected,
            "complete": self.complete,
        }

    def record(self, most: int = 20) -> dict[str, Any]:
        """Everything as JSON; of long lists, the first `most` entries."""
        return {
            **self.mark(),
            "state": self.state,
            "optional": self.optional,
            "path": str(self.path),
            "classes_found": self.classes_found,
            "classes_expected": self.classes_expected,
            "missing_classes": list(self.missing_classes[:most]),
            "unknown_folders": list(self.unknown_folders[:most]),
            "missing_files": len(self.missing_files),
            "first_missing_files": list(self.missing_files[:most]),
            "problems": list(self.problems),
        }


@dataclass(frozen=True)
class Loaded:
    """The images of a domain, and what was found beside what was expected."""

    images: ImageSet
    finding: Finding


@dataclass(frozen=True)
class Benchmark:
    """A data set in its official layout. `load` one domain, or `check` what is there."""

    name: str
    title: str
    domains: tuple[Domain, ...]
    classes: tuple[str, ...] | int
    """names in the official order; a number for that many ImageNet classes, whose folders are wnids"""
    folders: tuple[str, ...]
    """names that the data set's folder may have, in any case; the first one is suggested"""
    home: str
    licence: str
    inside: tuple[str, ...] = ("",)
    """where below that folder the release unpacks; the first that exists"""
    numbered: bool = False
    """class folders are the indices of the ImageNet classes, not their wnids"""

    def __getitem__(self, domain: str) -> Domain:
        for candidate in self.domains:
            if candidate.name == domain:
                return candidate
        names = [d.name for d in self.domains]
        raise UsageError(f"{self.title} has no domain {domain!r}; its domains are {_some(names, 20)}.")

    def locate(self, root: str | Path) -> Path | None:
        """The data set's folder: `root` itself if it has the right name, or the one below it that has."""
        root = Path(root)
        known = {name.lower(): rank for rank, name in reversed(list(enumerate(self.folders)))}
        below = sorted((known[n.lower()], n) for n in sub_folders(root) if n.lower() in known)
        bases = [root] * (root.is_dir() and root.resolve().name.lower() in known) + [root / name for _, name in below]
        places = [base / part for base in bases for part in self.inside if (base / part).is_dir()]
        return next((place for place in places if self._holds(place)), places[0] if places else None)

    def check(self, root: str | Path, domains: Sequence[str] | None = None) -> list[Finding]:
        """What is there of every domain (or of those named), by looking at names only."""
        chosen = self.domains if domains is None else [self[name] for name in domains]
        place = self.locate(root)
        return [self._look(root, place, domain)[0] for domain in chosen]

    def load(self, root: str | Path, domain: str, *, allow_partial: bool = False) -> ImageSet:
        """The labelled images of a domain, classes in the official order; incomplete data is refused.

        Args:
            root: the data set's folder, or the folder that holds it.
            allow_partial: take what is there; `load_checked` also tells what is missing.
        """
        return self.load_checked(root, domain, allow_partial=allow_partial).images

    def load_checked(self, root: str | Path, domain: str, *, allow_partial: bool = False) -> Loaded:
        """As `load`, together with the finding that a protocol should record."""
        place = self.locate(root)
        finding, contents = self._look(root, place, self[domain])
        if place is None or not finding.found or not (finding.complete or allow_partial):
            raise DataError(self._refusal(root, place, finding))
        classes = self._class_order(contents, finding)
        index = {key: number for number, key in enumerate(map(str, range(IMAGENET)) if self.numbered else classes)}
        known = [(Path(path), index[key]) for path, key in contents.files if key in index]
        paths, labels = zip(*sorted(known, key=_by_label) if self.numbered else known, strict=True)
        return Loaded(ImageSet(place, paths, labels, classes), finding)

    def where(self) -> str:
        """Where to get it, and under which folder name it is looked for."""
        return f"Get it at {self.home} ({self.licence}) and put it into a folder named {self.folders[0]!r}."

    # -- inside -------------------------------------------------------------------------------------------

    def _holds(self, place: Path) -> bool:
        """Whether any domain has its folder or list here."""
        return any(_first(place, _folders(d)) or _first(place, d.lists) for d in self.domains)

    def _look(self, root: str | Path, place: Path | None, domain: Domain) -> tuple[Finding, Contents]:
        if place is None:
            return self._finding(domain, Path(root) / self.folders[0], Contents()), Contents()
        file, folder = _first(place, domain.lists), _first(place, _folders(domain))
        if file is not None and file.is_file():
            assert not isinstance(self.classes, int)
            contents = read_list(file, self.classes)
            return self._finding(domain, file, contents), contents
        if domain.needs_list:
            lacking = Contents(problems=(f"the list file {place / domain.lists[0]} is missing",))
            return self._finding(domain, folder or place / _folders(domain)[0], lacking), lacking
        contents = read_tree(folder) if folder is not None and folder.is_dir() else Contents()
        return self._finding(domain, folder or place / _folders(domain)[0], contents), contents

    def _finding(self, domain: Domain, path: Path, contents: Contents) -> Finding:
        unknown = tuple(name for name in contents.folders if not self._is_class(name))
        keys = [key for _, key in contents.files if self._is_class(key)]
        seen = set(keys)
        return Finding(
            self.name,
            domain.name,
            path,
            found=len(keys),
            expected=domain.images,
            classes_found=len(seen),
            classes_expected=self.classes if isinstance(self.classes, int) else len(self.classes),
            optional=domain.optional,
            missing_classes=() if isinstance(self.classes, int) else tuple(c for c in self.classes if c not in seen),
            unknown_folders=unknown,
            missing_files=contents.missing,
            problems=contents.problems,
        )

    def _is_class(self, name: str) -> bool:
        if self.numbered:  # "007" would be a second folder of class 7
            return name.isdecimal() and str(int(name)) == name and int(name) < IMAGENET
        return bool(WNID.fullmatch(name)) if isinstance(self.classes, int) else name in self.classes

    def _class_order(self, contents: Contents, finding: Finding) -> tuple[str, ...]:
        """Class names in the order of the labels; of a subset of ImageNet, the sorted wnids that are there."""
        if not isinstance(self.classes, int):
            return self.classes
        ours = imagenet_classes()
        found = sorted({key for _, key in contents.files if self._is_class(key)})
        foreign = [] if self.numbered else sorted(set(found) - set(ours))
        if foreign:
            raise DataError(f"{_some(foreign)} in {finding.path} are none of ImageNet's 1,000 classes.")
        return ours if self.classes == IMAGENET else tuple(found)

    def _refusal(self, root: str | Path, place: Path | None, finding: Finding) -> str:
        if place is None:
            names = " or ".join(self.folders)
            return (
                f"{self.title} was not found: {root} is not, and does not hold, a folder named {names}. " + self.where()
            )
        partial = " From Python, allow_partial=True takes what is there." if finding.found else ""
        return f"{self.title}, {finding.domain}, is {finding.state}: {finding}. {self.where()}{partial}"


@lru_cache
def imagenet_classes() -> tuple[str, ...]:
    """ImageNet's 1,000 wnids; the rank of a wnid is the index of its class."""
    from timm.data import ImageNetInfo  # here, because a look at folders should not wait for torch

    return tuple(ImageNetInfo("imagenet-1k").label_names())


def _folders(domain: Domain) -> tuple[str, ...]:
    return domain.folders or (domain.name,)


def _first(place: Path, names: tuple[str, ...]) -> Path | None:
    return next((place / name for name in names if (place / name).exists()), None)


def _by_label(pair: tuple[Path, int]) -> tuple[int, Path]:
    return pair[1], pair[0]


def _some(names: Sequence[str], most: int = 5) -> str:
    text = ", ".join(names[:most])
    return text if len(names) <= most else f"{text}, … ({len(names):,} in all)"
