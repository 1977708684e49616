"""Commands that torchrun has started several times: one run, of which the first process speaks."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING

from dept.errors import UsageError

if TYPE_CHECKING:
    from dept.runs.distributed import Processes

TOGETHER = ("train", "adapt", "uda")
"""commands that several processes can do together"""
_joined: Processes | None = None


@contextmanager
def one_of_several(name: str, words: list[str]) -> Iterator[None]:
    """Join the other processes, if there are any, for a command; all but the first are silent."""
    global _joined
    size = os.environ.get("WORLD_SIZE", "1")
    if "RANK" not in os.environ or size == "1":
        yield
        return
    if name not in TOGETHER:
        if os.environ["RANK"] != "0":
            raise SystemExit(UsageError.exit_code)
        raise UsageError(
            f"`dept {name}` was started {size} times at once. Only {', '.join(TOGETHER)} share their work between "
            "processes. Start it without torchrun."
        )
    from dept.runs.distributed import check_words, joined

    with joined() as _joined, _silent(unless=_joined.rank == 0):
        check_words([name, *words])
        yield
    _joined = None


@contextmanager
def _silent(*, unless: bool) -> Iterator[None]:
    if unless:
        yield
        return
    with Path(os.devnull).open("w") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
        yield


def say_why(sentence: str) -> None:
    """Print on stderr why a command has failed; of several processes only the first to fail does it."""
    if _joined is None or _joined.speaks():
        where = f" (process {_joined.rank} of {_joined.size})" if _joined is not None and _joined.rank else ""
        print(f"dept{where}: {sentence}", file=sys.stderr)
