"""Corrupted copies of many images on disk, in ImageNet-C's layout."""

from __future__ import annotations

import dataclasses
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from zlib import crc32

import numpy as np
from PIL import Image

from dept.data.corruptions import SMALLEST_SIDE, corrupt
from dept.data.decoding import decode, open_image
from dept.data.images import ImageSet
from dept.data.places import Place, Skipped
from dept.data.views import Preprocess, test_view
from dept.errors import DataError, UsageError

Progress = Callable[[Iterable[Path], int], Iterable[Path]]
"""wraps an iterable of a known length, to show how far it is"""


@dataclass(frozen=True)
class _Job:
    source: Place
    target: Path
    name: str
    kind: str
    severity: int

    @property
    def stale(self) -> Path:
        """What an earlier run with another quality wrote. It is removed, or every picture would count twice."""
        return self.target.with_suffix(".png" if self.target.suffix == ".JPEG" else ".JPEG")


def write_tree(
    images: ImageSet,
    out: Path,
    kinds: Sequence[str],
    severities: Sequence[int],
    *,
    size: int = 224,
    quality: int = 85,
    seed: int = 0,
    workers: int = 2,
    replace: bool = False,
    progress: Progress = lambda done, total: done,
) -> list[Path]:
    """Write out/<kind>/<severity>/<same path>; returns the files in order. Existing ones stay unless `replace`."""
    names = images.names()
    targets = _target_names(names, images.root, ".JPEG" if quality else ".png")
    jobs = [
        _Job(path, out / kind / str(level) / target, name, kind, level)
        for kind in kinds
        for level in severities
        for path, name, target in zip(images.paths, names, targets, strict=True)
    ]
    missing = [job for job in jobs if replace or not job.target.exists()]
    _check_inputs(images, missing)
    work = partial(_write, size=size, quality=quality, seed=seed)
    for _ in progress(_mapped(work, missing, workers), len(missing)):
        pass
    return [job.target for job in jobs]


def large_enough(images: ImageSet) -> ImageSet:
    """The images that corruptions are defined on; smaller ones move to `skipped`. A DataError if none is left."""
    good: list[int] = []
    small: list[Skipped] = []
    for index, path in enumerate(images.paths):
        with open_image(path) as image:
            width, height = image.size
        if min(width, height) >= SMALLEST_SIDE:
            good.append(index)
        else:
            small.append((path, f"{width} x {height} pixels, and each side needs at least {SMALLEST_SIDE}"))
    if not good:
        raise DataError(
            f"None of the {len(images)} images in {images.root} is large enough to be corrupted (first: "
            f"{small[0][0].name}: {small[0][1]}). Use `size` to enlarge them."
        )
    return dataclasses.replace(images.take(good), skipped=images.skipped + tuple(small))


def _target_names(names: Sequence[str], root: Place, suffix: str) -> list[Path]:
    """Where each image goes below a severity; images that differ in their suffix only keep it (`cat.png.JPEG`)."""
    outside = [name for name in names if Path(name).is_absolute() or ".." in Path(name).parts]
    if outside:
        raise DataError(
            f"{outside[0]} lies outside {root}, so its copy would too ({len(outside)} such images). Put the list file "
            "into a folder above its images, or give that folder."
        )
    plain = [Path(name).with_suffix(suffix) for name in names]
    often = Counter(plain)
    return [path if often[path] == 1 else Path(name + suffix) for name, path in zip(names, plain, strict=True)]


def _check_inputs(images: ImageSet, jobs: Sequence[_Job]) -> None:
    """Refuse to write or remove a file that is among the images, before anything is written."""

    @cache
    def resolved(folder: Place) -> Place:  # there are few folders
        return folder.resolve()

    def entry(path: Place) -> tuple[Place, str]:
        # Upper and lower case are the same file on some systems.
        return resolved(path.parent), path.name.casefold()

    given = [*images.paths, *(path for path, _ in images.skipped)]
    inputs = {entry(path) for path in given} | {entry(path.resolve()) for path in given}
    for job in jobs:
        for path in (job.target, job.stale):
            if entry(path) in inputs:
                raise UsageError(
                    f"The copy of {job.source} would replace {path}, which is one of the images. Choose another `out`."
                )


def _mapped(work: Callable[[_Job], Path], jobs: Sequence[_Job], workers: int) -> Iterator[Path]:
    if workers < 1:
        yield from map(work, jobs)
        return
    with ProcessPoolExecutor(max_workers=workers) as pool:
        yield from pool.map(work, jobs, chunksize=8)


def _write(job: _Job, *, size: int, quality: int, seed: int) -> Path:
    """One corrupted copy: of side `size` (0 keeps the image's own), as JPEG of this quality (0 for PNG)."""
    image = decode(job.source)
    if size and image.size != (size, size):  # ImageNet-C's own preparation
        image = test_view(image, Preprocess(size, round(size * 256 / 224), "shorter", "bilinear"))
    # The same picture gets other noise than its neighbours, but the same in every run.
    own = (seed + crc32(os.fsencode(job.name))) % 2**32
    made = Image.fromarray(corrupt(np.asarray(image), job.kind, job.severity, seed=own))
    job.target.parent.mkdir(parents=True, exist_ok=True)
    # A file with its final name is a whole one, even if two processes make it at the same time.
    part = job.target.with_name(f"{job.target.name}.{os.getpid()}.part")
    try:
        if quality:
            made.save(part, format="JPEG", quality=quality, optimize=True)
        else:
            made.save(part, format="PNG")
    except BaseException:  # Ctrl-C too leaves nothing behind
        part.unlink(missing_ok=True)
        raise
    job.stale.unlink(missing_ok=True)
    return part.replace(job.target)
