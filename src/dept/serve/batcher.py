"""One bounded queue of images, flushed as a batch when one is full, or when its oldest image has waited long enough."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Generic, TypeVar

from dept.errors import DeptError

T = TypeVar("T")
Work = TypeVar("Work")
Answer = TypeVar("Answer")
logger = logging.getLogger(__name__)
SMOOTHING = 0.2
"""share of a new batch in the mean time per image"""


class QueueFull(DeptError):
    """More images than the server has room for."""

    def __init__(self, seconds: int) -> None:
        super().__init__(f"The queue is full. Try again in {seconds} s.")
        self.seconds = seconds


class DeadlinePassed(DeptError):
    """A prediction did not come in time."""

    def __init__(self) -> None:
        super().__init__("The deadline has passed before the images were predicted.")


@dataclass(frozen=True)
class Waiting(Generic[Work, Answer]):
    """One image in the queue."""

    work: Work
    arrived: float
    answer: asyncio.Future[Answer]


class Lanes(Generic[T]):
    """Queues of what may share a batch, one per lane. Times are given, so nothing here waits.

    Args:
        most: largest batch.
        wait: seconds that the oldest of a lane waits for others.
    """

    def __init__(self, most: int, wait: float) -> None:
        self.most, self.wait = most, wait
        self._lanes: dict[Hashable, deque[tuple[float, T]]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._lanes.values()))

    def add(self, lane: Hashable, item: T, now: float) -> None:
        """Append to a lane."""
        self._lanes.setdefault(lane, deque()).append((now, item))

    def next_due(self) -> float | None:
        """When the next batch is due; None if nothing waits."""
        return min((self._due(lane) for lane in self._lanes.values()), default=None)

    def take(self, now: float) -> list[T]:
        """A batch that is due, of the lane whose oldest item came first; empty if none is due."""
        due = [(lane[0][0], key) for key, lane in self._lanes.items() if self._due(lane) <= now]
        if not due:
            return []
        key = min(due, key=lambda one: one[0])[1]
        lane = self._lanes[key]
        batch = [lane.popleft()[1] for _ in range(min(self.most, len(lane)))]
        if not lane:  # lanes come and go with versions of adapters
            del self._lanes[key]
        return batch

    def _due(self, lane: deque[tuple[float, T]]) -> float:
        return lane[0][0] + (0.0 if len(lane) >= self.most else self.wait)


class Batcher(Generic[Work, Answer]):
    """Feeds one inference thread. Use it from one event loop.

    Args:
        run: answers a batch, in the inference thread.
        batch, wait: see `Lanes`.
        capacity: images that are accepted and not yet answered.
    """

    def __init__(
        self,
        run: Callable[[Sequence[Work]], Sequence[Answer | Exception]],
        *,
        batch: int,
        wait: float,
        capacity: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._run, self._clock, self.capacity = run, clock, capacity
        self._lanes: Lanes[Waiting[Work, Answer]] = Lanes(batch, wait)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="inference")
        self._wake = asyncio.Event()
        self._closing = False
        self._task: asyncio.Task[None] | None = None
        self.pending = 0
        """images accepted and not yet answered"""
        self._seconds_per_image = 0.0

    def start(self) -> None:
        """Begin to answer."""
        self._task = asyncio.get_running_loop().create_task(self._serve())

    async def close(self) -> None:
        """Answer what is in the queue, then stop."""
        self._closing = True
        self._wake.set()
        if self._task is not None:
            await self._task
        self._thread.shutdown()

    @contextmanager
    def room_for(self, count: int) -> Iterator[None]:
        """Room for so many images, from before they are decoded until they are answered; QueueFull if there is none."""
        if self.pending + count > self.capacity:
            raise QueueFull(self.retry_after())
        self.pending += count
        try:
            yield
        finally:
            self.pending -= count

    def retry_after(self) -> int:
        """Whole seconds after which the images that wait now are probably answered."""
        return min(60, max(1, math.ceil(self.pending * self._seconds_per_image)))

    async def answer(self, work: Work, lane: Hashable, deadline: float) -> Answer:
        """The answer for one image; DeadlinePassed if it does not come in time (by the clock of this object)."""
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        now = self._clock()
        self._lanes.add(lane, Waiting(work, now, future), now)
        self._wake.set()
        try:
            # One that is given up here is cancelled, and then left out of its batch.
            return await asyncio.wait_for(future, max(0.0, deadline - now))
        except TimeoutError as error:
            raise DeadlinePassed from error

    async def aside(self, work: Callable[[], T]) -> T:
        """Run something in the inference thread, between two batches."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    @property
    def idle(self) -> bool:
        """Whether no image waits."""
        return self.pending == 0

    async def _serve(self) -> None:
        while True:
            batch = self._lanes.take(self._clock())
            if batch:
                await self._answer([one for one in batch if not one.answer.done()])
            elif self._closing and not len(self._lanes):
                return
            else:
                await self._wait()

    async def _wait(self) -> None:
        """Until something arrives or a batch is due."""
        due = self._lanes.next_due()
        self._wake.clear()
        if self._closing:  # nothing more arrives; the rest must not wait for company
            self._lanes.wait = 0.0
            return
        with suppress(TimeoutError):
            await asyncio.wait_for(self._wake.wait(), None if due is None else max(0.0, due - self._clock()))

    async def _answer(self, batch: list[Waiting[Work, Answer]]) -> None:
        if not batch:
            return
        began = self._clock()
        answers: Sequence[Answer | Exception]
        try:
            answers = await self.aside(lambda: self._run([one.work for one in batch]))
        except Exception as error:  # of one batch; the next one may be well
            logger.exception("A batch of %d images failed.", len(batch))
            answers = [error] * len(batch)
        took = (self._clock() - began) / len(batch)
        self._seconds_per_image += SMOOTHING * (took - self._seconds_per_image)
        for one, answer in zip(batch, answers, strict=True):
            if one.answer.done():
                continue
            if isinstance(answer, Exception):
                one.answer.set_exception(answer)
            else:
                one.answer.set_result(answer)
