"""Errors that a user can act on. The command line prints their sentence and exits with their code."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path, PurePath

HARMFUL = 4
"""exit code of a command that finds an adaptation harmful"""


class DeptError(Exception):
    """Something went wrong that a sentence can explain."""

    exit_code = 1


class UsageError(DeptError):
    """The request contradicts itself or the files it names."""

    exit_code = 2


class DataError(DeptError):
    """The images, labels or files are not what is needed."""

    exit_code = 3


class NothingReadable(DataError):
    """Not one of the images can be used."""

    def __init__(self, sentence: str, skipped: Sequence[tuple[PurePath, str]] = ()) -> None:
        super().__init__(sentence)
        self.skipped = tuple(skipped)
        """every file that was tried, and why it is left out"""


class Diverged(DeptError):
    """Adaptation has left the numbers that a computer can hold."""


class Interrupted(DeptError):
    """The run was stopped by the user after a whole step; its state is saved."""

    exit_code = 130

    def __init__(self, step: int, folder: Path) -> None:
        super().__init__(f"stopped after step {step}; everything is saved in {folder}.")
        self.step, self.folder = step, folder


def some(names: Sequence[object], most: int = 12) -> str:
    """The first few names, and how many there are."""
    text = ", ".join(map(str, names[:most]))
    return text if len(names) <= most else f"{text}, … ({len(names):,} in all)"


def missing_extra(package: str, extra: str) -> UsageError:
    """The error for an optional dependency that is not installed, with the exact line that installs it."""
    return UsageError(f"{package} is not installed. It comes with an extra: pip install 'dept[{extra}]'")
