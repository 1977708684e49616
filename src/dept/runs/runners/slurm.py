"""Jobs as a SLURM job array, through submitit. On a machine without srun, the same in processes of that machine.

A task that is pre-empted or runs out of time is queued again by submitit (`Task.checkpoint`). It then skips the jobs
that are done and resumes the one it was at from the state on disk, which is at most about a minute old.
"""

from __future__ import annotations

import math
import os
import signal
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from dept.errors import UsageError, missing_extra
from dept.runs.folder import stop_signal
from dept.runs.runners.job import Job, Outcome, attempt, use_threads
from dept.runs.runners.options import RunnerOptions

LOGS = ".slurm"
"""submitit's scripts, pickles and logs, below the folder of the results"""
LOOK, LOOK_LOCAL = 10.0, 0.5
"""seconds between two looks at the tasks"""
GRACE = 60.0
"""seconds that tasks of this machine have to save their state when the user stops"""
MINUTES = 240
"""time limit of a task, after which it is queued again; submitit's own is 5 minutes"""


@dataclass(frozen=True)
class Task:
    """Some jobs in turn. submitit pickles it, calls it on a node, and asks it for what to queue again."""

    jobs: tuple[Job, ...]
    threads: int

    def __call__(self) -> list[str]:
        """Run the jobs; the error of each, or nothing for one that has its result."""
        use_threads(self.threads)
        return [attempt(job) for job in self.jobs]

    def checkpoint(self) -> Any:
        """On pre-emption: the same task again. What is done is on disk."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)


def run_on_slurm(jobs: Iterable[Job], options: RunnerOptions, *, folder: Path) -> Iterator[Outcome]:
    """Submit an array of tasks, a few jobs each, and wait for them.

    Args:
        folder: where the jobs write, on storage that all nodes share.
    """
    executor = make_executor(options, folder / LOGS)
    local = executor.cluster == "local"
    tasks = [Task(part, options.cpus) for part in split(list(jobs), options, local=local)]
    with ignored_by_children(), executor.batch():  # one array
        submitted = [executor.submit(task) for task in tasks]
    pending = dict(zip(submitted, tasks, strict=True))
    with stop_signal() as stopped:
        while pending:
            for one in [one for one in pending if one.done()]:
                yield from outcomes(one, pending.pop(one).jobs)
            if stopped():
                stop(list(pending), local=local)
                raise KeyboardInterrupt
            time.sleep(LOOK_LOCAL if local else LOOK)


@contextmanager
def ignored_by_children() -> Iterator[None]:
    """Processes that are started inside ignore Ctrl-C, which a terminal sends to all: `stop` ends them."""
    if threading.current_thread() is not threading.main_thread():  # which alone can say so
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def stop(tasks: Sequence[Any], *, local: bool) -> None:
    """Ask the tasks to save their state and end. SLURM does it by itself when they are cancelled."""
    until = time.monotonic() + (GRACE if local else 0)
    while (running := [one for one in tasks if not one.done()]) and time.monotonic() < until:
        for one in running:
            # Its number is that of a process, which passes the signal on. Again and again, because a task that has not
            # begun to adapt does not listen, and one that has does not mind.
            os.kill(int(one.job_id), signal.SIGTERM)
        time.sleep(LOOK_LOCAL)
    for one in running:
        one.cancel()


def make_executor(options: RunnerOptions, logs: Path) -> Any:
    """submitit's executor: SLURM's if there is srun, else processes of this machine."""
    if not find_spec("submitit"):
        raise missing_extra("submitit", "slurm")
    import submitit

    executor = submitit.AutoExecutor(folder=logs)
    own = {"name": "dept", "timeout_min": MINUTES, "cpus_per_task": options.cpus}
    if options.gpus:
        own["gpus_per_node"] = math.ceil(options.gpus)
    if options.jobs:
        own["slurm_array_parallelism"] = options.jobs
    try:
        executor.update_parameters(**own | options.slurm_parameters)
    except Exception as error:  # submitit asserts, and raises whatever its parts raise
        raise UsageError(f"submitit does not take the parameters in `slurm`: {' '.join(str(error).split())}") from error
    return executor


def split(jobs: Sequence[Job], options: RunnerOptions, *, local: bool) -> list[tuple[Job, ...]]:
    """The jobs of every task. Without SLURM nobody queues tasks, so there are only as many as may run at once."""
    if not local:
        return [tuple(jobs[at : at + options.per_task]) for at in range(0, len(jobs), options.per_task)]
    count = min(options.processes, len(jobs))
    return [tuple(jobs[first::count]) for first in range(count)]


def outcomes(task: Any, jobs: Sequence[Job]) -> list[Outcome]:
    """What came of a task's jobs. If it ended otherwise than by itself, those without a result have failed."""
    try:
        errors = task.result()
    except Exception as error:  # whatever ended the task, unpickled
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        errors = [
            "" if job.done() else f"Its task {task.job_id} ended ({reason}). Log: {task.paths.stderr}" for job in jobs
        ]
    return [Outcome(job, error) for job, error in zip(jobs, errors, strict=True)]
