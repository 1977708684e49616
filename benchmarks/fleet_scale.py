"""What 10,000 sites cost, on paper: `python benchmarks/fleet_scale.py --table measured|site|fleet|limits`.

From the figures that `fleet_cost.py` has measured, and the assumptions at the top. docs/scale.md explains each number.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dept import methods
from dept.bench.estimate import RATE
from dept.bench.flops import Shape, prompted_forward
from dept.health.stopping import LOOKS, SAMPLE
from dept.report.fleet_page import SAMPLE as REPORTED
from dept.runs.auto import PASSES, usual_steps
from dept.runs.loops import steps_per_epoch

RESULT = Path(__file__).parent / "results" / "cost" / "fleet.json"
METHOD, BATCH = "dept+", 32
VIT_B, STAGES, PROMPTS, BACKBONE = Shape(), 4, 50, 4 * 85.8e6
"""the model of the estimate, and bytes of its backbone"""
SITES, IMAGES = 10_000, 1_000
GPUS = (1, 8, 64, 256)
PRICE = 2.0
"""dollars of a GPU hour, cores and memory of its machine included: an assumption"""
ASKED = 1e-3
"""seconds in which a network file system tells size and time of one file: an assumption"""
READS = 20_000
"""small files that a shared file system opens and reads per second: an assumption"""


class Cost(NamedTuple):
    """Of one site: image forwards (a backward counts as one), photos decoded for steps, and for passes."""

    forwards: float
    augmented: int
    plain: int

    @property
    def decoded(self) -> int:
        """All photos that are read and decoded, every one as often as it is."""
        return self.augmented + self.plain


def trained(images: int, steps: int) -> Cost:
    """A run of the method: before and after, passes at the start and in every epoch, and the steps."""
    kind = methods.get(METHOD)
    epochs = math.ceil(steps / steps_per_epoch(images, BATCH))
    passes = images * (2 + kind.passes_per_epoch * epochs)
    forwards = passes + images * kind.passes_at_start + steps * BATCH * kind.forwards_per_step
    read = passes + images * bool(kind.passes_at_start)  # once for all renderings
    return Cost(forwards, steps * BATCH, read)


def auto(images: int) -> Cost:
    """A site of a fleet at defaults: NEO, then the method under the eyes of the stop rule, and a report. At most."""
    looks, reported = (1 + LOOKS) * min(SAMPLE, images), 2 * min(REPORTED, images)
    more = PASSES * images + looks + reported
    run = trained(images, usual_steps(images, BATCH))
    return Cost(run.forwards + more, run.augmented, run.plain + more)


def fitted(rows: list[dict[str, Any]]) -> tuple[float, float]:
    """Least squares of seconds = fixed + slope × forwards."""
    design = np.array([[1.0, trained(row["images"], row["steps"]).forwards] for row in rows])
    (fixed, slope), *_ = np.linalg.lstsq(design, np.array([row["cpu_seconds"] for row in rows]), rcond=None)
    return float(fixed), float(slope)


class Site(NamedTuple):
    """One site of the estimate."""

    cost: Cost
    flop: float
    gpu_seconds: float
    cpu_hours: float
    decode_seconds: float
    """of one core"""
    photos: float
    """bytes of its photos, each once"""


def estimated(parts: dict[str, float]) -> Site:
    """A ViT-B/16 on photos, from counts and rates."""
    cost = auto(IMAGES)
    flop = 2 * cost.forwards * prompted_forward(VIT_B, STAGES, PROMPTS)
    decoding = cost.augmented / parts["training_photos_per_core_second"]
    decoding += cost.plain / parts["test_photos_per_core_second"]
    return Site(
        cost,
        flop,
        flop / RATE,
        flop / (1e9 * parts["vit_b_gflops_per_core"]) / 3600,
        decoding,
        IMAGES * 1e3 * parts["photo_kilobytes"],
    )


# ---- tables ----


def measured_table(found: dict[str, Any]) -> list[str]:
    rows = found["measured"]
    fixed, slope = fitted(rows[:-1])
    lines = [
        "| images | steps | GFLOP predicted | counted | MB read | written | files | CPU seconds | fitted |",
        "|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for row in rows:
        seconds = fixed + slope * trained(row["images"], row["steps"]).forwards
        note = "" if row is not rows[-1] else f" ({100 * (seconds / row['cpu_seconds'] - 1):+.1f} %, not fitted)"
        numbers = [row["gflop_predicted"], row["gflop_counted"], row["megabytes_read"], row["megabytes_written"]]
        cells = [f"{row['images']}", f"{row['steps']}", *(f"{number:,.1f}" for number in numbers)]
        lines.append(f"| {' | '.join(cells)} | {row['files']} | {row['cpu_seconds']:.2f} | {seconds:.2f}{note} |")
    return [
        *lines,
        "",
        f"seconds = {fixed:.2f} + {1e3 * slope:.3f} ms × image forwards, one core of {found['processor']}.",
    ]


def site_table(found: dict[str, Any]) -> list[str]:
    parts, site = found["parts"], estimated(found["parts"])
    rows = {
        "image forwards (a backward counts as one)": f"{site.cost.forwards:,.0f}",
        "operations": f"{site.flop / 1e15:.1f} PFLOP",
        f"one A100-class GPU at {RATE / 1e12:.0f} TFLOP/s": f"{site.gpu_seconds:.0f} s",
        f"one core of this CPU at {parts['vit_b_gflops_per_core']:.0f} GFLOP/s": f"{site.cpu_hours:.1f} h",
        "photos, each once": f"{site.photos / 1e6:.0f} MB",
        "photos read and decoded": f"{site.cost.decoded:,}",
        "the same in bytes": f"{site.photos * site.cost.decoded / IMAGES / 1e9:.1f} GB",
        "decoding and views, one core of this CPU": f"{site.decode_seconds:.0f} s",
        "cores that keep one GPU busy": f"{site.decode_seconds / site.gpu_seconds:.1f}",
    }
    whole = found["fleet"]
    return [
        "| one site of 1,000 photos | |",
        "|---|---:|",
        *(f"| {what} | {value} |" for what, value in rows.items()),
        "",
        f"The count, on a site of {whole['images']} digits: {whole['gflop_predicted_at_most']:,.0f} GFLOP predicted "
        f"if it does not end early, {whole['gflop_counted']:,.0f} counted.",
    ]


def fleet_table(found: dict[str, Any]) -> list[str]:
    site = estimated(found["parts"])
    hours = SITES * site.gpu_seconds / 3600
    lines = [
        "| GPUs | hours | dollars | cores to decode | photos read per second | GB/s, not cached | GB/s, each once |",
        "|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for gpus in GPUS:
        rate = gpus / site.gpu_seconds  # sites per second
        cells = [
            f"{gpus}",
            f"{hours / gpus:,.1f}",
            f"{hours * PRICE:,.0f}",
            f"{gpus * site.decode_seconds / site.gpu_seconds:,.0f}",
            f"{rate * site.cost.decoded:,.0f}",
            f"{rate * site.photos * site.cost.decoded / IMAGES / 1e9:.2f}",
            f"{rate * site.photos / 1e9:.3f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def limits_table(found: dict[str, Any]) -> list[str]:
    site, names = estimated(found["parts"]), found["parts"]["names_per_second"]
    cores = site.decode_seconds / site.gpu_seconds
    reads = SITES * site.cost.decoded
    adapter = 4 * STAGES * PROMPTS * VIT_B.width
    rows = {
        "cores beside a GPU": (
            f"{SITES * site.decode_seconds / 3600:,.0f} core hours of decoding",
            f"with fewer than {math.ceil(cores)} cores per GPU",
        ),
        "shared file system, read": (
            f"{reads / 1e6:,.0f} million reads of {SITES * site.photos / 1e12:.2f} TB of photos",
            f"from {READS * site.gpu_seconds / site.cost.decoded:,.0f} GPUs on, at {READS:,} reads per second",
        ),
        "the process that hands out sites": (
            f"size and time of {SITES * IMAGES / 1e6:.0f} million files",
            f"from {site.gpu_seconds / IMAGES / ASKED:,.0f} GPUs on, at {1e3 * ASKED:.0f} ms per file; "
            f"from {site.gpu_seconds / IMAGES * names:,.0f} on a local disk",
        ),
        "shared file system, written": (
            f"{SITES * found['fleet']['files']:,} files, {2 * SITES * adapter / 1e9:.0f} GB of adapters, each twice",
            "where the number of files is limited",
        ),
        "Ray's object store": (f"{BACKBONE / 1e6:.0f} MB per node", "no"),
        "network between nodes": (f"the same {BACKBONE / 1e6:.0f} MB to every node, one line per site back", "no"),
    }
    lines = (f"| {part} | {carries} | {breaks} |" for part, (carries, breaks) in rows.items())
    return ["| part | carries | breaks |", "|---|---|---|", *lines]


TABLES = {"measured": measured_table, "site": site_table, "fleet": fleet_table, "limits": limits_table}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table", choices=TABLES, default="fleet")
    print("\n".join(TABLES[parser.parse_args().table](json.loads(RESULT.read_text()))))


if __name__ == "__main__":
    main()
