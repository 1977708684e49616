"""Does a run in several processes pay? `python benchmarks/scaling.py` prints two tables from the committed figures.

`--measure` makes the figures anew: steps of two methods on this machine, by one process with one and with two threads
and by two processes with one thread each (about two minutes of two free cores), and what a step of a ViT-B sends and
computes, from which the second table estimates eight GPUs.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

RESULT = Path(__file__).parent / "results" / "cost" / "torchrun.json"
MEASURED = ("dept+", "shot")  # few gradients to send, and all of the encoder's
LAYOUTS = ((1, 1), (1, 2), (2, 1))  # processes, threads of each
ARCH, SIZE, BATCH, STEPS = "vit_tiny_patch16_224", 128, 16, 4
MODELLED = ("dept+", "dept", "shot", "source-training")
GPUS, MODEL_BATCH = 8, 128
LINKS = {"NVLink, 240 GB/s": 240e9, "PCIe 4, 20 GB/s": 20e9, "100 Gb/s network, 10 GB/s": 10e9}
"""between any two GPUs, in one direction, as far as it is reached in practice"""


# ---- one process ----


def worker(folder: Path) -> None:
    """Time some steps of each method; the first of several processes prints the least seconds of a step.

    On the clock, and of the processor: the second does not count what other programs take away.
    """
    import contextlib

    import torch

    from dept import methods
    from dept.data.images import find_images
    from dept.data.loader import Runtime, Views
    from dept.models.model import create_model
    from dept.runs.distributed import joined
    from dept.runs.loops import offline

    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    images = find_images(folder)
    with joined() if "RANK" in os.environ else contextlib.nullcontext():
        found = {}
        for name in MEASURED:
            model = create_model(ARCH, 10, stages=4, prompts=20, img_size=SIZE).eval()
            kind = methods.get(name)
            method = kind(model, kind.Config(batch=BATCH, max_iters=STEPS + 1))
            clocks = {"wall": time.perf_counter, "cpu": time.process_time}
            seconds, last = [], {kind: clock() for kind, clock in clocks.items()}
            for _ in offline(method, images, Views(model.card.preprocess), Runtime()):
                now = {kind: clock() for kind, clock in clocks.items()}
                seconds.append({kind: now[kind] - last[kind] for kind in now})
                last = now
            # The first step has the pass over all images, and warms up.
            found[name] = {kind: round(min(one[kind] for one in seconds[1:]), 4) for kind in clocks}
    if os.environ.get("RANK", "0") == "0":
        print(json.dumps(found))


def measure() -> dict[str, Any]:
    """Seconds of the quickest step of every method, by layout; on the clock, and of each process's processor."""
    import numpy as np
    from PIL import Image

    rng = np.random.default_rng(0)
    found: dict[str, dict[str, Any]] = {name: {} for name in MEASURED}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(BATCH * (STEPS + 1)):
            Image.fromarray(rng.integers(0, 256, (160, 160, 3), dtype=np.uint8)).save(f"{folder}/{number}.jpg")
        for processes, threads in LAYOUTS:
            for name, seconds in timed(processes, threads, folder).items():
                found[name][f"{processes} x {threads}"] = seconds
    return {"seconds": found, "load": round(os.getloadavg()[0], 1), "cores": os.cpu_count()}


def timed(processes: int, threads: int, folder: str) -> dict[str, dict[str, float]]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    started = []
    for rank in range(processes):
        given = {"OMP_NUM_THREADS": threads}
        if processes > 1:
            given |= {"RANK": rank, "WORLD_SIZE": processes, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        environment = os.environ | {name: str(value) for name, value in given.items()}
        command = [sys.executable, __file__, "--worker", folder]
        started.append(subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True))
    outputs = [process.communicate()[0] for process in started]
    return dict(json.loads(outputs[0]))


# ---- eight GPUs ----


def costs() -> dict[str, dict[str, float]]:
    """Of a step of each method on a ViT-B/16: images decoded, rows read, numbers tuned, multiply-accumulates."""
    from dept import methods
    from dept.bench.flops import Shape, prompted_forward
    from dept.models.model import create_model

    model = create_model("vit_base_patch16_224", 1000, stages=4, prompts=50)
    forward = prompted_forward(Shape(), 4, 50)
    found = {}
    for name in MODELLED:
        kind = methods.get(name)
        method = kind(model, kind.Config(batch=MODEL_BATCH))
        found[name] = {
            "views": len(method.views),
            "forwards": kind.forwards_per_step,
            "tuned": method.counts()["tunable_total"],
            "macs": MODEL_BATCH * kind.forwards_per_step * forward,
        }
    return found


def traffic(cost: dict[str, float]) -> dict[str, float]:
    """Bytes that each of W GPUs receives in a step: pixels and features of the others' rows, and gradients."""
    others = (GPUS - 1) / GPUS
    return {
        "pixels": others * MODEL_BATCH * cost["views"] * 3 * 224**2,
        # At most as many rows as forwards; a forward costs more than one only where there is a backward.
        "features": others * MODEL_BATCH * cost["forwards"] * 768 * 4,
        "gradients": 2 * others * cost["tuned"] * 4,  # a ring: everything passes every link twice
    }


# ---- tables ----


def shown(found: dict[str, Any]) -> str:
    lines = [
        f"Seconds of a step of {BATCH} images, {ARCH} at {SIZE} px, on {found['cores']} CPU cores with a load "
        f"average of {found['load']}: on the clock, and in brackets the CPU time of each process.",
        "",
        "| method | 1 process, 1 thread | 1 process, 2 threads | 2 processes, 1 thread each |",
        "|---|---:|---:|---:|",
    ]
    for name, layouts in found["seconds"].items():
        cells = [f"{seconds['wall']:.2f} ({seconds['cpu']:.2f})" for seconds in layouts.values()]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def modelled(found: dict[str, dict[str, float]], rate: float) -> str:
    lines = [
        f"| method | pixels | features | gradients | compute | {' | '.join(LINKS)} |",
        f"|---|---:|---:|---:|---:|{'---:|' * len(LINKS)}",
    ]
    for name, cost in found.items():
        sent, compute = traffic(cost), 2 * cost["macs"] / GPUS / rate
        total = sum(sent.values())
        cells = [f"{value / 1e6:,.1f} MB" for value in sent.values()] + [f"{1e3 * compute:,.0f} ms"]
        cells += [f"{100 * compute / (compute + total / speed):.0f} %" for speed in LINKS.values()]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--measure", action="store_true", help="make the figures anew")
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        worker(given.worker)
        return
    if given.measure:
        RESULT.write_text(json.dumps({"cpu": measure(), "gpu": costs()}, indent=2) + "\n")
    from dept.bench.estimate import RATE

    found = json.loads(RESULT.read_text())
    print(f"{shown(found['cpu'])}\n\n{modelled(found['gpu'], RATE)}")


if __name__ == "__main__":
    main()
