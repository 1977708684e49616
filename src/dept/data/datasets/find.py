"""One benchmark data set: where its domains are, and which images and labels they hold."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from dept.data.datasets.check import Finding
from dept.data.datasets.scan import Contents, read_list, read_tree, sub_folders
from dept.data.images import ImageSet
from dept.errors import DataError, UsageError, some

WNID = re.compile(r"n\d{8}")
IMAGENET = 1000


@dataclass(frozen=True)
class Domain:
    """One part of a data set: a folder of class folders, or a list file."""

    name: str
    images: int
    """how many the official release has"""
    folders: tuple[str, ...] = ()
    """where it may be, from the data set's folder; its name by default"""
    lists: tuple[str, ...] = ()
    """list files that may name its images, from the data set's folder"""
    needs_list: bool = False
    """whether the class folders alone do not say which images belong to it"""
    optional: bool = False
    """whether the data set counts as complete without it"""

    @property
    def places(self) -> tuple[str, ...]:
        """Folders that may hold it."""
        return self.folders or (self.name,)


@dataclass(frozen=True)
class Benchmark:
    """A data set in its official layout. `load` one domain, or `check` what is there."""

    name: str
    title: str
    domains: tuple[Domain, ...]
    classes: tuple[str, ...] | None
    """names in the official order; None for ImageNet's, whose folders are wnids"""
    folders: tuple[str, ...]
    """names that the data set's folder may have, in any case; the first one is suggested"""
    home: str
    licence: str
    inside: tuple[str, ...] = ("",)
    """where below that folder the release unpacks"""

    def __getitem__(self, domain: str) -> Domain:
        for candidate in self.domains:
            if candidate.name == domain:
                return candidate
        names = [d.name for d in self.domains]
        raise UsageError(f"{self.title} has no domain {domain!r}; its domains are {some(names, 20)}.")

    def check(self, root: str | Path, domains: Sequence[str] | None = None) -> list[Finding]:
        """What is there of every domain (or of those named), by looking at names only."""
        chosen = self.domains if domains is None else [self[name] for name in domains]
        places = self._places(root)
        return [self._look(root, places, domain)[0] for domain in chosen]

    def load(self, root: str | Path, domain: str, *, allow_partial: bool = False) -> ImageSet:
        """The labelled images of a domain, classes in the official order; incomplete data is refused.

        Args:
            root: the data set's folder, or the folder that holds it.
            allow_partial: take what is there; `check` says what is missing.
        """
        places = self._places(root)
        finding, contents = self._look(root, places, self[domain])
        if not places:
            names = " or ".join(self.folders)
            missing = f"{self.title} was not found: {root} is not, and does not hold, a folder named {names}."
            raise DataError(f"{missing} {self.where()}")
        if not finding.found or not (finding.complete or allow_partial):
            partial = " From Python, allow_partial=True takes what is there." if finding.found else ""
            raise DataError(f"{self.title}, {domain}, is {finding.state}: {finding}. {self.where()}{partial}")
        classes = imagenet_classes() if self.classes is None else self.classes
        index = {name: number for number, name in enumerate(classes)}
        foreign = sorted({key for _, key in contents.files if self._is_class(key)} - index.keys())
        if foreign:
            raise DataError(f"{some(foreign)} in {finding.path} are none of ImageNet's 1,000 classes.")
        paths, labels = zip(*((Path(path), index[key]) for path, key in contents.files if key in index), strict=True)
        return ImageSet(contents.root, paths, labels, classes)

    def where(self) -> str:
        """Where to get it, and under which folder name it is looked for."""
        return f"Get it at {self.home} ({self.licence}) and put it into a folder named {self.folders[0]!r}."

    # -- inside -------------------------------------------------------------------------------------------

    def _places(self, root: str | Path) -> list[Path]:
        """Folders that may hold the domains: `root` itself if it has the right name, and those below it that have."""
        root = Path(root)
        known = {name.lower(): rank for rank, name in reversed(list(enumerate(self.folders)))}
        below = sorted((known[n.lower()], n) for n in sub_folders(root) if n.lower() in known)
        bases = [root] * (root.is_dir() and root.resolve().name.lower() in known) + [root / name for _, name in below]
        return [base / part for base in bases for part in self.inside if (base / part).is_dir()]

    def _look(self, root: str | Path, places: Sequence[Path], domain: Domain) -> tuple[Finding, Contents]:
        """What is there of a domain, in the first place that has its folder or list."""
        if not places:
            return self._finding(domain, Path(root) / self.folders[0], Contents()), Contents()
        holding = (p for p in places if _first(p, domain.places) or _first(p, domain.lists))
        place = next(holding, places[0])
        file, folder = _first(place, domain.lists), _first(place, domain.places)
        path = folder or place / domain.places[0]
        if file is not None and file.is_file():
            assert self.classes is not None
            path, contents = file, read_list(file, place, self.classes)
        elif domain.needs_list:
            contents = Contents(problems=(f"the list file {place / domain.lists[0]} is missing",))
        else:
            contents = read_tree(path) if path.is_dir() else Contents()
        return self._finding(domain, path, contents), contents

    def _finding(self, domain: Domain, path: Path, contents: Contents) -> Finding:
        keys = [key for _, key in contents.files if self._is_class(key)]
        return Finding(
            self.name,
            domain.name,
            path,
            found=len(keys),
            expected=domain.images,
            classes_found=len(set(keys)),
            classes_expected=IMAGENET if self.classes is None else len(self.classes),
            optional=domain.optional,
            missing_classes=tuple(name for name in self.classes or () if name not in set(keys)),
            unknown_folders=tuple(name for name in contents.folders if not self._is_class(name)),
            missing_files=contents.missing,
            problems=contents.problems,
        )

    def _is_class(self, name: str) -> bool:
        # Of ImageNet by its form: a look at folders should not wait for timm and its list of wnids.
        return bool(WNID.fullmatch(name)) if self.classes is None else name in self.classes


@lru_cache
def imagenet_classes() -> tuple[str, ...]:
    """ImageNet's 1,000 wnids; the rank of a wnid is the index of its class."""
    from timm.data import ImageNetInfo  # here, because a look at folders should not wait for torch

    return tuple(ImageNetInfo("imagenet-1k").label_names())


def _first(place: Path, names: tuple[str, ...]) -> Path | None:
    return next((place / name for name in names if (place / name).exists()), None)
