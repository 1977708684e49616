"""Images of the domains that benchmarks name: found under a data folder, or made from what is there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from dept.data.corruptions import EXTRA
from dept.data.corruptions.tree import write_tree
from dept.data.datasets import registry as benchmarks
from dept.data.datasets.table import PACS_CLASSES
from dept.data.digits import real_digits, write_digits
from dept.data.images import ImageSet, concatenated, find_labelled
from dept.data.subsets import split
from dept.errors import DataError, UsageError


@dataclass(frozen=True)
class Domains:
    """Where data sets are (`root`), and where made images go (`work`). One that lacks files is refused."""

    root: Path | None
    work: Path

    def load(self, data: str, domain: str) -> ImageSet:
        """All labelled images of a domain of a data set."""
        loader = _OWN.get(data)
        if loader is not None:
            return loader(self, domain)
        return benchmarks.get(data).load(self.folder(), domain)

    def ready(self, data: str) -> None:
        """Nothing, or the reason why no domain of a data set can be loaded; the digits need no folder."""
        if data != "digits":
            self.folder()

    def folder(self) -> Path:
        """The data folder; asked for only when it is needed."""
        if self.root is None:
            raise UsageError("This suite needs --data DIR (or $DEPT_DATA), the folder that holds its data sets.")
        if not self.root.is_dir():
            raise DataError(f"The data folder {self.root} does not exist.")
        return self.root


def _pacs(domains: Domains, domain: str) -> ImageSet:
    """`photo`, …; `photo/held-out`: the part that source training held out, under all four extra corruptions.

    Corrupted held-out source images are where settings are chosen, without any target image.
    """
    name, _, part = domain.partition("/")
    root = domains.folder() / "pacs" / name
    if not root.is_dir():
        raise DataError(f"{root} does not exist: PACS is expected as DATA/pacs/<domain>/<class>/<image>.")
    images = find_labelled(root, PACS_CLASSES)
    if not part:
        return images
    held_out = split(images, 0.1, seed=0)[1]
    return _corrupted(held_out, domains.work / "pacs-held-out" / name, EXTRA, 3)


def _imagenet_c(domains: Domains, domain: str) -> ImageSet:
    """Corruptions in ImageNet-C's layout; `clean`, where source models learn, is ImageNet's training set."""
    if domain != "clean":
        return benchmarks.get("imagenet-c").load(domains.folder(), domain)
    root = domains.folder() / "imagenet" / "train"
    if not root.is_dir():
        raise DataError(f"{root} does not exist: ImageNet's training images are expected as {root}/<wnid>/<image>.")
    return find_labelled(root)


def _imagenet_mini(domains: Domains, domain: str) -> ImageSet:
    """Two validation crops per class: `clean` is the first of each, a corruption is made from the second.

    `clean/corrupted`, where settings are chosen, has the first ones under one of the four extra corruptions each.
    """
    root = domains.folder() / "imagenet-val"
    if not root.is_dir():
        raise DataError(f"{root} does not exist: ImageNet crops are expected as DATA/imagenet-val/<wnid>/<image>.")
    images = find_labelled(root)
    labels = images.labels or ()
    firsts = {label: position for position, label in reversed(list(enumerate(labels)))}
    clean, work = images.take(sorted(firsts.values())), domains.work / "imagenet-c-mini"
    if domain == "clean":
        return clean
    if domain == "clean/corrupted":
        return _in_turn(clean, work / "clean", EXTRA)
    seconds = [position for position, label in enumerate(labels) if position == firsts[label] + 1]
    name, _, severity = domain.partition("/")
    return _corrupted(images.take(seconds), work, (name,), int(severity or 5))


def _in_turn(images: ImageSet, out: Path, kinds: tuple[str, ...]) -> ImageSet:
    """Every image under one of the corruptions, at severity 5."""
    turns = [list(range(first, len(images), len(kinds))) for first in range(len(kinds))]
    parts = [_corrupted(images.take(turn), out, (kind,), 5) for turn, kind in zip(turns, kinds, strict=True)]
    return concatenated(parts)


def _corrupted(images: ImageSet, out: Path, kinds: tuple[str, ...], severity: int) -> ImageSet:
    """The same images and labels under every one of the corruptions; files that are there are not made again."""
    written = write_tree(images, out, kinds, (severity,), size=0, workers=0)
    assert images.labels is not None
    return ImageSet(out, tuple(written), images.labels * len(kinds), images.classes)


def _digits(domains: Domains, domain: str) -> ImageSet:
    if domain != "real":
        raise UsageError(f"The digits have no images of {domain!r} here: their source model comes with the package.")
    folder, digits = domains.work / "digits" / "real", real_digits()
    if sum(1 for _ in folder.glob("*/*.png")) < len(digits[0]):
        write_digits(folder, digits)
    return find_labelled(folder)


_OWN: dict[str, Callable[[Domains, str], ImageSet]] = {
    "pacs": _pacs,
    "imagenet-c": _imagenet_c,
    "imagenet-c-mini": _imagenet_mini,
    "digits": _digits,
}
