"""Domains that adapt to their traffic: the server's side of the learners, one process per domain.

Images reach a learner through a bounded queue, and are dropped when it is full. A candidate that a learner offers is
added as a version and served at once (mode on), or only compared (mode shadow). Predictions never wait for any of it.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from filelock import FileLock, Timeout

from dept import methods
from dept.errors import DeptError, UsageError
from dept.serve.engine import Pixels
from dept.serve.index import Domain
from dept.serve.jobs import NICE
from dept.serve.learner import Task, Told, run
from dept.serve.pool import Conflict, Pool

logger = logging.getLogger(__name__)
WAITING = 64
"""images that wait for a learner, at most"""
BY = "online"
"""who publishes, in the history of a domain"""


@dataclass
class Running:
    """A learner, and what it has reported."""

    process: SpawnProcess
    inbox: SimpleQueue[Any]
    """see `_feed`"""
    outbox: Connection
    lock: FileLock
    version: int
    """served when it was started, or published by it since"""
    method: str
    images: int = 0
    updates: int = 0
    dropped: int = 0
    published: int = 0
    refused: int = 0
    comparison: dict[str, Any] = field(default_factory=dict)
    candidate: Path | None = None
    """offered and not published: in shadow mode, or while the domain is pinned"""
    state: str = "starting"
    detail: str = ""


def online_methods() -> list[str]:
    """Methods that can adapt a domain online: those that own tensors and need nothing but images."""
    owning = [name for name in methods.available("online") if name != "source" and not methods.card(name).relabels]
    return [name for name in owning if not methods.get(name).needs_stats]


class Learners:
    """The learners of this process. `offer` is for the event loop, `tend` for one other thread.

    Args:
        most: learners at the same time.
        every: updates between two candidates.
    """

    def __init__(self, pool: Pool, model: Path, *, device: str, most: int, every: int) -> None:
        self.pool, self.model, self.device, self.most, self.every = pool, model, device, most, every
        self.folder = pool.folder / "online"
        self._running: dict[str, Running] = {}
        self._elsewhere: set[str] = set()
        self._lock = threading.Lock()  # around starting and stopping
        self._closed = False
        self._context = multiprocessing.get_context("spawn")

    # -- for everybody --------------------------------------------------------------------------------------

    @property
    def listening(self) -> bool:
        """Whether any domain learns here."""
        return bool(self._running)

    def offer(self, domain: str, picture: Pixels) -> None:
        """Give an image to the learner of its domain, if there is one and it has room."""
        learner = self._running.get(domain)
        if learner is None or learner.state == "failed":
            return
        if learner.inbox.qsize() < WAITING:
            learner.inbox.put(picture)
        else:
            learner.dropped += 1

    def switch(self, domain: str, mode: str, method: str, made_by: str) -> None:
        """Change the mode of a domain: off, shadow or on."""
        if mode != "off":
            if method not in online_methods():
                raise UsageError(f"{method[:60]!r} is not a method that can adapt a domain online.")
            others = [one for one in self.pool.index.domains() if one.online != "off" and one.name != domain]
            if len(others) >= self.most:
                raise Conflict(f"At most {self.most} domains may adapt online at the same time. Switch one off.")
        self.pool.set_online(domain, mode, method, made_by)
        with self._lock:  # one that has failed may try again
            if domain in self._running and (mode == "off" or self._running[domain].state == "failed"):
                self._end(domain)

    def status(self, domain: Domain) -> dict[str, Any]:
        """What is known of a domain's learner, by the names of the API."""
        found = self._running.get(domain.name)
        if found is None:
            idle = "elsewhere" if domain.name in self._elsewhere else "starting"
            return {"state": "stopped" if domain.online == "off" else idle}
        names = ("state", "images", "updates", "dropped", "published", "refused", "detail")
        return {name: getattr(found, name) for name in names} | {"comparison": found.comparison or None}

    # -- for the thread that tends them ---------------------------------------------------------------------

    def tend(self) -> None:
        """Start and stop learners as the index says, and publish what they offer."""
        with self._lock:
            if self._closed:  # this round was under way when the server stopped
                return
            for domain in self.pool.domains.values():
                self._tend(domain)

    def _tend(self, domain: Domain) -> None:
        learner = self._running.get(domain.name)
        if learner is None:
            if domain.online != "off":
                self._begin(domain)
            return
        # Somebody has activated another version: learning begins again from there.
        other = domain.active != learner.version or domain.method != learner.method
        if domain.online == "off" or (other and learner.state != "failed"):
            self._end(domain.name)
            return
        with suppress(EOFError):  # its process has ended
            while learner.outbox.poll():
                self._hear(domain, learner, learner.outbox.recv())
        if domain.online == "on" and learner.candidate is not None and not domain.pinned:
            self._publish(domain.name, learner)
        if not learner.process.is_alive() and learner.state != "failed":
            learner.state, learner.detail = "failed", f"The process ended with code {learner.process.exitcode}."

    def _begin(self, domain: Domain) -> None:
        """Start a learner, unless another server process has one for this domain."""
        place = self.folder / domain.name
        place.mkdir(parents=True, exist_ok=True)
        # Taken in one thread and released in another, which locks refuse by default.
        lock = FileLock(place / ".lock", thread_local=False)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            self._elsewhere.add(domain.name)
            return
        self._elsewhere.discard(domain.name)
        start = self.pool.file(domain.name, domain.active) if domain.active else None
        task = Task(self.model, start, domain.method, self.device, place, self.every)
        theirs, images = self._context.Pipe(duplex=False)
        outbox, told = self._context.Pipe(duplex=False)
        process = self._context.Process(target=run, args=(task, theirs, told), daemon=True)
        process.start()
        for end in (theirs, told):  # so that each side sees the end of the other
            end.close()
        inbox: SimpleQueue[Any] = SimpleQueue()
        threading.Thread(target=_feed, args=(inbox, images), name=f"learner of {domain.name}", daemon=True).start()
        if hasattr(os, "setpriority") and process.pid is not None:
            os.setpriority(os.PRIO_PROCESS, process.pid, NICE)  # predictions come first
        self._running[domain.name] = Running(process, inbox, outbox, lock, domain.active, domain.method)

    def _hear(self, domain: Domain, learner: Running, told: Told) -> None:
        learner.state = "failed" if told.kind == "failed" else "learning"
        if told.kind != "learning":  # which says nothing new
            learner.detail = told.detail
        if told.kind == "failed":
            return
        learner.images, learner.updates = told.images, told.updates
        if told.verdict is not None:
            learner.comparison = told.verdict
        if told.kind == "refused":
            learner.refused, learner.candidate = learner.refused + 1, None
        elif told.kind == "candidate":
            learner.candidate = told.file

    def _publish(self, domain: str, learner: Running) -> None:
        """Serve the candidate: the file on disk first, then the row, then the swap in memory."""
        assert learner.candidate is not None
        try:
            version = self.pool.add(domain, learner.candidate, BY, verdict=learner.comparison)
            self.pool.activate(domain, version.number, BY, automatic=True)
        except DeptError as error:
            learner.detail = str(error)
            return
        finally:
            learner.candidate = None
        learner.version, learner.published = version.number, learner.published + 1
        learner.inbox.put("published")

    def _end(self, domain: str) -> None:
        learner = self._running.pop(domain)
        learner.process.terminate()  # what it has published is safe, and nothing else of it is wanted
        learner.process.join()
        learner.inbox.put(None)
        learner.outbox.close()
        learner.lock.release()

    def close(self) -> None:
        """Stop all learners. What they have published stays."""
        with self._lock:
            self._closed = True
            for name in list(self._running):
                self._end(name)


def _feed(inbox: SimpleQueue[Any], learner: Connection) -> None:
    """Send what is put into a queue, until None: in a thread, because a learner reads only between two images."""
    with learner, suppress(BrokenPipeError):  # the learner has ended
        while (given := inbox.get()) is not None:
            learner.send(given)
