"""Several labelled folders as the source domains of one model: what each is called, whether they fit together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate, combinations
from pathlib import Path
from typing import TypeAlias

import torch

from dept.data.images import ImageSet, concatenated, decodable, labelled_as
from dept.data.index import FileIndex
from dept.data.loader import Key
from dept.data.places import Place
from dept.data.subsets import split
from dept.errors import DataError, UsageError, some

Source: TypeAlias = str | Path | ImageSet
AnySource: TypeAlias = "Source | Sequence[Source] | Mapping[str, Source] | Sources"
"""one domain, several, or several with names"""


@dataclass(frozen=True)
class Sources:
    """Labelled images of one or more domains, with the same list of classes."""

    names: tuple[str, ...]
    parts: tuple[ImageSet, ...]
    places: tuple[Path, ...] = ()
    """folder or list file of every domain; empty unless all of them were given by path"""

    def __len__(self) -> int:
        return len(self.parts)

    @property
    def union(self) -> ImageSet:
        """The images of all domains, domain after domain; of one domain, that set itself."""
        return self.parts[0] if len(self) == 1 else concatenated(self.parts, Path())

    @property
    def owners(self) -> list[int]:
        """The number of its domain for every image of the union."""
        return [number for number, part in enumerate(self.parts) for _ in part.paths]

    def decodable(self, channels: int = 3, index: FileIndex | None = None) -> Sources:
        """The images that decode, as `dept.data.images.decodable` finds them; every domain must have some."""
        return replace(self, parts=tuple(decodable(part, channels=channels, index=index) for part in self.parts))

    def unchecked(self) -> Sources:
        """All images, of which those that do not decode are replaced as they come."""
        found: dict[Place, str] = {}  # one for all: the union has it too
        return replace(self, parts=tuple(replace(part, replaced=found) for part in self.parts))

    def split(self, held_out: float, *, seed: int) -> tuple[Sources, Sources]:
        """(training, held-out) parts, drawn in each domain by itself."""
        pairs = [split(part, held_out, seed=seed + number) for number, part in enumerate(self.parts)]
        training, held = zip(*pairs, strict=True)
        return replace(self, parts=training), replace(self, parts=held)

    def missing_classes(self) -> list[str]:
        """A sentence for every domain that has no image of some class; one domain alone is not judged."""
        notes = []
        for name, part in zip(self.names, self.parts, strict=True) if len(self) > 1 else ():
            present = set(part.labels or ())
            absent = [label for number, label in enumerate(part.classes) if number not in present]
            if absent:
                notes.append(
                    f"Source domain {name} ({part.root}) has no image of {some(absent)}; the model learns "
                    f"{'it' if len(absent) == 1 else 'them'} from the other domains only. If a folder is misspelt, "
                    "rename it."
                )
        return notes


def find_sources(source: AnySource, classes: Sequence[str] | None = None) -> Sources:
    """The source domains that were asked for, checked against each other.

    Args:
        source: a folder with one sub-folder per class, a list file or an ImageSet; a list of these; or a dict that
            names them. Otherwise a domain is called like its folder, or by as much of the path as tells it apart.
        classes: the class order to use (a model's); without it, the sorted union over the domains. A domain may
            lack classes (see `Sources.missing_classes`), but it must share some with the others.
    """
    if isinstance(source, Sources):
        for part in source.parts:
            labelled_as(part, classes, "source")
        return source
    if isinstance(source, (str, Path, ImageSet)):
        source = [source]
    given = list(source.values()) if isinstance(source, Mapping) else list(source)
    if not given:
        raise UsageError("No source folder was given; name at least one, with one sub-folder per class.")
    paths = tuple(Path(one) for one in given if not isinstance(one, ImageSet))
    _check_places(paths)
    names = tuple(source) if isinstance(source, Mapping) else _distinct_names(given)
    parts = [labelled_as(one, classes, "source") for one in given]
    if len(parts) > 1:
        order = _common_classes(names, parts) if classes is None else classes
        parts = [_reordered(part, order) for part in parts]
        _check_overlap(names, parts)
    return Sources(names, tuple(parts), paths if len(paths) == len(parts) else ())


def domain_keys(sizes: Sequence[int], share: int, steps: Iterable[int], seed: int) -> Iterator[list[Key]]:
    """Keys of the batches at the given steps: `share` images of every domain, positions in the union of all.

    A domain is an endless row of fresh seeded permutations, so a short one starts over while a long one goes on, and
    every batch has the same number of each. The epoch in a key is the domain's own.
    """
    first = [0, *accumulate(sizes)]

    @lru_cache(maxsize=4 * len(sizes))
    def permutation(domain: int, epoch: int) -> list[int]:
        generator = torch.Generator().manual_seed((seed * 1_000_003 + epoch) * len(sizes) + domain)
        return torch.randperm(sizes[domain], generator=generator).tolist()

    for step in steps:
        keys: list[Key] = []
        for domain, size in enumerate(sizes):
            for position in range(step * share, (step + 1) * share):
                epoch, place = divmod(position, size)
                keys.append((epoch, first[domain] + permutation(domain, epoch)[place]))
        yield keys


def _check_places(places: Sequence[Path]) -> None:
    """Refuse a folder that is given twice, or inside another one: its images would count for two domains."""
    for one, other in combinations(places, 2):
        first, second = one.resolve(), other.resolve()
        if first == second and first.is_dir():
            raise UsageError(
                f"The source folder {one} is given twice{f', also as {other}' if one != other else ''}. Every source "
                "is one domain: give it once."
            )
        if first in second.parents or second in first.parents:
            inner, outer = (other, one) if first in second.parents else (one, other)
            raise UsageError(
                f"The source {inner} lies inside the source {outer}. Every source is one domain with folders of its "
                "own: give folders side by side."
            )


def _check_overlap(names: Sequence[str], parts: Sequence[ImageSet]) -> None:
    """Refuse an image that two domains hold (list files and ImageSets may)."""
    files = [{part.root.resolve() / name for name in part.names()} for part in parts]
    for one, other in combinations(range(len(parts)), 2):
        both = files[one] & files[other]
        if both:
            raise UsageError(
                f"The source domains {names[one]} and {names[other]} have {len(both)} images in common, {min(both)} "
                "for one. Every image belongs to one domain: leave it out of the others."
            )


def _distinct_names(given: Sequence[Source]) -> tuple[str, ...]:
    """The last parts of the paths, as few as tell them apart: (photo, art), or (a/train, b/train)."""
    places = [one.root if isinstance(one, ImageSet) else Path(one) for one in given]
    parts = [place.resolve().parts for place in places]
    for length in range(1, max(map(len, parts)) + 1):
        names = tuple("/".join(words[-length:]) for words in parts)
        if len(set(names)) == len(names):
            return names
    raise UsageError(f"Several source domains come from {places[0]}; name them: {{'first': images, 'second': images}}.")


def _common_classes(names: Sequence[str], parts: Sequence[ImageSet]) -> list[str]:
    """The union of the domains' classes, in order; a DataError if it cannot be one problem."""
    union = {label for part in parts for label in part.classes}
    for name, part in zip(names, parts, strict=True):
        others = {label for other in parts if other is not part for label in other.classes}
        if not others & set(part.classes):
            raise DataError(
                f"The source domain {name} ({part.root}) has the classes {some(part.classes)}, the others have "
                f"{some(sorted(others))}: none in common. Domains show the same classes; rename the folders."
            )
    for one, other in combinations(sorted(union), 2):
        if _plain(one) == _plain(other) and not any({one, other} <= set(part.classes) for part in parts):
            homes = [
                next(name for name, part in zip(names, parts, strict=True) if label in part.classes)
                for label in (one, other)
            ]
            raise DataError(
                f"The classes {one!r} (in {homes[0]}) and {other!r} (in {homes[1]}) look like one class with two "
                "spellings. Class folders must have the same name in every domain: rename one of them."
            )
    return sorted(union, key=(lambda label: (int(label), label)) if all(map(str.isdigit, union)) else None)


def _reordered(part: ImageSet, order: Sequence[str]) -> ImageSet:
    """The same images with labels that count in `order`."""
    index = {label: number for number, label in enumerate(order)}
    labels = tuple(index[part.classes[label]] for label in part.labels or ())
    return replace(part, labels=labels, classes=tuple(order))


def _plain(label: str) -> str:
    return "".join(letter for letter in label.casefold() if letter.isalnum())
