"""What a second worker brings to a fleet, and what memory it takes: `python benchmarks/fleet_speed.py` prints a table.

`--measure` makes the figures anew, on a machine that does nothing else: a fleet of small sites (real digits, the
embedded model) is run by one local worker and by several, after one site in a process of its own.

- `throughput`: sites per second of the whole fleet, with the start of the processes; `speedup` over one worker. And the
  same without the start, from the first site that ended to the last.
- `memory`: the sum over the workers of the most memory that each ever held (VmHWM), divided by workers × that of the
  process that adapts a single site: one that holds torch, the backbone and one adapter.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from dept.bench.suites.digits import EMBEDDED
from dept.data.digits import real_digits, write_digits
from dept.runs.fleet import fleet
from dept.runs.runners.options import RunnerOptions

RESULT = Path(__file__).parent / "results" / "cost" / "fleet_speed.json"
SINGLE = """
import sys, json, torch
from pathlib import Path
from dept.runs.adapt import adapt
torch.set_num_threads(1)
adapt(sys.argv[1], sys.argv[2], out=sys.argv[3], **json.loads(sys.argv[4]))
print(next(line.split()[1] for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")))
"""


def write_sites(root: Path, sites: int, images: int) -> Path:
    """So many folders of digits, all different as far as there are enough."""
    digits, labels = real_digits()
    for number in range(sites):
        start = number * images % (len(digits) - images)
        chosen = slice(start, start + images)
        write_digits(root / f"site{number:03}", (digits[chosen], labels[chosen]))
    return root


class Memory(threading.Thread):
    """Watches the processes that this one has started: the most kilobytes that each has held."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.most: dict[int, int] = {}
        self.ended = threading.Event()

    def run(self) -> None:
        tasks = Path("/proc/self/task")
        while not self.ended.wait(0.1):
            for children in tasks.glob("*/children"):
                with contextlib.suppress(OSError):  # a thread or a process has ended meanwhile
                    for process in map(int, children.read_text().split()):
                        words = (Path("/proc") / str(process) / "status").read_text().split()
                        if "VmHWM:" in words and "spawn_main" in self.command(process):
                            self.most[process] = int(words[words.index("VmHWM:") + 1])

    @staticmethod
    def command(process: int) -> str:
        return (Path("/proc") / str(process) / "cmdline").read_text()


def measure(sites: Path, workers: int, settings: dict[str, Any], folder: Path) -> dict[str, Any]:
    """One fleet."""
    ends: list[float] = []
    memory = Memory()
    memory.start()
    start = time.perf_counter()
    summary = fleet(
        EMBEDDED,
        sites,
        out=folder / f"runs{workers}",
        runner=RunnerOptions("local", jobs=workers),
        listener=lambda event: ends.append(time.perf_counter()),
        **settings,
    )
    seconds = time.perf_counter() - start
    memory.ended.set()
    memory.join()
    assert not summary.of("failed"), summary
    return {
        "workers": workers,
        "seconds": round(seconds, 2),
        "throughput": round(len(ends) / seconds, 3),
        "throughput_without_start": round((len(ends) - 1) / (ends[-1] - ends[0]), 3),
        "megabytes": [round(one / 1000, 1) for one in memory.most.values()],
    }


def measured(given: argparse.Namespace) -> dict[str, Any]:
    """The single process, then a fleet for every number of workers."""
    settings = {"method": "dept+", "max_iters": given.steps, "batch": 16, "device": "cpu"}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        sites = write_sites(folder / "sites", given.sites, given.images)
        words = [EMBEDDED, sites / "site000", folder / "single", json.dumps(settings)]
        printed = subprocess.run([sys.executable, "-c", SINGLE, *map(str, words)], capture_output=True, check=True)
        unit = int(printed.stdout) / 1000
        rows = [measure(sites, workers, settings, folder) for workers in given.workers]
    for row in rows:
        row["speedup"] = round(row["throughput"] / rows[0]["throughput"], 2)
        row["memory"] = round(sum(row["megabytes"]) / (row["workers"] * unit), 3)
    return {"sites": given.sites, **settings, "single_megabytes": unit, "runs": rows}


def shown(found: dict[str, Any]) -> str:
    lines = [
        "| workers | seconds | sites per second | without the start | throughput | memory of each | memory in all |",
        "|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for row in found["runs"]:
        rates = f"{row['throughput']:.2f} | {row['throughput_without_start']:.2f} | {row['speedup']:.2f} ×"
        memory = f"{', '.join(f'{one:,.0f} MB' for one in row['megabytes'])} | {row['memory']:.2f} ×"
        lines.append(f"| {row['workers']} | {row['seconds']:.0f} | {rates} | {memory} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measure", action="store_true", help="make the figures anew")
    parser.add_argument("--sites", type=int, default=50)
    parser.add_argument("--images", type=int, default=30)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    given = parser.parse_args()
    if given.measure:
        RESULT.write_text(json.dumps(measured(given), indent=2) + "\n")
    print(shown(json.loads(RESULT.read_text())))


if __name__ == "__main__":
    main()
