"""Time and memory of finding very many images: a list file of a million names, and a folder of real files.

    python benchmarks/listing.py [--names 1000000] [--files 100000] [--temp DIR]

Every row is measured in a process of its own: seconds, and how much its memory grew at its peak. Printed as a table for
docs/large_inputs.md.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from PIL import Image

FOLDERS = 1000


def write_list(folder: Path, count: int) -> Path:
    """Names as a camera site has them, about 40 letters each."""
    file = folder / "list.txt"
    with file.open("w") as text:
        for number in range(count):
            text.write(f"camera-{number % FOLDERS:04}/2024-06-{number % 28 + 1:02}/frame_{number:09}.jpg\n")
    return file


def write_files(folder: Path, count: int) -> Path:
    """Hard links to small PNGs, one of them in each of a hundred folders: a file has at most 65,000 names."""
    root = folder / "files"
    for number in range(count):
        place = root / f"camera-{number % 100:03}"
        if number < 100:
            place.mkdir(parents=True)
            Image.new("RGB", (32, 32), (90, number, 60)).save(place / f"frame_{number:09}.png")
        else:
            os.link(place / f"frame_{number % 100:09}.png", place / f"frame_{number:09}.png")
    return root


def peak() -> float:
    """MB of memory that the process had at most."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measure(source: str) -> list[tuple[str, float, float]]:
    """(what was done, seconds, MB by which the peak has grown since the start), in this process."""
    from dept.data.images import files_state, find_images, list_hash
    from dept.data.loader import shuffled_keys
    from dept.data.subsets import fraction

    start, rows = peak(), []

    def done(what: str, since: float) -> float:
        rows.append((what, time.perf_counter() - since, peak() - start))
        return time.perf_counter()

    at = time.perf_counter()
    images = find_images(source)
    at = done(f"{len(images):,} images found", at)
    list_hash(images)
    at = done("hash of the list", at)
    fraction(images, 0.1, rule="uniform", seed=0)
    at = done("a tenth of them drawn", at)
    next(shuffled_keys(len(images), 64, range(1), seed=0))
    at = done("shuffled for an epoch", at)
    if Path(source).is_dir():
        files_state(images)
        done("sizes and times of all files", at)
    return rows


def in_fresh_process(source: Path) -> list[tuple[str, float, float]]:
    command = [sys.executable, __file__, "--measure", str(source)]
    return [tuple(row) for row in json.loads(subprocess.run(command, check=True, capture_output=True).stdout)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--names", type=int, default=1_000_000)
    parser.add_argument("--files", type=int, default=100_000)
    parser.add_argument("--temp", type=Path)
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.measure:
        print(json.dumps(measure(given.measure)))
        return
    with tempfile.TemporaryDirectory(dir=given.temp) as folder:
        sources = {"list file": write_list(Path(folder), given.names), "folder": write_files(Path(folder), given.files)}
        print(f"Python {platform.python_version()}, {os.cpu_count()} cores, {platform.machine()}\n")
        print("| source | what | seconds | memory |\n|---|---|---:|---:|")
        for name, source in sources.items():
            rows = in_fresh_process(source)
            for what, seconds, grown in rows:
                print(f"| {name} | {what} | {seconds:.1f} | +{grown:.0f} MB |")
            print(f"| {name} | all | {sum(row[1] for row in rows):.1f} | +{rows[-1][2]:.0f} MB |")


if __name__ == "__main__":
    main()
