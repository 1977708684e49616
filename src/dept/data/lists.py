"""List files: one image per line, with or without a label behind it."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from dept.data.paths import Paths
from dept.data.places import SUFFIXES, as_place, is_url, name_below, suffix_of
from dept.errors import DataError, some

MAX_DIGITS = 6
"""of a label that is a number: a typing error must not ask for a billion classes"""


def unlabelled_paths(file: Path) -> Paths:
    """The images of a list file, with or without labels behind them."""
    rows = ((line, line.rsplit(maxsplit=1)) for _, line in list_lines(file))
    # Lines that end like a picture have no label, but perhaps a path with spaces.
    bare = any(len(words) != 2 or _suffix(line) in SUFFIXES for line, words in rows)
    lines = (line if bare else line.rsplit(maxsplit=1)[0] for _, line in list_lines(file))
    return _some(Paths(file.parent, (_name(line, file.parent) for line in lines)), file)


def labelled_paths(file: Path, classes: Sequence[str] | None) -> tuple[Paths, list[str]]:
    """The images of a list of 'relative/path label' lines, and the labels as they are written."""
    given: list[str] = []

    def names() -> Iterator[str]:
        for number, line in list_lines(file):
            words = line.rsplit(maxsplit=1)
            if len(words) != 2:
                raise DataError(f"{file}, line {number}: expected 'relative/path label', found {line!r}.")
            check_label(words[1], classes, f"{file}, line {number}")
            given.append(sys.intern(words[1]))
            yield _name(words[0], file.parent)

    return _some(Paths(file.parent, names()), file), given


def check_label(text: str, classes: Sequence[str] | None, where: str) -> None:
    """Refuse a label that is a far too large number."""
    if len(text.lstrip("0")) > MAX_DIGITS and text.isdecimal() and text not in (classes or ()):
        raise DataError(
            f"{where}: the label {text[:20]} is too large. A number is the index of a class and "
            f"has at most {MAX_DIGITS} digits."
        )


def indices(given: Sequence[str], classes: Sequence[str] | None, where: str) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Labels as they are written, indices or names of classes, as indices, and the classes."""
    order = _classes(where, set(given), classes)
    index = {name: number for number, name in enumerate(order)}
    return tuple(index[text] if text in index else int(text) for text in given), tuple(order)


def _classes(where: str, given: set[str], classes: Sequence[str] | None) -> list[str]:
    if classes is None:
        numeric = all(text.isdecimal() for text in given)
        return [str(n) for n in range(max(map(int, given)) + 1)] if numeric else sorted(given)
    known = set(classes)
    unknown = sorted(text for text in given if text not in known and not text.isdecimal())
    numbers = {int(text) for text in given if text.isdecimal() and text not in known}
    too_large = sorted(number for number in numbers if number >= len(classes))
    if unknown or too_large:
        raise DataError(
            f"{where} has labels {(unknown or too_large)[:5]} that the model does not know; "
            f"its {len(classes)} classes are [{some(classes)}]."
        )
    return list(classes)


def list_lines(file: Path) -> Iterator[tuple[int, str]]:
    """The lines of a list file that are not blank, each with its number."""
    number = 0
    try:
        with file.open(encoding="utf-8") as text:
            for piece in text:
                for line in piece.splitlines():  # Unicode has more line ends than a file
                    number += 1
                    if stripped := line.strip():
                        yield number, stripped
    except (UnicodeDecodeError, OSError) as error:
        raise DataError(f"{file} cannot be read as a list file ({type(error).__name__}).") from error


def _some(paths: Paths, file: Path) -> Paths:
    if not len(paths):
        raise DataError(f"{file} lists no images; a list file has one 'relative/path label' per line.")
    return paths


def _name(line: str, folder: Path) -> str:
    """A path of a list as the name that `folder / line` has below the folder, or whole if it lies elsewhere."""
    if _plain(line):
        return line
    return name_below(str(as_place(line) if is_url(line) else folder / line), str(folder))


def _suffix(line: str) -> str:
    return suffix_of(line) if _plain(line) else Path(line).suffix.lower()


def _plain(line: str) -> bool:
    """Whether pathlib would leave a relative path as it is. Asking it is slow."""
    return line[0] not in "./" and line[-1] not in "./" and "//" not in line and "/./" not in line
