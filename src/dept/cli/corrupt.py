"""`dept corrupt IN OUT --type T --severity S`."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Annotated

import tyro
from tqdm import tqdm

from dept.cli.parse import parse
from dept.cli.show import report_skipped, say
from dept.data.corruptions import CORRUPTIONS, EXTRA, SMALLEST_SIDE
from dept.data.corruptions.tree import large_enough, write_tree
from dept.data.images import decodable, find_images
from dept.errors import UsageError


@dataclass(frozen=True)
class Files:
    """Which images, which corruptions, where to."""

    images: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="IN")]
    """folder of images (any nesting, kept)"""
    out: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="OUT")]
    """folder to write: OUT/<corruption>/<severity>/<same path>, ImageNet-C's layout"""
    type: tuple[str, ...] = CORRUPTIONS
    """corruptions; by default ImageNet-C's fifteen"""
    severity: tuple[int, ...] = (5,)
    """severities from 1 to 5"""
    size: int = 224
    """side: the shorter side is resized to size · 256 / 224, then the centre is cropped; 0 keeps images as they are"""
    quality: int = 85
    """JPEG quality of the files, ImageNet-C's; 0 writes PNG, without a second compression"""
    seed: int = 0
    """every image has its own noise, drawn from this seed and its path"""
    workers: int = 2
    """processes"""


def run(argv: list[str]) -> int:
    """Corrupt every image; files that do not decode, or are too small, are listed and left out."""
    files: Files = parse("corrupt", "Write corrupted copies of a folder of images.", argv, files=Files).files
    _check(files)
    images = decodable(find_images(files.images))
    images = images if files.size else large_enough(images)
    report_skipped(images)
    written = write_tree(
        images,
        files.out,
        files.type,
        files.severity,
        size=files.size,
        quality=files.quality,
        seed=files.seed,
        workers=max(1, files.workers),
        replace=True,
        progress=_bar,
    )
    say(f"{len(written)} images in {files.out}")
    return 0


def _check(files: Files) -> None:
    """A UsageError for what makes no sense."""
    unknown = [name for name in files.type if name not in (*CORRUPTIONS, *EXTRA)]
    if unknown:
        raise UsageError(f"There is no corruption {unknown[0]!r}; choose from {', '.join((*CORRUPTIONS, *EXTRA))}.")
    wrong = [level for level in files.severity if not 1 <= level <= 5]
    if wrong:
        raise UsageError(f"--severity goes from 1 to 5, found {wrong[0]}.")
    if files.size and files.size < SMALLEST_SIDE:
        raise UsageError(f"--size must be 0 (images as they are) or at least {SMALLEST_SIDE}, found {files.size}.")
    if not 0 <= files.quality <= 100:
        raise UsageError(f"--quality goes from 1 to 100, or 0 for PNG; found {files.quality}.")
    _check_places(files)


def _check_places(files: Files) -> None:
    """Copies among the images would be taken for images the next time, or replace them."""
    source = files.images.resolve()
    for kind, level in product(files.type, files.severity):
        folder = (files.out / kind / str(level)).resolve()
        if source.is_dir() and (folder.is_relative_to(source) or source.is_relative_to(folder)):
            raise UsageError(
                f"The copies would go to {files.out / kind / str(level)}, among the images of {files.images}; "
                "choose an OUT that does not lie in IN."
            )


def _bar(done: Iterable[Path], total: int) -> Iterable[Path]:
    return tqdm(done, total=total, unit="image", file=sys.stderr, disable=not sys.stderr.isatty())
