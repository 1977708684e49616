"""Image sets: any folder of images, labelled trees, list files; what does not decode is set aside with its reason."""

from __future__ import annotations

import hashlib
import logging
import os
import stat
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeAlias, TypeVar

from dept.data.decoding import NOT_REGULAR, SUFFIXES, decode_problem
from dept.errors import DataError

T = TypeVar("T")
progress = logging.getLogger("dept.progress")
"""what a long pass over images says; the command line shows it"""
Skipped: TypeAlias = tuple[Path, str]
"""a file that is left out, and why"""
UNREAD = {
    ".arw", ".avif", ".cr2", ".cr3", ".dng", ".eps", ".exr", ".heic", ".heif", ".jfif", ".jp2", ".jpe", ".jxl", ".nef",
    ".pbm", ".pnm", ".psd", ".svg", ".tga",
}  # fmt: skip
"""suffixes of images that are not read: such files are named, not passed over"""
MAX_DIGITS = 6
"""of a label that is a number: a typing error must not ask for a billion classes"""


@dataclass(frozen=True)
class ImageSet:
    """Paths in a fixed order, with labels (indices into `classes`) where they are known.

    `skipped` lists files that cannot be read, each with the reason.
    """

    root: Path
    paths: tuple[Path, ...]
    labels: tuple[int, ...] | None = None
    classes: tuple[str, ...] = ()
    skipped: tuple[Skipped, ...] = ()

    def __len__(self) -> int:
        return len(self.paths)

    def take(self, indices: Iterable[int]) -> ImageSet:
        """The subset at the given positions, in that order."""
        chosen = list(indices)
        labels = None if self.labels is None else tuple(self.labels[i] for i in chosen)
        return replace(self, paths=tuple(self.paths[i] for i in chosen), labels=labels)

    def unlabelled(self) -> ImageSet:
        """The same images without labels: what an adaptation may see."""
        return replace(self, labels=None, classes=())

    def names(self) -> list[str]:
        """Paths relative to the root, with forward slashes: stable keys for results."""
        return [relative_name(path, self.root) for path in self.paths]


def concatenated(parts: Sequence[ImageSet], root: Path | None = None) -> ImageSet:
    """Sets with the same classes, one after the other; labelled if all of them are.

    Args:
        root: the folder that all of them are below by default, so that names do not tell where the data lie.
    """
    labelled = all(part.labels is not None for part in parts)
    return ImageSet(
        Path(os.path.commonpath([part.root for part in parts])) if root is None else root,
        tuple(path for part in parts for path in part.paths),
        tuple(label for part in parts for label in part.labels or ()) if labelled else None,
        parts[0].classes,
        tuple(skipped for part in parts for skipped in part.skipped),
    )


def relative_name(path: Path, root: Path) -> str:
    """`path` below `root` with forward slashes, or as it is when it lies elsewhere."""
    return path.relative_to(root).as_posix() if path.is_relative_to(root) else path.as_posix()


def find_images(source: str | Path) -> ImageSet:
    """All images below a folder (any nesting, sorted), of a list file, or one image file; no labels."""
    path = Path(source)
    if path.is_file():
        if path.suffix.lower() in SUFFIXES:
            return ImageSet(path.parent, (path,))
        return _unlabelled_list(path)
    _require_folder(path)
    images, skipped = images_below(path)
    return _some(ImageSet(path, tuple(images), skipped=tuple(skipped)))


def find_labelled(source: str | Path, classes: Sequence[str] | None = None) -> ImageSet:
    """Labelled images: `root/class/…/image` or a list file of "path label" lines.

    Args:
        classes: the class order to use (a model's); without it, the sorted names of the sub-folders.
    """
    path = Path(source)
    if path.is_file() and path.suffix.lower() in SUFFIXES:
        raise DataError(
            f"{path} is one image, and nothing says its label. Labelled images are expected as a folder with "
            "<class>/<image> in it, or as a list file with lines 'relative/path label'."
        )
    if path.is_file():
        return _labelled_list(path, classes)
    _require_folder(path)
    folders, loose, skipped = _look(path)
    found = sorted(folder.name for folder in folders)
    if not found:
        raise DataError(
            f"{path} has no sub-folders. Labelled images are expected as {path}/<class>/<image>, "
            "or as a list file with lines 'relative/path label'."
        )
    order = list(classes) if classes is not None else found
    unknown = [name for name in found if name not in order]
    if unknown:
        raise DataError(
            f"The classes of {path} are [{some(found)}], but the model's are [{some(order)}]. "
            f"[{some(unknown)}] cannot be mapped; rename the folders to the model's class names."
        )
    skipped += [(image, "it is not in a class folder") for image in loose]
    below = {name: images_below(path / name) for name in found}
    skipped += [entry for _, passed_over in below.values() for entry in passed_over]
    paths = tuple(image for images, _ in below.values() for image in images)
    labels = tuple(order.index(name) for name, (images, _) in below.items() for _ in images)
    return _some(ImageSet(path, paths, labels, tuple(order), tuple(skipped)))


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
    """The items; after a second, and then every five, the logger dept.progress says how many there were."""
    due = time.monotonic() + 1
    for number, item in enumerate(items):
        if time.monotonic() >= due:
            due += 5
            progress.info("%s: %s of %s", what, f"{number:,}", f"{total:,}")
        yield item


def decodable(images: ImageSet, *, channels: int = 3, workers: int = 4, known: ImageSet | None = None) -> ImageSet:
    """The images that decode; the others move to `skipped`. A DataError if none is left.

    Args:
        channels: of the model that will see them: a file may decode in colour and not in grey.
        known: images that were decoded before, with those that did not decode in `skipped`. They are not read again.
    """
    judged: dict[Path, str | None] = {}
    if known is not None:
        judged = dict.fromkeys(known.paths) | dict(known.skipped)
    unread = [path for path in images.paths if path not in judged]
    with ThreadPoolExecutor(max_workers=max(1, workers)) as pool:
        found = pool.map(partial(decode_problem, channels=channels), unread)
        judged |= dict(zip(unread, reported(found, len(unread), "Checking images"), strict=True))
    reasons = ((index, judged[path]) for index, path in enumerate(images.paths))
    return without(images, {index: why for index, why in reasons if why is not None})


def without(images: ImageSet, problems: Mapping[int, str]) -> ImageSet:
    """The images but those at some positions, which move to `skipped` with the reason. A DataError if none is left."""
    skipped = tuple((images.paths[index], why) for index, why in sorted(problems.items()))
    if len(skipped) == len(images):
        path, why = skipped[0]
        raise DataError(
            f"None of the {len(images)} images in {images.root} can be decoded (first: {path.name}: {why})."
        )
    good = (index for index in range(len(images)) if index not in problems)
    return replace(images.take(good), skipped=images.skipped + skipped)


def images_below(folder: Path) -> tuple[list[Path], list[Skipped]]:
    """Image files at any depth, sorted, and what is there but not read; hidden files and folders are left out.

    Links to folders are followed, and every folder is read once.
    """
    images: list[Path] = []
    skipped: list[Skipped] = []
    waiting, linked, seen = [folder], list[Path](), set[Path]()
    while waiting or linked:
        linked.sort(reverse=True)
        # Folders before links: a link into the tree itself must not change what images are called.
        place = waiting.pop() if waiting else linked.pop()
        if (real := place.resolve()) in seen:
            skipped.append((place, "the folder is read already, under another name"))
            continue
        seen.add(real)
        folders, found, passed_over = _look(place)
        images += found
        skipped += passed_over
        for below in folders:
            (linked if below.is_symlink() else waiting).append(below)
    return sorted(images), sorted(skipped)


def _look(folder: Path) -> tuple[list[Path], list[Path], list[Skipped]]:
    """Folders and images directly below a folder, and what looks like an image but is not read."""
    folders: list[Path] = []
    images: list[Path] = []
    skipped: list[Skipped] = []
    try:
        paths = [path for path in folder.iterdir() if not path.name.startswith(".")]
    except OSError as error:
        return [], [], [(folder, f"the folder cannot be read ({error.strerror})")]
    for path in paths:
        suffix, mode = path.suffix.lower(), 0
        with suppress(OSError):
            mode = path.stat().st_mode  # of what a link leads to
        if stat.S_ISDIR(mode):
            folders.append(path)
        elif not mode and suffix in {"", *SUFFIXES, *UNREAD}:
            skipped.append((path, "the link leads nowhere" if path.is_symlink() else "the file cannot be read"))
        elif suffix in UNREAD:
            skipped.append((path, f"{suffix} files are not read; convert it to JPEG or PNG"))
        elif suffix in SUFFIXES:
            images.append(path) if stat.S_ISREG(mode) else skipped.append((path, NOT_REGULAR))
    return folders, images, skipped


def _unlabelled_list(path: Path) -> ImageSet:
    """The images of a list file, with or without labels behind them."""
    rows = _rows(path)
    # Lines that end like a picture have no label, but perhaps a path with spaces.
    bare = any(len(words) != 2 or Path(line).suffix.lower() in SUFFIXES for _, line, words in rows)
    return ImageSet(path.parent, tuple(path.parent / (line if bare else words[0]) for _, line, words in rows))


def _labelled_list(path: Path, classes: Sequence[str] | None) -> ImageSet:
    """A list file: one 'relative/path label' per line, label an index or a class name; paths from its folder."""
    rows = _rows(path)
    for number, line, words in rows:
        if len(words) != 2:
            raise DataError(f"{path}, line {number}: expected 'relative/path label', found {line!r}.")
        if len(words[1].lstrip("0")) > MAX_DIGITS and words[1].isdecimal() and words[1] not in (classes or ()):
            raise DataError(
                f"{path}, line {number}: the label {words[1][:20]} is too large. A number is the index of a class and "
                f"has at most {MAX_DIGITS} digits."
            )
    given = [words[1] for _, _, words in rows]
    order = _list_classes(path, given, classes)
    index = {name: number for number, name in enumerate(order)}
    labels = tuple(index[text] if text in index else int(text) for text in given)
    return ImageSet(path.parent, tuple(path.parent / words[0] for _, _, words in rows), labels, tuple(order))


def _rows(path: Path) -> list[tuple[int, str, list[str]]]:
    """Number, text, and text before and after the last space of every line of a list file."""
    rows = [(number, line, line.rsplit(maxsplit=1)) for number, line in list_lines(path)]
    if not rows:
        raise DataError(f"{path} lists no images; a list file has one 'relative/path label' per line.")
    return rows


def _list_classes(path: Path, given: list[str], classes: Sequence[str] | None) -> list[str]:
    numeric = all(text.isdecimal() for text in given)
    if classes is None:
        return [str(n) for n in range(max(map(int, given)) + 1)] if numeric else sorted(set(given))
    unknown = sorted(text for text in set(given) if text not in classes and not text.isdecimal())
    numbers = {int(text) for text in given if text.isdecimal() and text not in classes}
    too_large = sorted(number for number in numbers if number >= len(classes))
    if unknown or too_large:
        raise DataError(
            f"{path} has labels {(unknown or too_large)[:5]} that the model does not know; "
            f"its {len(classes)} classes are [{some(classes)}]."
        )
    return list(classes)


def list_lines(path: Path) -> list[tuple[int, str]]:
    """The lines of a list file that are not blank, each with its number."""
    try:
        text = path.read_text(encoding="utf-8")
    except (UnicodeDecodeError, OSError) as error:
        raise DataError(f"{path} cannot be read as a list file ({type(error).__name__}).") from error
    return [(number, line.strip()) for number, line in enumerate(text.splitlines(), 1) if line.strip()]


def some(names: Sequence[object], most: int = 12) -> str:
    """The first few names, and how many there are."""
    text = ", ".join(map(str, names[:most]))
    return text if len(names) <= most else f"{text}, … ({len(names):,} in all)"


def _require_folder(path: Path) -> None:
    if not path.is_dir():
        what = "is not a regular file" if path.exists() else "does not exist"
        raise DataError(f"{path} {what}. Give a folder of images, one image, or a list file.")


def _some(images: ImageSet) -> ImageSet:
    if not len(images):
        kinds = " ".join(sorted(SUFFIXES))
        passed_over = [f"{path.name}: {why}" for path, why in images.skipped]
        more = f" Skipped: {some(passed_over, 3)}." if passed_over else ""
        raise DataError(f"{images.root} holds no images (looked for {kinds}, at any depth).{more}")
    return images


def files_state(images: ImageSet) -> str:
    """sha256 of sizes and times of change: whether files have been replaced since. No file is read."""
    found = [path.stat() if path.exists() else None for path in images.paths]
    states = [(state.st_size, state.st_mtime_ns) if state else None for state in found]
    return hashlib.sha256(repr(states).encode()).hexdigest()


def label_shares(images: ImageSet) -> tuple[float, ...]:
    """The share of each class among labelled images."""
    assert images.labels is not None
    counts = Counter(images.labels)
    return tuple(counts[label] / len(images) for label in range(len(images.classes)))


def list_hash(images: ImageSet) -> str:
    """sha256 of the relative paths in order."""
    return hashlib.sha256(os.fsencode("\n".join(images.names()))).hexdigest()
