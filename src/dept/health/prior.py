"""Class shares: those a target is believed to have, and how far predictions are from them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from dept.errors import DataError, UsageError
from dept.io import read_json


@dataclass(frozen=True)
class Prior:
    """The shares of the classes, in the order of the logits."""

    shares: tuple[float, ...]
    origin: Literal["source", "uniform", "file"]
    declared: bool
    """whether the user vouches for them; otherwise they are the best guess"""

    def __str__(self) -> str:
        texts = {"source": "class shares as in the source", "uniform": "equal class shares", "file": "the given shares"}
        return texts[self.origin]


def believed(asked: str, classes: Sequence[str], source: Sequence[float]) -> Prior:
    """The shares that `prior` asks for: source, uniform, unknown, or a JSON file that maps classes to shares.

    Args:
        source: shares of the source images; empty if they are not known.
    """
    uniform = (1 / len(classes),) * len(classes)
    if asked == "uniform":
        return Prior(uniform, "uniform", declared=True)
    if asked == "source" and not source:
        raise UsageError(
            "`prior=source` needs the class shares of the source images, which this model file does not have. Make "
            "them with `dept stats MODEL SOURCE` and give that file as `stats`, or use `prior=uniform`."
        )
    if asked in ("source", "unknown"):
        return Prior(tuple(source) or uniform, "source" if source else "uniform", declared=asked == "source")
    return Prior(_from_file(Path(asked), classes), "file", declared=True)


def _from_file(file: Path, classes: Sequence[str]) -> tuple[float, ...]:
    if not file.is_file():
        raise UsageError(
            f"`prior` must be source, uniform, unknown or a JSON file of class shares; there is no file {file}."
        )
    found = read_json(file)
    example = f'{{"{classes[0]}": 0.3, "{classes[-1]}": 0.7}}'
    if not isinstance(found, dict) or not all(_is_share(value) for value in found.values()):
        raise DataError(f"{file} must map class names to shares, such as {example}.")
    unknown = sorted(found.keys() - set(classes))
    total = sum(found.values())
    if unknown or not total:
        raise DataError(f"{file} names {unknown[0]!r}, which is not a class of the model." if unknown else
                        f"The shares in {file} sum to 0.")  # fmt: skip
    return tuple(found.get(name, 0.0) / total for name in classes)


def _is_share(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < math.inf


def total_variation(shares: Sequence[float], other: Sequence[float]) -> float:
    """½ Σ |a_c - b_c|: the share of predictions that would have to change for the two to be equal."""
    return sum(abs(a - b) for a, b in zip(shares, other, strict=True)) / 2


def sampling_noise(classes: int, images: int) -> float:
    """About the total variation between true shares and those of `images` images that are drawn from them."""
    return 0.4 * math.sqrt(classes / images)
