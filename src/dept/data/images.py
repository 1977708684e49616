"""Image sets: folders, archives and list files of images, local or remote; what does not decode is set aside."""

from __future__ import annotations

import hashlib
import logging
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby, islice
from pathlib import Path
from typing import TypeVar

from dept.data.decoding import decode_problem
from dept.data.files import state_of
from dept.data.folders import Listing, images_below, look
from dept.data.index import FileIndex
from dept.data.lists import check_label, indices, labelled_paths, unlabelled_paths
from dept.data.paths import Paths
from dept.data.places import (
    ARCHIVE,
    SUFFIXES,
    UNREAD,
    Place,
    Skipped,
    Url,
    as_place,
    name_below,
    not_read,
    sort_key,
    suffix_of,
)  # fmt: skip
from dept.data.remote import names_below
from dept.data.shards import shard
from dept.errors import DataError, NothingReadable, some

T = TypeVar("T")
progress = logging.getLogger("dept.progress.pass")
"""what a long pass over images says; the command line shows it on a terminal"""
PACKED = {".7z", ".bz2", ".gz", ".rar", ".tbz", ".tgz", ".txz", ".xz", ".zip", ".zst"}
"""suffixes of archives in which single files cannot be reached"""
BESIDE = "an archive beside images is not read; give the archive, or a folder of archives only"


@dataclass(frozen=True)
class ImageSet:
    """Places of images in a fixed order, with labels (indices into `classes`) where they are known.

    `skipped` lists files that cannot be read, each with the reason.
    """

    root: Place
    paths: Sequence[Place]
    labels: tuple[int, ...] | None = None
    classes: tuple[str, ...] = ()
    skipped: tuple[Skipped, ...] = ()
    replaced: dict[Place, str] | None = field(default=None, compare=False, repr=False)
    """of a set that nobody has checked: files that turned out not to decode, and why. Others take their places"""

    def __post_init__(self) -> None:
        if not isinstance(self.paths, Paths):
            object.__setattr__(self, "paths", Paths.of(self.paths))

    def __len__(self) -> int:
        return len(self.paths)

    def take(self, indices: Iterable[int]) -> ImageSet:
        """The subset at the given positions, in that order."""
        chosen = list(indices)
        labels = None if self.labels is None else tuple(self.labels[i] for i in chosen)
        return replace(self, paths=self.places.take(chosen), labels=labels)

    def unlabelled(self) -> ImageSet:
        """The same images without labels: what an adaptation may see."""
        return replace(self, labels=None, classes=())

    @property
    def places(self) -> Paths:
        """`paths`, as it is stored."""
        assert isinstance(self.paths, Paths)
        return self.paths

    def names(self) -> list[str]:
        """Paths relative to the root, with forward slashes: stable keys for results."""
        return list(self.iter_names())

    def iter_names(self) -> Iterator[str]:
        """`names`, one after the other."""
        if self.places.base == self.root:
            return self.places.names()
        root = str(self.root)
        return (name_below(text, root) for text in self.places.texts())


def concatenated(parts: Sequence[ImageSet], root: Path | None = None) -> ImageSet:
    """Sets with the same classes, one after the other; labelled if all of them are.

    Args:
        root: the folder that all of them are below by default, so that names do not tell where the data lie.
    """
    labelled = all(part.labels is not None for part in parts)
    return ImageSet(
        Path(os.path.commonpath([part.root for part in parts])) if root is None else root,
        Paths(Path(), (text for part in parts for text in part.places.texts())),
        tuple(label for part in parts for label in part.labels or ()) if labelled else None,
        parts[0].classes,
        tuple(skipped for part in parts for skipped in part.skipped),
        parts[0].replaced,
    )


def find_images(source: str | Place) -> ImageSet:
    """All images below a folder or address (any nesting, sorted), of archives, of a list file, or one; no labels."""
    place = as_place(source)
    below = _below(place)
    if below is not None:
        return _some(_folder(place, below))
    suffix = suffix_of(place.name)
    if suffix == ARCHIVE:
        return _some(_shards(place, [place]))
    if suffix in SUFFIXES:
        return ImageSet(place.parent, (place,))
    return ImageSet(place.parent, unlabelled_paths(_list_file(place)))


def find_labelled(source: str | Place, classes: Sequence[str] | None = None) -> ImageSet:
    """Labelled images: `root/class/…/image`, archives with key.cls or key.json, or a list file of "path label" lines.

    Args:
        classes: the class order to use (a model's); without it, the sorted names of the sub-folders.
    """
    place = as_place(source)
    below = _classes_below(place)
    if below is not None:
        return _some(_tree(place, *below, classes))
    suffix = suffix_of(place.name)
    if suffix == ARCHIVE:
        return _labelled_shards(place, [place], classes)
    if suffix in SUFFIXES:
        raise DataError(
            f"{place} is one image, and nothing says its label. Labelled images are expected as a folder with "
            "<class>/<image> in it, or as a list file with lines 'relative/path label'."
        )
    paths, given = labelled_paths(_list_file(place), classes)
    labels, order = indices(given, classes, str(place))
    return ImageSet(place.parent, paths, labels, order)


def labelled_as(images: str | Path | ImageSet, classes: Sequence[str] | None, role: str) -> ImageSet:
    """Labelled images, found or given; a DataError if they are not labelled, or not with a model's classes."""
    found = images if isinstance(images, ImageSet) else find_labelled(images, classes)
    if found.labels is None or (classes is not None and found.classes != tuple(classes)):
        labels = "no labels" if found.labels is None else f"the classes [{some(found.classes)}]"
        wanted = "" if classes is None else f" with the model's classes [{some(classes)}], in this order"
        raise DataError(
            f"The {role} images in {found.root} must be labelled{wanted}; they have {labels}. "
            "Use find_labelled(folder, model.classes)."
        )
    return found


def reported(items: Iterable[T], total: int, what: str) -> Iterator[T]:
    """The items; after a second, and then every five, the logger dept.progress.pass says how many there were."""
    due = time.monotonic() + 1
    for number, item in enumerate(items):
        if time.monotonic() >= due and number:
            due += 5
            progress.info("%s: %s of %s", what, f"{number:,}", f"{total:,}")
        yield item


def decodable(images: ImageSet, *, channels: int = 3, workers: int = 4, index: FileIndex | None = None) -> ImageSet:
    """The images that decode; the others move to `skipped`. A DataError if none is left.

    Args:
        channels: of the model that will see them: a file may decode in colour and not in grey.
        index: what is known of files. Those that have not changed are not read again; it learns of the others.
    """
    from dept.core.collective import all_items, from_first, own_rows  # not above: listing files does without torch

    # Of several processes the first one looks: an index lies beside a run, which the others need not see.
    seen = None if index is None else from_first(lambda: index.look(images.places, channels))
    unread = list(range(len(images))) if seen is None else seen.unread()
    problems = {} if seen is None else dict(seen.problems)
    with ThreadPoolExecutor(max_workers=max(1, workers)) as pool:
        own = own_rows(unread)
        found = _mapped(pool, partial(decode_problem, channels=channels), (images.paths[at] for at in own))
        reasons = all_items(list(reported(found, len(own), "Checking images")), len(unread))
    problems |= {at: why for at, why in zip(unread, reasons, strict=True) if why is not None}
    if index is not None and seen is not None:
        index.learn(images.places, seen.states, problems, channels)
    return without(images, problems)


def _mapped(
    pool: ThreadPoolExecutor, work: Callable[[Place], str | None], places: Iterable[Place]
) -> Iterator[str | None]:
    """`pool.map` in pieces: it makes an object of a kilobyte for every task at once."""
    places = iter(places)
    while piece := list(islice(places, 1024)):
        yield from pool.map(work, piece)


def without(images: ImageSet, problems: Mapping[int, str], wanted: str = "can be decoded") -> ImageSet:
    """The images but those at some positions, which move to `skipped` with the reason. A DataError if none is left."""
    skipped = tuple((images.paths[index], why) for index, why in sorted(problems.items()))
    if len(skipped) == len(images):
        path, why = skipped[0]
        found = f"None of the {len(images)} images in {images.root} {wanted} (first: {path.name}: {why})."
        raise NothingReadable(found, images.skipped + skipped)
    good = (index for index in range(len(images)) if index not in problems)
    return replace(images.take(good), skipped=images.skipped + skipped)


# ---- where images are ----


def _below(place: Place) -> Listing | None:
    """What lies below a folder or an address; None if it is one file."""
    if isinstance(place, Url):
        return _remote(place)
    if place.is_file():
        return None
    _require_folder(place)
    return images_below(place)


def _remote(url: Url) -> Listing | None:
    """Objects below an address, as if it were a folder."""
    names = names_below(url)
    if names is None:
        return None
    shown = [name for name in names if not any(part.startswith(".") for part in name.split("/"))]
    ordered = sorted(shown, key=sort_key)
    return Listing(
        images=[name for name in ordered if suffix_of(name) in SUFFIXES],
        archives=[name for name in ordered if suffix_of(name) == ARCHIVE],
        skipped=[(url / name, not_read(suffix_of(name))) for name in ordered if suffix_of(name) in UNREAD],
    )


def _folder(root: Place, below: Listing) -> ImageSet:
    """The images of a folder, or of its archives if it has only such."""
    if below.archives and not below.images:
        return _shards(root, [root / name for name in below.archives], below.skipped)
    skipped = below.skipped + [(root / name, BESIDE) for name in below.archives]
    return ImageSet(root, Paths(root, below.images), skipped=tuple(skipped))


def _classes_below(place: Place) -> tuple[dict[str, list[str]], Listing] | None:
    """The images of every class folder, and what else is there; None if the place is one file."""
    if isinstance(place, Url):
        rest = _remote(place)
        if rest is None:
            return None
        inside = [name for name in rest.images if "/" in name]
        rest.images = [name for name in rest.images if "/" not in name]
        return {name: list(group) for name, group in groupby(inside, lambda name: name.partition("/")[0])}, rest
    if place.is_file():
        return None
    _require_folder(place)
    rest, groups = look(place), {}
    for name in sorted(rest.folders):
        below = images_below(place / name)
        groups[name] = [f"{name}/{image}" for image in below.images]
        rest.archives += [f"{name}/{archive}" for archive in below.archives]
        rest.skipped += below.skipped
    return groups, rest


def _tree(root: Place, groups: dict[str, list[str]], rest: Listing, classes: Sequence[str] | None) -> ImageSet:
    """The images of class folders, or of archives if there are only such."""
    if rest.archives and not any(groups.values()):
        return _labelled_shards(root, [root / name for name in sorted(rest.archives, key=sort_key)], classes)
    if not groups:
        raise DataError(
            f"{root} has no sub-folders. Labelled images are expected as {root}/<class>/<image>, "
            "or as a list file with lines 'relative/path label'."
        )
    found = list(groups)
    order = found if classes is None else list(classes)
    unknown = [name for name in found if name not in order]
    if unknown:
        raise DataError(
            f"The classes of {root} are [{some(found)}], but the model's are [{some(order)}]. "
            f"[{some(unknown)}] cannot be mapped; rename the folders to the model's class names."
        )
    loose = [(root / name, "it is not in a class folder") for name in rest.images]
    skipped = rest.skipped + loose + [(root / name, BESIDE) for name in rest.archives]
    labels = tuple(order.index(name) for name, names in groups.items() for _ in names)
    paths = Paths(root, (image for names in groups.values() for image in names))
    return ImageSet(root, paths, labels, tuple(order), tuple(skipped))


def _shards(root: Place, archives: Sequence[Place], skipped: Sequence[Skipped] = ()) -> ImageSet:
    """The images of archives, one after the other."""
    found = [(archive, shard(archive)) for archive in archives]
    paths = Paths(root, (_inside(root, archive) + name for archive, one in found for name in one.images.names()))
    return ImageSet(root, paths, skipped=(*skipped, *(entry for _, one in found for entry in one.skipped)))


def _labelled_shards(root: Place, archives: Sequence[Place], classes: Sequence[str] | None) -> ImageSet:
    """The images of archives that have a label there."""
    images = _shards(root, archives)
    given = [label for archive in archives for label in shard(archive).labels]
    for label in set(given):
        check_label(label, classes, str(root))
    bare = {at: "neither key.cls nor key.json gives a label" for at, label in enumerate(given) if not label}
    images = without(_some(images), bare, "has a label")
    labels, order = indices([label for label in given if label], classes, str(root))
    return replace(images, labels=labels, classes=order)


def _inside(root: Place, archive: Place) -> str:
    """How names of an archive begin."""
    return "" if archive == root else f"{name_below(str(archive), str(root))}/"


def _list_file(place: Place) -> Path:
    if isinstance(place, Url):
        raise DataError(f"{place} is neither an image nor a .tar archive. A list file must lie on a local disk.")
    if suffix_of(place.name) in PACKED:
        raise DataError(
            f"{place} is a packed archive, of which single images cannot be read. Unpack it, or make a plain .tar."
        )
    return place


def _require_folder(path: Path) -> None:
    if not path.is_dir():
        what = "is not a regular file" if path.exists() else "does not exist"
        raise DataError(f"{path} {what}. Give a folder of images, one image, a .tar archive, or a list file.")


def _some(images: ImageSet) -> ImageSet:
    if not len(images):
        kinds = " ".join(sorted(SUFFIXES))
        passed_over = [f"{path.name}: {why}" for path, why in images.skipped]
        more = f" Skipped: {some(passed_over, 3)}." if passed_over else ""
        raise DataError(f"{images.root} holds no images (looked for {kinds}, at any depth).{more}")
    return images


# ---- what a set is known by ----


def files_state(images: ImageSet) -> str:
    """sha256 of sizes and times of change: whether files have been replaced since. No file is read."""
    digest = hashlib.sha256(b"[")
    for number, text in enumerate(images.places.texts()):
        digest.update(f"{', ' if number else ''}{state_of(text)}".encode())
    digest.update(b"]")
    return digest.hexdigest()


def label_shares(images: ImageSet) -> tuple[float, ...]:
    """The share of each class among labelled images."""
    assert images.labels is not None
    counts = Counter(images.labels)
    return tuple(counts[label] / len(images) for label in range(len(images.classes)))


def list_hash(images: ImageSet) -> str:
    """sha256 of the relative paths in order, one per line."""
    digest, names = hashlib.sha256(), images.iter_names()
    before = ""
    while piece := list(islice(names, 4096)):
        digest.update(os.fsencode(before + "\n".join(piece)))
        before = "\n"
    return digest.hexdigest()
