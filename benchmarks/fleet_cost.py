"""What a fleet costs: a model of the cost of one site, fitted on three sizes and checked on a fourth.

`OMP_NUM_THREADS=1 python benchmarks/fleet_cost.py > benchmarks/results/cost/fleet.json` measures on the real digits and
the embedded model, and extrapolates to 10,000 sites of 1,000 photos and a ViT-B/16. docs/scale.md explains each number.

- Operations are counted by torch while a site is adapted, and predicted from what the method says of its forwards
  (`dept/methods/base.py`) times the arithmetic of one forward (`dept/bench/flops.py`).
- Bytes are those that the process reads and writes (/proc/self/io), caches or not.
- Seconds are CPU seconds of one thread: of several rounds, taken in turns, the fastest. Other work on the machine only
  makes them longer. seconds = fixed + per_forward × forwards is fitted by least squares.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import math
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils.flop_counter import FlopCounterMode

from dept import methods
from dept.bench.cost import shape_of
from dept.bench.estimate import RATE
from dept.bench.flops import Shape, prompted_forward
from dept.bench.suites.digits import EMBEDDED
from dept.data.digits import real_digits, write_digits
from dept.data.images import files_state, find_images, list_hash
from dept.data.views import Augment, Preprocess, make_view, view_rng
from dept.models.files import ModelFile
from dept.runs.adapt import adapt
from dept.runs.auto import usual_steps
from dept.runs.environment import processor

METHOD, EPOCHS, BATCH = "dept+", 4, 32
SIZES, CHECK = (64, 128, 256), 512
"""images of a site: three to fit, one to check"""
VIT_B, STAGES, PROMPTS = Shape(), 4, 50
PHOTO = (500, 375)
"""pixels of a typical photo of a data set"""


def forwards(images: int, steps: int, epochs: int) -> float:
    """Image forwards of a run: of the steps, of all images before and after, and of the passes in between."""
    kind = methods.get(METHOD)
    return images * (2 + kind.passes_per_epoch * epochs) + steps * BATCH * kind.forwards_per_step


def transferred() -> tuple[int, int]:
    """Bytes that this process has read and written so far."""
    words = Path("/proc/self/io").read_text().split()
    return int(words[words.index("rchar:") + 1]), int(words[words.index("wchar:") + 1])


def site(root: Path, images: int) -> Path:
    digits, labels = real_digits()
    folder = root / f"{images}"
    write_digits(folder, (digits[:images], labels[:images]))
    return folder


def adapted(model: ModelFile, folder: Path, out: Path) -> dict[str, float]:
    """Adapt to one site; CPU seconds and bytes."""
    before, start = transferred(), time.process_time()
    adapt(model, folder, out=out, method=METHOD, epochs=EPOCHS, batch=BATCH, device="cpu", fit_length=False)
    seconds, after = time.process_time() - start, transferred()
    return {"seconds": seconds, "read": after[0] - before[0], "written": after[1] - before[1]}


class Untracked(contextlib.nullcontext[None]):
    """Counts operations without asking which module they belong to."""

    parents = ("Global",)


def measure_sites(root: Path, rounds: int) -> list[dict[str, Any]]:
    """Every size in turns; the fastest round of each, and the operations that torch counts."""
    model = ModelFile(EMBEDDED)
    plain = model.borrow()
    per_forward = 2 * prompted_forward(shape_of(plain), plain.stages, plain.prompts_per_stage)
    folders = {images: site(root, images) for images in (*SIZES, CHECK)}
    found: dict[int, list[dict[str, float]]] = {images: [] for images in folders}
    for turn in range(rounds + 1):  # the first one warms up
        for images, folder in folders.items():
            one = adapted(model, folder, root / "runs" / f"{images}-{turn}")
            found[images] += [one] if turn else []
    rows = []
    for images, folder in folders.items():
        steps = EPOCHS * math.ceil(images / BATCH)
        counter = FlopCounterMode(display=False)
        # Its record of modules fails where a parameter (prompts) is the input of a module and gradients are off.
        counter.mod_tracker = Untracked()
        with counter:
            adapted(model, folder, root / "runs" / f"{images}-counted")
        best = min(found[images], key=lambda one: one["seconds"])
        asked = forwards(images, steps, EPOCHS)
        rows.append(
            {
                "images": images,
                "steps": steps,
                "forwards": asked,
                "gflop_counted": round(counter.get_total_flops() / 1e9, 2),
                "gflop_predicted": round(asked * per_forward / 1e9, 2),
                "cpu_seconds": round(best["seconds"], 3),
                "megabytes_read": round(best["read"] / 1e6, 2),
                "megabytes_written": round(best["written"] / 1e6, 2),
                "files_written": sum(one.is_file() for one in (root / "runs" / f"{images}-1").rglob("*")),
            }
        )
    return rows


def fitted(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """seconds = fixed + per_forward × forwards on the first rows, and how far off it is on the last."""
    *known, unknown = rows
    design = np.array([[1.0, row["forwards"]] for row in known])
    (fixed, slope), *_ = np.linalg.lstsq(design, np.array([row["cpu_seconds"] for row in known]), rcond=None)
    predicted = fixed + slope * unknown["forwards"]
    return {
        "fixed_seconds": round(float(fixed), 4),
        "milliseconds_per_forward": round(1e3 * float(slope), 4),
        "check_images": unknown["images"],
        "check_predicted_seconds": round(float(predicted), 3),
        "check_measured_seconds": unknown["cpu_seconds"],
        "check_error_percent": round(100 * float(predicted / unknown["cpu_seconds"] - 1), 1),
    }


def fastest(work: Callable[[], object], rounds: int) -> float:
    """CPU seconds of the fastest of several rounds."""
    times = []
    for _ in range(rounds):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return min(times)


def measure_parts(root: Path, rounds: int) -> dict[str, float]:
    """What a photo, a file name and a row of the summary cost on one core."""
    noise = np.random.default_rng(0).integers(0, 255, (PHOTO[1] // 8 + 1, PHOTO[0] // 8 + 1, 3), dtype=np.uint8)
    photo = Image.fromarray(noise).resize(PHOTO, Image.Resampling.BICUBIC)
    buffer = io.BytesIO()
    photo.save(buffer, "JPEG", quality=90)
    pre, augment = Preprocess(), Augment()

    def views() -> None:
        for index in range(20):
            image = Image.open(io.BytesIO(buffer.getvalue())).convert("RGB")
            for number, letter in enumerate(methods.get(METHOD).views):
                make_view(image, letter, pre, augment, view_rng(0, 0, index, number))

    names = root / "names"
    names.mkdir()
    for number in range(10_000):
        (names / f"{number:05}.jpg").touch()

    def listing() -> None:
        found = find_images(names)
        list_hash(found), files_state(found)

    return {
        "photo_kilobytes": round(len(buffer.getvalue()) / 1e3, 1),
        "photos_per_second_and_core": round(20 / fastest(views, rounds), 1),
        "names_per_second": round(10_000 / fastest(listing, rounds)),
    }


def at_scale(sites: int, images: int, price: float, parts: dict[str, float]) -> dict[str, Any]:
    """A ViT-B/16 with method auto on photos, from arithmetic: operations over an assumed rate, bytes, reads."""
    steps = usual_steps(images, BATCH)
    epochs = math.ceil(steps / math.ceil(images / BATCH))
    read_out = 3 * images  # the first candidate, NEO: before, its step, after
    total = forwards(images, steps, epochs) + read_out
    flop = 2 * total * prompted_forward(VIT_B, STAGES, PROMPTS)
    # Photos are decoded for every step and every pass, because a random view is different each time.
    decoded = steps * BATCH + images * (2 + methods.get(METHOD).passes_per_epoch * epochs) + read_out
    seconds = flop / RATE
    cores = decoded / parts["photos_per_second_and_core"] / seconds
    photos = images * parts["photo_kilobytes"] / 1e6
    rows = []
    for gpus in (1, 8, 64):
        hours = sites * seconds / gpus / 3600
        rows.append(
            {
                "gpus": gpus,
                "hours": round(hours, 1),
                "photos_gigabytes_per_second": round(gpus * photos / seconds, 4),
                "file_reads_per_second": round(gpus * decoded / seconds),
            }
        )
    return {
        "sites": sites,
        "images": images,
        "steps": steps,
        "petaflop_per_site": round(flop / 1e15, 2),
        "seconds_per_site_at_40_tflops": round(seconds, 1),
        "decoded_photos_per_site": decoded,
        "cores_per_gpu_to_decode": round(cores, 1),
        "gigabytes_of_photos_per_site": round(photos, 3),
        "terabytes_of_photos": round(sites * photos / 1e3, 2),
        "gpu_hours": round(sites * seconds / 3600, 1),
        "price_per_gpu_hour": price,
        "cost": round(sites * seconds / 3600 * price),
        "backbone_megabytes": round(4 * 85.8e6 / 1e6),
        "listing_minutes": round(sites * images / parts["names_per_second"] / 60, 1),
        "runs": rows,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sites", type=int, default=10_000)
    parser.add_argument("--images", type=int, default=1_000)
    parser.add_argument("--price", type=float, default=2.0, help="of one GPU hour, in any currency: an assumption")
    given = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        rows = measure_sites(Path(folder), given.rounds)
        parts = measure_parts(Path(folder), given.rounds)
    scale = at_scale(given.sites, given.images, given.price, parts)
    found = {"processor": processor("cpu"), "threads": 1, "rounds": given.rounds, "method": METHOD, "epochs": EPOCHS}
    print(json.dumps({**found, "measured": rows, "fit": fitted(rows), "parts": parts, "scale": scale}, indent=2))


if __name__ == "__main__":
    main()
