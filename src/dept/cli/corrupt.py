"""`dept corrupt IN OUT --type T --severity S`."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Annotated

from dept.cli.command import Command, Positional
from dept.cli.parse import parse
from dept.cli.show import report_skipped, say
from dept.errors import UsageError


@dataclass(frozen=True)
class CorruptInput:
    """The images, the corruptions and the folder for the copies."""

    images: Annotated[Path, Positional("IN")]
    """folder of images (any nesting, kept)"""
    out: Annotated[Path, Positional("OUT")]
    """folder to write: OUT/<corruption>/<severity>/<same path>, the layout of ImageNet-C"""
    type: tuple[str, ...] = ()
    """corruptions (default: the fifteen of ImageNet-C)"""
    severity: tuple[int, ...] = (5,)
    """severities from 1 to 5"""
    size: int = 224
    """side: the shorter side is resized to size · 256 / 224, then the centre is cropped; 0 keeps images as they are"""
    quality: int = 85
    """JPEG quality of the files, as in ImageNet-C; 0 writes PNG, without a second compression"""
    seed: int = 0
    """every image has its own noise, drawn from this seed and its path"""
    workers: int = 2
    """processes"""


COMMAND = Command("corrupt", "Write corrupted copies of a folder of images.", {"Arguments": CorruptInput})


def run(argv: list[str]) -> None:
    """Corrupt every image; files that do not decode, or are too small, are listed and left out."""
    (given,) = parse(COMMAND, argv)
    from tqdm import tqdm

    from dept.data.corruptions import CORRUPTIONS
    from dept.data.corruptions.tree import large_enough, write_tree
    from dept.data.images import decodable, find_images

    types = given.type or CORRUPTIONS
    _check(given, types)
    images = decodable(find_images(given.images))
    images = images if given.size else large_enough(images)
    report_skipped(images)
    quiet = not sys.stderr.isatty()
    written = write_tree(
        images,
        given.out,
        types,
        given.severity,
        size=given.size,
        quality=given.quality,
        seed=given.seed,
        workers=max(1, given.workers),
        replace=True,
        progress=lambda done, total: tqdm(done, total=total, unit="image", file=sys.stderr, disable=quiet),
    )
    say(f"{len(written)} images in {given.out}")


def _check(given: CorruptInput, types: Iterable[str]) -> None:
    """Raise a UsageError for values that make no sense."""
    from dept.data.corruptions import CORRUPTIONS, EXTRA, SMALLEST_SIDE

    known = (*CORRUPTIONS, *EXTRA)
    for name in types:
        if name not in known:
            raise UsageError(f"There is no corruption {name!r}; choose from {', '.join(known)}.")
    if not set(given.severity) <= set(range(1, 6)):
        raise UsageError(f"--severity must be from 1 to 5, found {' '.join(map(str, given.severity))}.")
    if given.size and given.size < SMALLEST_SIDE:
        raise UsageError(f"--size must be 0 (images as they are) or at least {SMALLEST_SIDE}, found {given.size}.")
    if not 0 <= given.quality <= 100:
        raise UsageError(f"--quality must be from 1 to 100, or 0 for PNG, found {given.quality}.")
    # Copies among the images would be taken for images the next time, or replace them.
    source = given.images.resolve()
    for kind, level in product(types, given.severity):
        place = given.out / kind / str(level)
        folder = place.resolve()
        if source.is_dir() and (folder.is_relative_to(source) or source.is_relative_to(folder)):
            raise UsageError(
                f"The copies would go to {place}, among the images of {given.images}. Choose an OUT outside IN."
            )
