"""What is known of image files from an earlier look: size, time of change, and whether they decode.

A file that has not changed since need not be decoded once more to find out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dept.data.files import state_of
from dept.data.paths import Paths
from dept.data.places import is_url, joined

GONE = -1


@dataclass(frozen=True)
class Checked:
    """Images that were all decoded once."""

    paths: Paths
    """absolute"""
    states: NDArray[np.int64]
    """(n, 2): size and time of change before they were decoded"""
    problems: dict[int, str]
    """why the ones at some positions do not decode"""
    channels: int
    """that they were decoded to"""


class Seen(NamedTuple):
    """What an index knows of some images."""

    states: NDArray[np.int64]
    """(n, 2): as they are now"""
    known: NDArray[np.bool_]
    """(n,): whether the file is the one that was decoded"""
    problems: dict[int, str]
    """why known ones do not decode"""

    def unread(self) -> list[int]:
        """Positions of the images that must be decoded to know."""
        return [int(at) for at in np.flatnonzero(~self.known)]


class FileIndex:
    """Tables of checked images: those of earlier runs, and those of this one."""

    def __init__(self, earlier: Sequence[Checked] = ()) -> None:
        self.earlier = tuple(earlier)
        self.tables: list[Checked] = []

    def look(self, paths: Paths, channels: int) -> Seen:
        """What is known of images. Every file is asked for its size and time, and none is read."""
        texts = list(_absolute(paths))
        states = _states(texts)
        known, problems = np.zeros(len(texts), np.bool_), dict[int, str]()
        for table in (*self.tables, *self.earlier):
            if table.channels != channels:
                continue
            rows = {text: row for row, text in enumerate(table.paths.texts())}
            row = np.array([rows.get(text, GONE) for text in texts], np.int64)
            same = (row != GONE) & (states[:, 0] != GONE) & ~known
            same[same] = (table.states[row[same]] == states[same]).all(axis=1)
            known |= same
            problems |= {
                int(at): table.problems[int(row[at])] for at in np.flatnonzero(same) if int(row[at]) in table.problems
            }
        return Seen(states, known, problems)

    def learn(self, paths: Paths, states: NDArray[np.int64], problems: Mapping[int, str], channels: int) -> None:
        """Remember images that were all decoded, and the state that they were in before."""
        texts = list(_absolute(paths))
        kept = dict(problems)
        states = states.copy()
        for at in problems:
            if is_url(texts[at]):  # perhaps it was the network: next time it is tried again
                states[at] = GONE
                del kept[at]
        self.tables.append(Checked(Paths(Path(), texts), states, kept, channels))


def _absolute(paths: Paths) -> Iterable[str]:
    here = str(Path.cwd())
    return (joined(here, text) for text in paths.texts())


def _states(texts: Iterable[str]) -> NDArray[np.int64]:
    return np.array([state_of(text) or (GONE, GONE) for text in texts], dtype=np.int64).reshape(-1, 2)
