"""Images per second that the loader makes, without any model, against the number of worker processes.

    python benchmarks/loader_speed.py [--images 512] [--workers 0 1 2] [--temp DIR]

The images are JPEG files of 500 x 375 pixels, as ImageNet has them; from a folder, and from a tar archive. A GPU waits
for its images if it handles more per second than this. "one core" counts the time that the process computed, so that
other processes do not matter; the rest is by the clock. Printed as a table for docs/large_inputs.md.
"""

from __future__ import annotations

import argparse
import os
import platform
import tarfile
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from dept.data.images import ImageSet, find_images
from dept.data.loader import Views, batches, shuffled_keys
from dept.data.views import Preprocess

BATCH = 64


def write_photos(folder: Path, count: int) -> Path:
    """Smooth random pictures with fine noise: about 100 KB each, like photographs."""
    rng = np.random.default_rng(0)
    folder.mkdir()
    for number in range(count):
        coarse = Image.fromarray(rng.integers(0, 255, (12, 16, 3), dtype=np.uint8))
        pixels = np.asarray(coarse.resize((500, 375), Image.Resampling.BICUBIC), np.int16)
        noisy = np.clip(pixels + rng.normal(0, 12, pixels.shape), 0, 255).astype(np.uint8)
        Image.fromarray(noisy).save(folder / f"{number:05}.jpg", quality=90)
    return folder


def packed(folder: Path) -> Path:
    file = folder.with_suffix(".tar")
    with tarfile.open(file, "w") as tar:
        tar.add(folder, ".")
    return file


def images_per_second(images: ImageSet, letters: str, workers: int) -> tuple[float, float]:
    """By the clock, and by the time that this process computed, over an epoch.

    The first batch, for which workers must start, does not count.
    """
    steps = -(-len(images) // BATCH)
    keys = shuffled_keys(len(images), BATCH, range(steps), seed=0)
    stream = batches(images, letters, Views(Preprocess()), keys, workers=workers)
    next(stream)
    clock, computed, done = time.perf_counter(), time.process_time(), 0
    for index, _ in stream:
        done += len(index)
    return done / (time.perf_counter() - clock), done / (time.process_time() - computed)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=512)
    parser.add_argument("--workers", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--temp", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(dir=given.temp) as temp:
        folder = write_photos(Path(temp) / "photos", given.images)
        size = sum(file.stat().st_size for file in folder.iterdir()) / given.images
        print(f"{given.images} JPEG files of {size / 1000:.0f} KB, batches of {BATCH}, {os.cpu_count()} cores, "
              f"{platform.machine()}, load {os.getloadavg()[0]:.1f}\n")  # fmt: skip
        names = " | ".join(f"{n} worker{'s' * (n != 1)}" for n in given.workers)
        print(f"| images from | views | one core | {names} |\n|---|---|---:|{'---:|' * len(given.workers)}")
        for place, source in (("folder", folder), ("tar", packed(folder))):
            for views, letters in (("test", "t"), ("weak, strong, strong", "wss")):
                one_core = images_per_second(find_images(source), letters, 0)[1]
                speeds = [images_per_second(find_images(source), letters, n)[0] for n in given.workers]
                print(f"| {place} | {views} | {one_core:.0f} | {' | '.join(f'{speed:.0f}' for speed in speeds)} |")


if __name__ == "__main__":
    main()
