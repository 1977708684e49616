"""The server without HTTP: the model, its adapters, the queue, and what runs beside them."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
import uuid
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from torch import Tensor

from dept.data.decoding import decode_bytes
from dept.data.loader import resolve_device
from dept.data.views import test_view
from dept.errors import DataError, DeptError
from dept.health.prior import believed
from dept.models.files import read_model
from dept.models.stats import source_shares
from dept.serve.batcher import Batcher, DeadlinePassed
from dept.serve.engine import Engine, Pixels
from dept.serve.jobs import ENDED, OPEN, Jobs
from dept.serve.metrics import Metrics
from dept.serve.online import Learners
from dept.serve.options import ServeOptions
from dept.serve.pool import Entry, Pool
from dept.serve.watch import Sample, Watches

logger = logging.getLogger("dept.serve")
LOOKED_AT = 8
"""images that are compared with the source model at a time"""
BUSY_SECONDS = 5.0
"""seconds between two such looks while requests wait"""
TRAFFIC_SECONDS = 1.0
"""seconds between two reports of the traffic to the index"""
FORGOTTEN = 30.0
"""seconds after which the traffic of a process that no longer reports is forgotten"""


@dataclass(frozen=True)
class Asked:
    """One image for the inference thread."""

    pixels: Pixels
    entry: Entry | None
    """None: to be routed"""
    asked: float


@dataclass(frozen=True)
class Answer:
    """What the model says about one image."""

    entry: Entry
    ranked: list[tuple[int, float]]
    """(class, probability), best first"""
    distance: float | None
    """from the nearest domain, if it was routed"""
    queued: float
    forward: float
    """seconds; the forward is that of the whole batch"""


@dataclass(frozen=True)
class Given:
    """One image of a request, after decoding."""

    name: str
    pixels: Pixels | None
    problem: str
    seconds: float
    picture: Pixels | None = None
    """the whole image, if a domain may learn from it"""


class Service:
    """One server process. `start` and `stop` belong to an event loop."""

    def __init__(self, model: Path, adapters: Path, options: ServeOptions) -> None:
        self.options, self.file, self.started = options, model, time.time()
        self.process = f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:4]}"
        self.model, sha = read_model(model)
        device = resolve_device(options.device)
        self.model = self.model.to(device).eval().requires_grad_(False)
        self.model.configure(amp=options.amp)
        self.pool = Pool(self.model, sha, adapters, keep=options.keep_versions)
        self.adopted, self.refused = self.pool.adopt()
        self.engine = Engine(self.model)
        self.metrics = Metrics()
        self.watches = Watches(options.thumbnails)
        self.prior = believed("unknown", self.model.classes, source_shares(self.model, {}))
        self.jobs = Jobs(self.pool, model, folders=options.allow_folder, most=options.jobs, device=device)
        self.learners = Learners(self.pool, model, device=device, most=options.learners, every=options.publish_every)
        self._decoders = ThreadPoolExecutor(options.decoders, thread_name_prefix="decode")
        self._task: asyncio.Task[None] | None = None
        self.ready = False

    async def start(self) -> None:
        """Begin to serve."""
        options = self.options
        self.batcher: Batcher[Asked, Answer] = Batcher(
            self._run, batch=options.batch, wait=options.wait_ms / 1000, capacity=options.queue
        )
        self.batcher.start()
        blank = np.zeros((self._size, self._size, self.model.card.preprocess.channels), np.uint8)
        await self.batcher.aside(lambda: self._run([Asked(blank, self.pool.source, time.monotonic())]))  # warm up
        self.jobs.open()
        self._task = asyncio.get_running_loop().create_task(self._tend())
        self.ready = True

    async def stop(self) -> None:
        """Answer what has been accepted, then stop everything."""
        self.ready = False
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
        await self.batcher.close()
        await asyncio.to_thread(self.jobs.close)
        await asyncio.to_thread(self.learners.close)
        self._decoders.shutdown()

    @property
    def _size(self) -> int:
        return self.model.card.preprocess.size

    # -- predictions ----------------------------------------------------------------------------------------

    async def predict(
        self, images: Sequence[tuple[str, bytes]], domain: str | None, deadline_ms: int | None
    ) -> tuple[list[Given], list[Answer | None]]:
        """Predict images of one domain, or each by the domain that it looks like. Broken images have no answer.

        Raises:
            NotFound: there is no such domain.
            QueueFull: too many images wait already.
            DeadlinePassed: it took too long.
        """
        entry = None if domain is None else self.pool.get(domain)
        limit = min(deadline_ms or self.options.deadline_ms, self.options.deadline_ms)
        deadline = time.monotonic() + limit / 1000
        with self.batcher.room_for(len(images)):
            given = await self._decode(images, limit / 1000)
            lane = ("route",) if entry is None else entry.lane
            asked = [
                self.batcher.answer(Asked(one.pixels, entry, time.monotonic()), lane, deadline)
                for one in given
                if one.pixels is not None
            ]
            answers = iter(await asyncio.gather(*asked))
        return given, [None if one.pixels is None else next(answers) for one in given]

    async def _decode(self, images: Sequence[tuple[str, bytes]], seconds: float) -> list[Given]:
        """Decode in the threads for it; what has not begun by the deadline is left out."""
        loop = asyncio.get_running_loop()
        work = [loop.run_in_executor(self._decoders, self._decoded, name, data) for name, data in images]
        try:
            return await asyncio.wait_for(asyncio.gather(*work), seconds)
        except TimeoutError as error:
            raise DeadlinePassed from error

    def _decoded(self, name: str, data: bytes) -> Given:
        """In a decoder thread."""
        began, pre = time.perf_counter(), self.model.card.preprocess
        try:
            image = decode_bytes(data, pre.channels, most=self.options.max_pixels)
            pixels = np.asarray(test_view(image, pre), dtype=np.uint8).reshape(pre.size, pre.size, pre.channels)
        except DataError as error:
            self.metrics.bad_images.inc()
            return Given(name, None, str(error), time.perf_counter() - began)
        seconds = time.perf_counter() - began
        self.metrics.decode.observe(seconds)
        return Given(name, pixels, "", seconds, self._picture(image) if self.learners.listening else None)

    def _picture(self, image: Image.Image) -> Pixels:
        """An image to learn from, no larger than random crops of it need."""
        side = 2 * self.model.card.preprocess.resize
        image.thumbnail((side, side))
        return np.asarray(image, dtype=np.uint8)

    def _run(self, batch: Sequence[Asked]) -> list[Answer | Exception]:
        """In the inference thread: route what has no domain, then one forward per lane."""
        began = time.monotonic()
        images = self.engine.normalised([one.pixels for one in batch])
        entries, distances = self._routed(batch, images)
        answers: list[Answer | Exception] = [DeptError("never answered")] * len(batch)
        for lane in dict.fromkeys(entry.lane for entry in entries):
            rows = [row for row, entry in enumerate(entries) if entry.lane == lane]
            started = time.monotonic()
            whole = len(rows) == len(batch)
            logits = self.engine.logits(images if whole else images[rows], [entries[row] for row in rows])
            forward = time.monotonic() - started
            self.metrics.forward.observe(forward)
            self.metrics.batch.observe(len(rows))
            self.metrics.batch_domains.observe(len({entries[row].domain for row in rows}))
            for row, ranked in zip(rows, _ranked(logits), strict=True):
                queued = began - batch[row].asked
                self.metrics.queued.observe(queued)
                answers[row] = (
                    DeptError(f"The outputs for domain {entries[row].domain!r} are not finite. Roll it back.")
                    if ranked is None
                    else Answer(entries[row], ranked, distances[row], queued, forward)
                )
        return answers

    def _routed(self, batch: Sequence[Asked], images: Tensor) -> tuple[list[Entry], list[float | None]]:
        """The entry of every image, and its distance from the nearest domain where that decided."""
        entries = [one.entry or self.pool.source for one in batch]
        distances: list[float | None] = [None] * len(batch)
        unknown = [row for row, one in enumerate(batch) if one.entry is None]
        if unknown and self.engine.has_features and self.pool.router.names:
            for row, route in zip(unknown, self.pool.router(self.engine.features(images[unknown])), strict=True):
                distances[row] = route.distance
                if route.domain is not None:
                    entries[row] = self.pool.get(route.domain)
        return entries, distances

    def saw(self, given: Sequence[Given], answers: Sequence[Answer | None], seconds: float) -> None:
        """Count a request that was answered, and perhaps look at one of its images later."""
        self.metrics.latency.observe(seconds)
        good = [(one, answer) for one, answer in zip(given, answers, strict=True) if answer is not None]
        counts = Counter(answer.entry.domain for _, answer in good)
        for domain, count in counts.items():
            self.metrics.images.labels(domain).inc(count)
            self.watches.count(domain, count, len(given) - len(good), seconds)
        for one, answer in good:
            if one.picture is not None:
                self.learners.offer(answer.entry.domain, one.picture)
        for one, answer in good[:1]:
            assert one.pixels is not None
            self.watches.offer(Sample(one.name, one.pixels, answer.entry, *answer.ranked[0]))

    # -- beside predictions ---------------------------------------------------------------------------------

    async def _tend(self) -> None:
        """Take over changes, look at some images, report the traffic: as long as the server runs."""
        looked = reported = 0.0
        while True:
            await asyncio.sleep(self.options.poll)
            now = time.monotonic()
            try:
                await asyncio.to_thread(self._follow)
                if self.batcher.idle or now - looked >= BUSY_SECONDS:
                    looked = now
                    await self._look()
                if now - reported >= TRAFFIC_SECONDS:
                    reported = now
                    # Taken here, because requests go on counting: then written elsewhere, because a disk may be slow.
                    await asyncio.to_thread(self._report, self.watches.records())
            except Exception:  # of one round; serving goes on
                logger.exception("A round beside the predictions failed.")

    def _follow(self) -> None:
        self.pool.sync()
        self.learners.tend()

    async def _look(self) -> None:
        samples = self.watches.samples(LOOKED_AT)
        if samples:
            await self.batcher.aside(lambda: self.watches.look(samples, self.engine, self.pool))
        for domain, features in self.watches.measured().items():
            await asyncio.to_thread(self.pool.set_signature, domain, features)

    def _report(self, records: dict[str, dict[str, Any]]) -> None:
        self.pool.index.save_traffic(self.process, records)
        self.pool.index.forget_traffic(time.time() - FORGOTTEN)
        self.metrics.pending.set(self.batcher.pending)
        self.metrics.domains.set(len(self.pool.names()))
        self.metrics.adapter_bytes.set(self.pool.bytes())
        for name in self.pool.names():
            self.metrics.active.labels(name).set(self.pool.get(name).version)
        jobs = Counter(state for _, state, _ in self.pool.index.jobs())
        for state in (*OPEN, *ENDED):
            self.metrics.jobs.labels(state).set(jobs[state])
        for domain, record in records.items():
            if record["drift"] is not None:
                self.metrics.drift.labels(domain).set(record["drift"])


def _ranked(logits: Tensor) -> list[list[tuple[int, float]] | None]:
    """Classes with their probability, best first, for every row of logits (B, C); None for one that is not finite."""
    good = logits.isfinite().all(dim=1).tolist()
    best = logits.softmax(dim=-1).sort(dim=-1, descending=True)
    rows = zip(best.indices[:, :100].tolist(), best.values[:, :100].tolist(), good, strict=True)
    return [list(zip(indices, values, strict=True)) if fine else None for indices, values, fine in rows]
