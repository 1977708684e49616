"""Where the images of a stream come from: a folder that is watched, or paths that somebody writes to a pipe.

Both are generators of paths, in the order of arrival.
"""

from __future__ import annotations

import os
import select
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from dept.data.folders import images_below
from dept.data.places import Place, State, as_place
from dept.data.shards import file_state

Stopped = Callable[[], bool]


def written_paths(pipe: IO[bytes] | IO[str], stopped: Stopped) -> Iterator[Place]:
    """Paths from a pipe, one per line, each as soon as its line is complete. Waiting for the next one hears Ctrl-C."""
    descriptor, rest = pipe.fileno(), b""
    while not stopped():
        if not select.select([descriptor], [], [], 0.2)[0]:
            continue
        chunk = os.read(descriptor, 1 << 16)
        *lines, rest = (rest + chunk).split(b"\n") if chunk else (rest, b"")
        yield from (as_place(os.fsdecode(line.rstrip(b"\r"))) for line in lines if line.strip())
        if not chunk:
            return


def watched_paths(folder: Path, stopped: Stopped, *, poll: float, known: set[str]) -> Iterator[Path | None]:
    """New images of a folder, until stopped. None means that nothing more is there right now.

    A file that is still being written grows, so it is taken when two looks agree on its size and time of change. One
    that changes after it was taken is handed out again: its writer had only paused.

    Args:
        known: paths that are done already.
    """
    looks: dict[Path, State | None] = {}
    taken: dict[Path, State | None] = {}
    while not stopped():
        for path in (folder / name for name in images_below(folder).images):
            state = file_state(path)
            if str(path) in known and path not in taken:
                taken[path] = state  # by an earlier session
            if state is not None and state == looks.get(path) and state != taken.get(path):
                taken[path] = state
                yield path
            looks[path] = state
        yield None
        time.sleep(poll)
