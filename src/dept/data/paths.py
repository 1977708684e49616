"""The places of very many images, in little more memory than their names."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import overload

import numpy as np
from numpy.typing import NDArray

from dept.data.places import Place, as_place, joined


class Paths(Sequence[Place]):
    """A fixed sequence of places, made when they are asked for.

    A million `Path` objects take a gigabyte. Here all names are one text of bytes, with 16 bytes per name for where it
    begins and ends in it. Parts of a sequence share the text.

    Args:
        base: the folder or address that names are relative to; a name may also be absolute.
        names: as the file system has them, with forward slashes.
    """

    __slots__ = ("_ends", "_starts", "_text", "base")

    def __init__(self, base: Place, names: Iterable[str] = ()) -> None:
        self.base = base
        self._text = bytearray()
        ends = array("q")
        for name in names:
            self._text += name.encode("utf-8", "surrogateescape")
            ends.append(len(self._text))
        self._ends = np.array(ends, dtype=np.int64)
        self._starts = np.concatenate([np.zeros(1, np.int64), self._ends])[:-1]

    @classmethod
    def of(cls, places: Iterable[Place]) -> Paths:
        """Places that need not lie in one folder."""
        return cls(Path(), map(str, places))

    def __len__(self) -> int:
        return len(self._ends)

    def name(self, index: int) -> str:
        """The name of one, relative to the base."""
        return self._text[self._starts[index] : self._ends[index]].decode("utf-8", "surrogateescape")

    def names(self) -> Iterator[str]:
        """Names relative to the base."""
        return map(self.name, range(len(self)))

    def texts(self) -> Iterator[str]:
        """The places as texts, without making an object of each."""
        base = str(self.base)
        return (joined(base, name) for name in self.names())

    def packed(self) -> tuple[bytes, NDArray[np.int64]]:
        """All names as one text, and where each ends in it."""
        text = b"".join(self._text[start:end] for start, end in zip(self._starts, self._ends, strict=True))
        return text, np.cumsum(self._ends - self._starts)

    @classmethod
    def unpacked(cls, text: bytes, ends: NDArray[np.int64]) -> Paths:
        """Inverse of `packed`, for names that are whole paths; a ValueError if the parts do not fit together."""
        starts = np.concatenate([np.zeros(1, np.int64), ends])
        if ends.ndim != 1 or (np.diff(starts) < 0).any() or starts[-1] != len(text):
            raise ValueError("the ends of the names do not fit their text")
        paths = cls(Path())
        paths._text, paths._starts, paths._ends = bytearray(text), starts[:-1], ends
        return paths

    def take(self, indices: Iterable[int] | NDArray[np.int64]) -> Paths:
        """The places at some positions, in that order."""
        chosen = np.fromiter(indices, dtype=np.int64)
        part = Paths(self.base)
        part._text, part._starts, part._ends = self._text, self._starts[chosen], self._ends[chosen]
        return part

    @overload
    def __getitem__(self, index: int) -> Place: ...
    @overload
    def __getitem__(self, index: slice) -> Paths: ...
    def __getitem__(self, index: int | slice) -> Place | Paths:
        if isinstance(index, slice):
            return self.take(range(*index.indices(len(self))))
        return as_place(joined(str(self.base), self.name(index)))

    def __iter__(self) -> Iterator[Place]:
        return map(as_place, self.texts())

    def __add__(self, other: Sequence[Place]) -> tuple[Place, ...]:
        return (*self, *other)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Paths):
            return len(self) == len(other) and all(a == b for a, b in zip(self.texts(), other.texts(), strict=True))
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return f"<{len(self):,} places below {self.base}>"
