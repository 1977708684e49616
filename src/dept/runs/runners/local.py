"""Jobs in processes of this machine. Each process takes one job after the other, and keeps what it has loaded."""

from __future__ import annotations

import os
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from typing import Any, cast

from dept.errors import Interrupted
from dept.runs.folder import stop_signal
from dept.runs.runners.job import Job, Outcome, attempt, use_threads

LOOK = 0.5
"""seconds between two looks at whether the user wants to stop"""


@dataclass
class Worker:
    """A process that works on what it is sent."""

    process: Any
    pipe: Connection
    job: Job | None = None

    @classmethod
    def start(cls, threads: int) -> Worker:
        """A new process. Not a fork: torch's threads do not survive one."""
        context = get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(target=serve, args=(theirs, threads))
        process.start()
        theirs.close()
        return cls(process, ours)

    def send(self, job: Job) -> None:
        """Give it work."""
        self.job = job
        self.pipe.send(job)

    def stop(self) -> None:
        """Let it end: at once if it is idle, else after it has saved its state."""
        if self.job is not None:
            self.process.terminate()
        self.pipe.close()
        self.process.join()


def serve(pipe: Connection, threads: int) -> None:
    """What a worker does: jobs, until nobody sends any."""
    if hasattr(os, "setsid"):
        os.setsid()  # Ctrl-C is for the process that sends the jobs. It tells this one.
    use_threads(threads)
    while True:
        try:
            job: Job = pipe.recv()
        except EOFError:  # the sender has no more work, or was killed
            return
        try:
            error = attempt(job)
        except Interrupted:
            return
        try:
            pipe.send(error)
        except BrokenPipeError:  # killed meanwhile; the job's files tell that it is done
            return


def run_local(jobs: Iterable[Job], *, processes: int, threads: int, retries: int) -> Iterator[Outcome]:
    """Run the jobs, so many at a time. One whose process dies is started again, at most `retries` times."""
    queue, again, deaths = iter(jobs), deque[Job](), Counter[str]()
    idle: list[Worker] = []
    busy: dict[Connection, Worker] = {}
    try:
        with stop_signal() as stopped:
            while True:
                while len(busy) < processes and (job := again.popleft() if again else next(queue, None)):
                    worker = idle.pop() if idle else Worker.start(threads)
                    busy[worker.pipe] = worker
                    worker.send(job)
                if not busy:
                    return
                for pipe in wait(list(busy), LOOK):
                    worker = busy.pop(cast(Connection, pipe))
                    job, worker.job = worker.job, None
                    assert job is not None
                    try:
                        error = worker.pipe.recv()
                        idle.append(worker)
                    except (EOFError, ConnectionResetError):
                        worker.stop()
                        deaths[job.key] += 1
                        if deaths[job.key] <= retries:
                            again.append(job)
                            continue
                        error = died(deaths[job.key], worker.process.exitcode)
                    yield Outcome(job, error)
                if stopped():
                    raise KeyboardInterrupt
    finally:
        for worker in (*busy.values(), *idle):
            worker.stop()


def died(times: int, code: int | None) -> str:
    """The sentence for a job whose process ended without a word."""
    how = f"signal {-code}" if code is not None and code < 0 else f"code {code}"
    return (
        f"Its process died {times} times (last: {how}). It may need more memory than there is: use fewer `jobs`, or a "
        "smaller `batch`."
    )
