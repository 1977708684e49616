"""Images of the domains that benchmarks name: those of the data sets, and what is made from them.

A name may have a variant after a slash:
- "snow/5": a severity;
- "photo/held-out": what source training held out, under corruptions that no target has. Settings are chosen there,
  without any target image;
- "photo/seen": half of the images, to train on, and the other half as "photo/ink", "photo/poster" (see `styles`),
  "photo/contrast" or any other corruption at severity 5. Objectives are chosen there, without any target image;
- "sketch/3-classes": only the images of three classes, drawn by the name of the domain.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from dept.data import datasets
from dept.data.corruptions import CORRUPTIONS, EXTRA
from dept.data.corruptions.tree import write_tree
from dept.data.digits import real_digits, write_digits
from dept.data.images import ImageSet, concatenated, find_labelled
from dept.data.styles import STYLES, redrawn
from dept.data.subsets import split
from dept.errors import DataError, UsageError

FEW = "/3-classes"


def split_name(domain: str) -> tuple[str, str]:
    """A domain and its variant: ("snow", "5"), ("photo", "held-out"), ("cartoon", "")."""
    name, _, variant = domain.partition("/")
    return name, variant


@dataclass(frozen=True)
class Domains:
    """Where data sets are (`root`), and where made images go (`work`). One that lacks files is refused."""

    root: Path | None
    work: Path
    allow_partial: bool = False
    """take incomplete data sets as they are"""

    def load(self, data: str, domain: str) -> ImageSet:
        """All labelled images of a domain of a data set."""
        if data in _MADE:
            return _MADE[data](self, domain)
        if (data, domain) == ("imagenet-c", "clean"):  # where its source models learn
            data, domain = "imagenet", "train"
        if domain.endswith(FEW):
            return _few_classes(self.load(data, domain.removesuffix(FEW)), domain)
        name, variant = split_name(domain)
        if variant == "held-out":
            held_out = split(self.load(data, name), 0.1, seed=0)[1]
            return _corrupted(held_out, self.work / f"{data}-held-out" / name, EXTRA, 3)
        if variant == "seen" or variant in STYLES or variant in CORRUPTIONS:
            return self._half(data, name, variant)
        return datasets.get(data).load(self.folder(), domain, allow_partial=self.allow_partial)

    def _half(self, data: str, name: str, variant: str) -> ImageSet:
        """Half of a domain as it is, or the other half redrawn or corrupted."""
        seen, unseen = split(self.load(data, name), 0.5, seed=0)
        out = self.work / f"{data}-unseen" / name
        if variant == "seen":
            return seen
        return redrawn(unseen, out, variant) if variant in STYLES else _corrupted(unseen, out, (variant,), 5)

    def ready(self, data: str) -> None:
        """Raise if the data folder is missing; the digits need none."""
        if data != "digits":
            self.folder()

    def folder(self) -> Path:
        """The data folder; asked for only when it is needed."""
        if self.root is None:
            raise UsageError("data must name the folder that holds the data sets (or set $DEPT_DATA).")
        if not self.root.is_dir():
            raise DataError(f"The data folder {self.root} does not exist.")
        return self.root


def _imagenet_mini(domains: Domains, domain: str) -> ImageSet:
    """Two validation crops per class: `clean` is the first of each, a corruption is made from the second.

    `clean/corrupted`, where settings are chosen, has the first ones under one of the four extra corruptions each.
    """
    images = datasets.get("imagenet").load(domains.folder(), "val", allow_partial=True)
    labels = images.labels or ()
    firsts = {label: position for position, label in reversed(list(enumerate(labels)))}
    clean, work = images.take(sorted(firsts.values())), domains.work / "imagenet-c-mini"
    if domain == "clean":
        return clean
    if domain == "clean/corrupted":
        turns = [list(range(first, len(clean), len(EXTRA))) for first in range(len(EXTRA))]
        parts = zip(turns, EXTRA, strict=True)
        return concatenated([_corrupted(clean.take(turn), work / "clean", (kind,), 5) for turn, kind in parts])
    seconds = [position for position, label in enumerate(labels) if position == firsts[label] + 1]
    name, severity = split_name(domain)
    return _corrupted(images.take(seconds), work, (name,), int(severity))


def _corrupted(images: ImageSet, out: Path, kinds: tuple[str, ...], severity: int) -> ImageSet:
    """The same images and labels under every one of the corruptions; files that are there are not made again."""
    written = write_tree(images, out, kinds, (severity,), size=0, workers=0)
    assert images.labels is not None
    return ImageSet(out, tuple(written), images.labels * len(kinds), images.classes)


def _few_classes(images: ImageSet, domain: str) -> ImageSet:
    """Images of three of the classes: a target whose class shares are not those of the source."""
    assert images.labels is not None
    kept = random.Random(domain).sample(range(len(images.classes)), 3)
    return images.take([position for position, label in enumerate(images.labels) if label in kept])


def _digits(domains: Domains, domain: str) -> ImageSet:
    if domain != "real":
        raise UsageError(f"The digits have no images of {domain!r} here: their source model comes with the package.")
    folder, digits = domains.work / "digits" / "real", real_digits()
    if sum(1 for _ in folder.glob("*/*.png")) < len(digits[0]):
        write_digits(folder, digits)
    return find_labelled(folder)


_MADE: dict[str, Callable[[Domains, str], ImageSet]] = {"imagenet-c-mini": _imagenet_mini, "digits": _digits}
