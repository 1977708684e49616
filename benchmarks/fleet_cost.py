"""What one site of a fleet costs, measured; `fleet_scale.py` makes the tables of docs/scale.md from it.

`OMP_NUM_THREADS=1 python benchmarks/fleet_cost.py > benchmarks/results/cost/fleet.json` adapts the embedded model to
sites of real digits.

- Operations are counted by torch while a site is adapted, and predicted from what the method says of its forwards
  (`dept/methods/base.py`) times the arithmetic of one forward (`dept/bench/flops.py`).
- Bytes are those that the process reads and writes (/proc/self/io), caches or not.
- Seconds are CPU seconds of one thread: of several rounds, taken in turns, the fastest. Other work on the machine only
  makes them longer.
- Parts are what the estimate for a ViT-B/16 on photos needs: rates of one core, and the files of a site.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from fleet_scale import BATCH, METHOD, PROMPTS, STAGES, VIT_B, auto, trained
from loader_speed import images_per_second, write_photos
from torch.utils.flop_counter import FlopCounterMode

from dept import methods
from dept.bench.cost import shape_of
from dept.bench.flops import prompted_forward
from dept.bench.suites.digits import EMBEDDED
from dept.data.digits import real_digits, write_digits
from dept.data.images import files_state, find_images, list_hash
from dept.data.loader import Batch
from dept.models.files import ModelFile
from dept.models.model import create_model
from dept.report.fleet_page import write_site_report
from dept.runs.adapt import adapt
from dept.runs.environment import processor
from dept.runs.fleet import fleet
from dept.runs.runners.options import RunnerOptions

EPOCHS = 4
SIZES = (64, 128, 256, 512)
"""images of a site: three to fit, and the last to check"""
PHOTOS = 192
"""of 500 x 375 pixels, the first 64 of which do not count"""
STEP = 4
"""images of the step of a ViT-B/16"""


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


@contextlib.contextmanager
def counted() -> Iterator[FlopCounterMode]:
    """Count the operations of what is inside."""
    counter = FlopCounterMode(display=False)
    # Its record of modules cannot take a parameter (prompts) as the input of a module in a forward without gradients.
    counter.mod_tracker = Untracked()
    with counter:
        yield counter


def forward_flop(model: ModelFile) -> float:
    """Operations of one image."""
    plain = model.borrow()
    return 2 * prompted_forward(shape_of(plain), plain.stages, plain.prompts_per_stage)


def measure_sites(model: ModelFile, folders: dict[int, Path], runs: Path, rounds: int) -> list[dict[str, Any]]:
    """Every size in turns; the fastest round of each, and the operations that torch counts."""
    found: dict[int, list[dict[str, float]]] = {images: [] for images in folders}
    for turn in range(rounds + 1):  # the first one warms up
        for images, folder in folders.items():
            one = adapted(model, folder, runs / f"{images}-{turn}")
            found[images] += [one] if turn else []
    rows = []
    for images, folder in folders.items():
        steps = EPOCHS * math.ceil(images / BATCH)
        with counted() as counter:
            adapted(model, folder, runs / f"{images}-counted")
        best = min(found[images], key=lambda one: one["seconds"])
        rows.append(
            {
                "images": images,
                "steps": steps,
                "gflop_counted": round(counter.get_total_flops() / 1e9, 2),
                "gflop_predicted": round(trained(images, steps).forwards * forward_flop(model) / 1e9, 2),
                "cpu_seconds": round(best["seconds"], 3),
                "megabytes_read": round(best["read"] / 1e6, 2),
                "megabytes_written": round(best["written"] / 1e6, 2),
                "files": files_in(runs / f"{images}-1"),
            }
        )
    return rows


def files_in(folder: Path) -> int:
    return sum(file.is_file() for file in folder.rglob("*"))


def measure_fleet(folder: Path, runs: Path) -> dict[str, float]:
    """A site at the defaults of a fleet, report included: operations, files, bytes on disk."""
    with counted() as counter:
        fleet(EMBEDDED, folder.parent, out=runs, runner=RunnerOptions("here"), then=write_site_report, device="cpu")
    images = len(find_images(folder))
    files = [file for file in (runs / folder.name).rglob("*") if file.is_file()]
    return {
        "images": images,
        "gflop_counted": round(counter.get_total_flops() / 1e9, 2),
        "gflop_predicted_at_most": round(auto(images).forwards * forward_flop(ModelFile(EMBEDDED)) / 1e9, 2),
        "files": len(files),
        "megabytes": round(sum(file.stat().st_size for file in files) / 1e6, 2),
    }


def fastest(work: Callable[[], object], rounds: int) -> float:
    """CPU seconds of the fastest of several rounds."""
    times = []
    for _ in range(rounds):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return min(times)


def list_names(folder: Path) -> None:
    """What the process that hands out sites does with one."""
    found = find_images(folder)
    list_hash(found), files_state(found)


def step_of_vit_b(rounds: int) -> float:
    """CPU seconds of a step of the method."""
    model = create_model("vit_base_patch16_224", 100, stages=STAGES, prompts=PROMPTS).eval()
    kind = methods.get(METHOD)
    method = kind(model, kind.Config(batch=STEP))
    method.labels = torch.zeros(STEP, dtype=torch.long)  # type: ignore[attr-defined]
    batch = Batch(tuple(torch.randn(STEP, 3, 224, 224) for _ in method.views), torch.arange(STEP))
    return fastest(lambda: method.step(batch), rounds)


def measure_parts(root: Path, rounds: int) -> dict[str, float]:
    """What a photo, a file name and a step cost on one core."""
    photos, names = write_photos(root / "photos", PHOTOS), root / "names"
    names.mkdir()
    for number in range(10_000):
        (names / f"{number:05}.jpg").touch()
    flop = STEP * methods.get(METHOD).forwards_per_step * 2 * prompted_forward(VIT_B, STAGES, PROMPTS)
    return {
        "photo_kilobytes": round(sum(file.stat().st_size for file in photos.iterdir()) / PHOTOS / 1e3, 1),
        "training_photos_per_core_second": photos_per_second(photos, "ws", rounds),
        "test_photos_per_core_second": photos_per_second(photos, "t", rounds),
        "names_per_second": round(10_000 / fastest(lambda: list_names(names), rounds)),
        "vit_b_gflops_per_core": round(flop / step_of_vit_b(rounds) / 1e9, 1),
    }


def photos_per_second(photos: Path, letters: str, rounds: int) -> float:
    """Photos that one core decodes and makes views of."""
    images = find_images(photos)
    return round(max(images_per_second(images, letters, 0)[1] for _ in range(rounds)), 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    found = {"processor": processor("cpu"), "threads": 1, "rounds": rounds, "method": METHOD, "epochs": EPOCHS}
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        folders = {images: site(root / "sites", images) for images in SIZES}
        found["measured"] = measure_sites(ModelFile(EMBEDDED), folders, root / "runs", rounds)
        found["fleet"] = measure_fleet(site(root / "one", SIZES[-1]), root / "fleet")
        found["parts"] = measure_parts(root, rounds)
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
