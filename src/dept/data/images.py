"""Image sets: any folder of images, labelled trees, list files; what does not decode is set aside with its reason."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from dept.data.decoding import SUFFIXES, decode_problem
from dept.errors import DataError


@dataclass(frozen=True)
class ImageSet:
    """Paths in a fixed order, with labels (indices into `classes`) where they are known.

    `skipped` lists files that could not be decoded, each with the reason.
    """

    root: Path
    paths: tuple[Path, ...]
    labels: tuple[int, ...] | None = None
    classes: tuple[str, ...] = ()
    skipped: tuple[tuple[Path, str], ...] = ()

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
        return _read_list(path, None, labelled=False).unlabelled()
    _require_folder(path)
    return _some(ImageSet(path, tuple(images_below(path))))


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
        return _read_list(path, classes, labelled=True)
    _require_folder(path)
    found = sorted(entry.name for entry in path.iterdir() if entry.is_dir() and not entry.name.startswith("."))
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
    below = {name: images_below(path / name) for name in found}
    paths = tuple(image for images in below.values() for image in images)
    labels = tuple(order.index(name) for name, images in below.items() for _ in images)
    return _some(ImageSet(path, paths, labels, tuple(order)))


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


def decodable(images: ImageSet, *, channels: int = 3, workers: int = 4) -> ImageSet:
    """The images that decode; the others move to `skipped`. A DataError if none is left.

    Args:
        channels: of the model that will see them: a file may decode in colour and not in grey.
    """
    with ThreadPoolExecutor(max_workers=max(1, workers)) as pool:
        reasons = list(pool.map(partial(decode_problem, channels=channels), images.paths))
    good = [index for index, why in enumerate(reasons) if why is None]
    skipped = [(p, r) for p, r in zip(images.paths, reasons, strict=True) if r is not None]
    if not good:
        path, why = skipped[0]
        raise DataError(
            f"None of the {len(images)} images in {images.root} can be decoded (first: {path.name}: {why})."
        )
    return replace(images.take(good), skipped=images.skipped + tuple(skipped))


def images_below(folder: Path) -> list[Path]:
    """Image files at any depth, sorted; hidden ones, and what is in hidden folders, are left out."""
    files = (path for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES and path.is_file())
    return sorted(path for path in files if not any(name[0] == "." for name in path.relative_to(folder).parts))


def _read_list(path: Path, classes: Sequence[str] | None, *, labelled: bool) -> ImageSet:
    """A list file: one 'relative/path label' per line, label an index or a class name; paths from its folder."""
    numbered = list_lines(path)
    if not numbered:
        raise DataError(f"{path} lists no images; a list file has one 'relative/path label' per line.")
    rows = [line.rsplit(maxsplit=1) for _, line in numbered]
    short = [(number, line) for (number, line), row in zip(numbered, rows, strict=True) if len(row) != 2]
    if short and labelled:
        raise DataError(f"{path}, line {short[0][0]}: expected 'relative/path label', found {short[0][1]!r}.")
    # Lines that end like a picture have no label, but perhaps a path with spaces.
    if not labelled and (short or any(Path(line).suffix.lower() in SUFFIXES for _, line in numbered)):
        return _some(ImageSet(path.parent, tuple(path.parent / line for _, line in numbered)))
    paths = tuple(path.parent / row[0] for row in rows)
    given = [row[1] for row in rows]
    order = _list_classes(path, given, classes)
    index = {name: number for number, name in enumerate(order)}
    labels = tuple(index[text] if text in index else int(text) for text in given)
    return _some(ImageSet(path.parent, paths, labels, tuple(order)))


def _list_classes(path: Path, given: list[str], classes: Sequence[str] | None) -> list[str]:
    numeric = all(text.isdigit() for text in given)
    if classes is None:
        return [str(n) for n in range(max(map(int, given)) + 1)] if numeric else sorted(set(given))
    unknown = sorted(text for text in set(given) if text not in classes and not (text.isdigit()))
    numbers = {int(text) for text in given if text.isdigit() and text not in classes}
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
        raise DataError(f"{path} does not exist. Give a folder of images, one image, or a list file.")


def _some(images: ImageSet) -> ImageSet:
    if not len(images):
        kinds = " ".join(sorted(SUFFIXES))
        raise DataError(f"{images.root} holds no images (looked for {kinds}, at any depth).")
    return images


def list_hash(images: ImageSet) -> str:
    """sha256 of the relative paths in order."""
    return hashlib.sha256(os.fsencode("\n".join(images.names()))).hexdigest()
