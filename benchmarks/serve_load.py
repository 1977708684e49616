"""Load test of `dept serve` on loopback: throughput, latency, memory, and what goes wrong elsewhere.

python benchmarks/serve_load.py --weights vit_tiny.safetensors --out benchmarks/results/serve/load.json
python benchmarks/serve_load.py --tiny --soak 2000 --out benchmarks/results/serve/load_tiny.json
python benchmarks/serve_load.py --table benchmarks/results/serve/load.json …      # the tables of docs/serve.md

Everything is bounded: phases by seconds, the soak by requests. Clients run in a process of their own.
"""

from __future__ import annotations

import argparse
import base64
import io
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from serve_table import table

from dept.core.adapter import Adapter
from dept.errors import DeptError
from dept.io import write_json
from dept.models.files import adapter_meta, fingerprint, rest_hash, save_adapter, save_model
from dept.models.model import Model, create_model
from dept.serve.client import Client, Refused

ARCH = "vit_tiny_patch16_224"
TINY = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 2}


@dataclass(frozen=True)
class Sizes:
    """How much of everything."""

    domains: int = 100
    clients: int = 32
    rounds: int = 3
    seconds: float = 8.0
    soak: int = 100_000
    resident: int = 500
    image: int = 224
    prompts: int = 50
    batch: int = 32


# ---- models, adapters, images ----


def make_model(sizes: Sizes, weights: Path | None, *, tiny: bool) -> Model:
    options = TINY if tiny else {"img_size": sizes.image}
    prompts = 4 if tiny else sizes.prompts
    return create_model(ARCH, 12, stages=2 if tiny else 4, prompts=prompts, weights=weights, **options).eval()


def write_adapters(model: Model, folder: Path, count: int) -> int:
    """Adapters of prompts and head, each its own; returns the bytes of one in memory."""
    folder.mkdir(parents=True)
    sha, own = fingerprint(model), model.adapter.tensors
    for number in range(count):
        generator = torch.Generator().manual_seed(number)
        tensors = {name: t.detach() + 0.05 * torch.randn(t.shape, generator=generator) for name, t in own.items()}
        meta = adapter_meta(model, backbone_sha256=sha, rest_sha256=rest_hash(model, tensors), method="random")
        save_adapter(Adapter(tensors, meta), folder / f"site{number:03}.safetensors")
    return sum(tensor.nbytes for tensor in own.values())


def make_images(count: int, side: int) -> list[bytes]:
    """JPEGs as cameras send them: a smooth scene with noise."""
    rng, found = np.random.default_rng(0), []
    for _ in range(count):
        coarse = Image.fromarray(rng.integers(0, 256, (8, 8, 3), dtype=np.uint8)).resize((side, side))
        pixels = np.asarray(coarse, np.int16) + rng.integers(-12, 13, (side, side, 3))
        buffer = io.BytesIO()
        Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(buffer, "JPEG", quality=85)
        found.append(buffer.getvalue())
    return found


# ---- the server ----


class Server:
    """A server process on loopback."""

    def __init__(self, model: Path, adapters: Path, *flags: str) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        words = ["serve", model, "--adapters", adapters, "--no-auth", "--port", port, "--rate", 0, *flags]
        self.process = subprocess.Popen([sys.executable, "-m", "dept", *map(str, words)], stderr=subprocess.DEVNULL)
        for _ in range(3000):
            if self.process.poll() is not None:
                raise SystemExit("The server did not start.")
            try:
                Client(self.url).call("GET", "/ready")
                return
            except DeptError:
                time.sleep(0.1)
        self.stop()
        raise SystemExit("The server was not ready in time.")

    def rss(self) -> int:
        """Resident bytes."""
        pages = Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]
        return int(pages) * os.sysconf("SC_PAGESIZE")

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(60)


# ---- clients ----


@dataclass(frozen=True)
class Load:
    """What clients do: each sends one image after the other, for so long or so often."""

    url: str
    domains: tuple[str, ...]
    clients: int
    images: tuple[bytes, ...]
    seconds: float = 0.0
    requests: int = 0


class Driving:
    """Clients at work in another process; `done` waits for them."""

    COLUMNS = ("latency_ms", "decode_ms", "queue_ms", "forward_ms", "server_ms")

    def __init__(self, load: Load) -> None:
        script = str(Path(__file__).parent / "serve_clients.py")
        self.process = subprocess.Popen([sys.executable, script], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        given = asdict(load) | {"images": [base64.b64encode(image).decode() for image in load.images]}
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(given).encode())
        self.process.stdin.close()

    def done(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        seen = json.loads(self.process.stdout.read())
        self.process.wait()
        statuses, rows = seen["statuses"], np.array(seen["rows"] or [[np.nan] * len(self.COLUMNS)])
        good = statuses.pop("200", 0)
        found = {"requests": good, "errors": statuses, "per_second": good / seen["seconds"]}
        found |= {"p50_ms": np.quantile(rows[:, 0], 0.5), "p99_ms": np.quantile(rows[:, 0], 0.99)}
        found |= {f"median_{name}": np.median(rows[:, n]) for n, name in enumerate(self.COLUMNS) if n}
        return {name: round(float(value), 2) if isinstance(value, float) else value for name, value in found.items()}


# ---- phases ----


def throughput(server: Server, sizes: Sizes, images: tuple[bytes, ...]) -> dict[str, Any]:
    """Many domains, one domain and one client in turn, so that a busy machine treats them alike; medians of rounds."""
    names = tuple(f"site{number:03}" for number in range(sizes.domains))
    kinds = {
        "mixed": Load(server.url, names, sizes.clients, images, sizes.seconds),
        "one_domain": Load(server.url, names[:1], sizes.clients, images, sizes.seconds),
        "one_at_a_time": Load(server.url, names, 1, images, sizes.seconds),
    }
    Driving(kinds["mixed"]).done()  # warm-up
    rounds: dict[str, list[dict[str, Any]]] = {kind: [] for kind in kinds}
    for _ in range(sizes.rounds):
        for kind, load in kinds.items():
            rounds[kind].append(Driving(load).done())
    rows = {kind: sorted(found, key=lambda one: one["per_second"])[len(found) // 2] for kind, found in rounds.items()}
    for kind, found in rounds.items():
        rows[kind]["errors"] = dict(sum((Counter(one["errors"]) for one in found), Counter()))
    rates = {kind: row["per_second"] for kind, row in rows.items()}
    rows["mixed_over_one_domain"] = round(rates["mixed"] / rates["one_domain"], 3)
    rows["mixed_over_one_at_a_time"] = round(rates["mixed"] / rates["one_at_a_time"], 3)
    return rows


def hot_swap(server: Server, sizes: Sizes, images: tuple[bytes, ...]) -> dict[str, Any]:
    """Activate and roll back while clients predict."""
    names = tuple(f"site{number:03}" for number in range(sizes.domains))
    driving = Driving(Load(server.url, names, sizes.clients, images, sizes.seconds))
    operator, swaps, end = Client(server.url), 0, time.monotonic() + sizes.seconds
    while time.monotonic() < end:
        name = names[swaps % len(names)]
        operator.activate(name, 0)
        operator.roll_back(name)
        swaps += 2
    return driving.done() | {"swaps": swaps}


def adversity(model: Path, adapters: Path, sizes: Sizes, images: tuple[bytes, ...]) -> dict[str, Any]:
    """Clients that behave, beside slow ones, broken uploads and a flood. The flood may get 429, the others nothing."""
    server = Server(model, adapters, "--queue", 4 * sizes.clients, "--batch", sizes.batch)
    address = server.url.removeprefix("http://").split(":")
    stop = threading.Event()
    broken: Counter[int] = Counter()

    def slow() -> None:
        with socket.create_connection((address[0], int(address[1]))) as half:
            half.sendall(b"POST /v1/predict HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: image/jpeg\r\n")
            half.sendall(b"Content-Length: 100000\r\n\r\n" + bytes(100))
            stop.wait()

    def breaking() -> None:
        opened = Client(server.url)
        while not stop.wait(0.01):
            try:
                opened.call("POST", "/v1/predict?domain=site000", b"\xff\xd8" + bytes(2000), "image/jpeg")
            except Refused as refused:
                broken[refused.status] += 1

    threads = [threading.Thread(target=slow) for _ in range(8)] + [threading.Thread(target=breaking) for _ in range(2)]
    for thread in threads:
        thread.start()
    calm = Driving(Load(server.url, ("site000",), sizes.clients, images, sizes.seconds)).done()
    stop.set()
    for thread in threads:
        thread.join()
    flood = Driving(Load(server.url, ("site000",), 8 * sizes.clients, images, sizes.seconds)).done()
    after = Driving(Load(server.url, ("site000",), 1, images, 1.0)).done()
    server.stop()
    return {"beside_slow_and_broken": calm, "broken_uploads": dict(broken), "flood": flood, "after_flood": after}


def drain(model: Path, adapters: Path, sizes: Sizes, images: tuple[bytes, ...]) -> dict[str, Any]:
    """SIGTERM while requests wait in the queue: all of them are answered."""
    server = Server(model, adapters, "--wait-ms", 1500)
    driving = Driving(Load(server.url, ("site000",), sizes.clients, images, requests=sizes.clients))
    metrics = Client(server.url)
    for _ in range(1000):  # until they are accepted
        text = metrics.call("GET", "/metrics")
        if f"dept_pending_images {sizes.clients}.0" in text:
            break
        time.sleep(0.02)
    server.stop()
    return driving.done()


def soak(server: Server, domains: int, sizes: Sizes, images: tuple[bytes, ...]) -> dict[str, Any]:
    """Many requests on a tiny model: resident memory after a fifth of them, and at the end."""
    names = tuple(f"site{number:03}" for number in range(domains))
    counts = [sizes.soak // 5, sizes.soak - sizes.soak // 5]
    found, memory = [], []
    for count in counts:
        found.append(Driving(Load(server.url, names, min(16, sizes.clients), images, requests=count)).done())
        memory.append(server.rss())
    errors = dict(sum((Counter(one["errors"]) for one in found), Counter()))
    grown = memory[1] / memory[0] - 1
    return {"requests": sum(one["requests"] for one in found), "errors": errors, "per_second": found[1]["per_second"],
            "rss_after_warm_up": memory[0], "rss_at_end": memory[1], "growth": round(grown, 4)}  # fmt: skip


RESIDENT = """
import gc, os, sys
from pathlib import Path
from dept.models.files import read_model
from dept.serve.pool import Pool

def rss():
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")

model, sha = read_model(sys.argv[1])
Pool(model, sha, Path(sys.argv[2]))  # an empty one: what it needs anyway
before = rss()
pool = Pool(model, sha, Path(sys.argv[3]))
print(before, rss(), len(pool.names()), pool.bytes())
"""


def resident(model_file: Path, model: Model, folder: Path, sizes: Sizes) -> dict[str, Any]:
    """Memory of many resident adapters over that of the backbone alone, in a process that starts on a known folder."""
    from dept.models.files import read_model
    from dept.serve.pool import Pool

    each = write_adapters(model, folder / "many", sizes.resident)
    loaded, sha = read_model(model_file)
    Pool(loaded, sha, folder / "many").adopt()  # the process that is measured only loads them
    words = [sys.executable, "-c", RESIDENT, str(model_file), str(folder / "none"), str(folder / "many")]
    found = subprocess.run(words, capture_output=True, text=True, check=True).stdout.split()
    before, after, count, held = map(int, found)
    return {"adapters": count, "adapter_bytes": each, "tensor_bytes": held, "rss_backbone": before, "rss_all": after,
            "per_adapter_ratio": round((after - before) / (count * each), 3)}  # fmt: skip


# ---- all of it ----


def run(sizes: Sizes, weights: Path | None, *, tiny: bool) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        model = make_model(sizes, weights, tiny=tiny)
        file = save_model(model, folder / "model.safetensors")
        images = tuple(make_images(16, 32 if tiny else sizes.image + 32))
        write_adapters(model, folder / "adapters", sizes.domains)
        found: dict[str, Any] = {"sizes": asdict(sizes), "arch": "tiny" if tiny else ARCH, "cores": os.cpu_count()}
        found |= {"weights": "pretrained" if weights else "random", "load_average_before": os.getloadavg()[0]}
        server = Server(file, folder / "adapters", "--batch", sizes.batch)
        found["throughput"] = throughput(server, sizes, images)
        found["hot_swap"] = hot_swap(server, sizes, images)
        server.stop()
        if not tiny:
            server = Server(file, folder / "adapters", "--batch", sizes.batch, "--amp")
            found["throughput_bf16"] = throughput(server, sizes, images)
            server.stop()
        found["adversity"] = adversity(file, folder / "adapters", sizes, images)
        found["drain"] = drain(file, folder / "adapters", sizes, images)
        found["resident"] = resident(file, model, folder, sizes)
        small = make_model(sizes, None, tiny=True)
        small_file = save_model(small, folder / "tiny.safetensors")
        write_adapters(small, folder / "tiny", 8)
        server = Server(small_file, folder / "tiny")
        found["soak"] = soak(server, 8, sizes, tuple(make_images(8, 32)))
        server.stop()
        found["load_average_after"] = os.getloadavg()[0]
        return found


def main(words: list[str] | None = None) -> dict[str, Any]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weights", type=Path, help="weights of the ViT-Ti; random ones without it")
    parser.add_argument("--out", type=Path, help="JSON file to write")
    parser.add_argument("--table", type=Path, nargs="+", help="print the tables of such files, and do nothing else")
    parser.add_argument("--tiny", action="store_true", help="a tiny model in place of the ViT-Ti")
    for name, default in asdict(Sizes()).items():
        parser.add_argument(f"--{name}", type=type(default), default=default)
    given = vars(parser.parse_args(words))
    if given["table"]:
        print(table(*(json.loads(file.read_text()) for file in given["table"])))
        return {}
    found = run(Sizes(**{name: given[name] for name in asdict(Sizes())}), given["weights"], tiny=given["tiny"])
    if given["out"]:
        write_json(given["out"], found)
    print(json.dumps(found, indent=2))
    return found


if __name__ == "__main__":
    main()
