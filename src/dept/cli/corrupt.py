"""`dept corrupt IN OUT --type T --severity S`."""

from __future__ import annotations

import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated
from zlib import crc32

import numpy as np
import tyro
from PIL import Image
from tqdm import tqdm

from dept.cli.parse import parse
from dept.cli.show import report_skipped, say
from dept.data.corruptions import CORRUPTIONS, EXTRA, corrupt
from dept.data.folder import decodable, decode, find_images, relative_name
from dept.data.views import Preprocess, test_view
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
    """Corrupt every image; files that do not decode are listed and left out."""
    files: Files = parse("corrupt", "Write corrupted copies of a folder of images.", argv, files=Files).files
    unknown = [name for name in files.type if name not in (*CORRUPTIONS, *EXTRA)]
    if unknown:
        raise UsageError(f"There is no corruption {unknown[0]!r}; choose from {', '.join((*CORRUPTIONS, *EXTRA))}.")
    wrong = [level for level in files.severity if not 1 <= level <= 5]
    if wrong:
        raise UsageError(f"--severity goes from 1 to 5, found {wrong[0]}.")
    images = decodable(find_images(files.images))
    report_skipped(images)
    jobs = [(path, kind, level) for kind in files.type for level in files.severity for path in images.paths]
    work = partial(_write, files=files, root=images.root)
    with ProcessPoolExecutor(max_workers=max(1, files.workers)) as pool:
        done = pool.map(work, jobs, chunksize=8)
        for _ in tqdm(done, total=len(jobs), unit="image", file=sys.stderr, disable=not sys.stderr.isatty()):
            pass
    say(f"{len(jobs)} images in {files.out}")
    return 0


def _write(job: tuple[Path, str, int], *, files: Files, root: Path) -> None:
    path, kind, level = job
    name = relative_name(path, root)
    pixels = np.asarray(_prepared(decode(path), files.size))
    # The same picture gets other noise than its neighbours, but the same in every run.
    made = Image.fromarray(corrupt(pixels, kind, level, seed=(files.seed + crc32(name.encode())) % 2**32))
    target = (files.out / kind / str(level) / name).with_suffix(".JPEG" if files.quality else ".png")
    target.parent.mkdir(parents=True, exist_ok=True)
    if files.quality:
        made.save(target, format="JPEG", quality=files.quality, optimize=True)
    else:
        made.save(target, format="PNG")


def _prepared(image: Image.Image, size: int) -> Image.Image:
    """ImageNet-C's own preparation: shorter side resized, centre cropped; an image of the right size stays."""
    if not size or image.size == (size, size):
        return image
    pre = Preprocess(size=size, resize=round(size * 256 / 224), rule="shorter", interpolation="bilinear")
    return test_view(image, pre)
