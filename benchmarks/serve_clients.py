"""Clients of `serve_load.py`, in a process without torch: a JSON object on stdin, what they saw on stdout."""

from __future__ import annotations

import base64
import json
import random
import sys
import threading
import time
from collections import Counter
from typing import Any

from dept.errors import DeptError
from dept.serve.client import Client, Refused

KEPT = 100_000
"""latencies of the latest requests that are reported"""


class Clients:
    """Clients that send one image after the other, for so many seconds or requests altogether."""

    def __init__(self, load: dict[str, Any]) -> None:
        self.load, self.lock = load, threading.Lock()
        self.images = [base64.b64decode(image) for image in load["images"]]
        self.left = load["requests"] or 10**12
        self.end = time.monotonic() + (load["seconds"] or 10**6)
        self.statuses: Counter[str] = Counter()
        self.rows: list[list[float]] = []

    def work(self, number: int) -> None:
        """One client."""
        rng, opened = random.Random(number), Client(self.load["url"])
        while self._more():
            domain, image, began = rng.choice(self.load["domains"]), rng.choice(self.images), time.perf_counter()
            try:
                answer = opened.call("POST", f"/v1/predict?topk=1&domain={domain}", image, "image/jpeg")
            except Refused as refused:
                self._count(str(refused.status))
                time.sleep(0.05)
            except DeptError:
                self._count("connection")
            else:
                timing = answer["timing"]
                row = [1000 * (time.perf_counter() - began), timing["decode_ms"], timing["queue_ms"]]
                self._count("200", [*row, timing["forward_ms"], timing["total_ms"]])

    def _more(self) -> bool:
        with self.lock:
            self.left -= 1
            return self.left >= 0 and time.monotonic() < self.end

    def _count(self, status: str, row: list[float] | None = None) -> None:
        with self.lock:
            self.statuses[status] += 1
            if row is not None:
                self.rows.append(row)
                if len(self.rows) > 2 * KEPT:
                    del self.rows[:KEPT]


def main() -> None:
    clients = Clients(json.load(sys.stdin))
    began = time.monotonic()
    threads = [threading.Thread(target=clients.work, args=(n,)) for n in range(clients.load["clients"])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seen = {"seconds": time.monotonic() - began, "statuses": clients.statuses, "rows": clients.rows[-KEPT:]}
    json.dump(seen, sys.stdout)


if __name__ == "__main__":
    main()
