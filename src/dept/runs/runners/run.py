"""Run jobs with the runner that is asked for."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory

from dept.runs.runners.job import Freight, Job, Outcome, attempt
from dept.runs.runners.local import run_local
from dept.runs.runners.options import RunnerOptions
from dept.runs.runners.ray import check_ray, run_on_ray
from dept.runs.runners.slurm import make_executor, run_on_slurm

VISIBLE = 10.0
"""seconds after which what a node has written must be seen: network file systems remember old listings for a while"""


def run_jobs(
    jobs: Iterable[Job], options: RunnerOptions, *, folder: Path, freight: Freight | None = None
) -> Iterator[Outcome]:
    """Run independent jobs; gives the outcome of each, in the order in which they end.

    Jobs are asked for as they are needed (by SLURM all at once). One that fails does not stop the others.

    Args:
        folder: where the jobs write. With Ray and SLURM, on storage that all nodes share.
        freight: something large that all jobs read. Only Ray carries it, otherwise a process reads it from its file.
    """
    queue = iter(jobs)
    first = next(queue, None)
    if first is None:  # nothing to do is no reason to start a cluster
        return
    for outcome in _started(chain([first], queue), options, folder, freight):
        if outcome.error or _visible(outcome.job):
            yield outcome
        else:
            lost = f"A worker says that it is done, but its files are not in {folder} here: the folder is not shared."
            yield replace(outcome, error=lost)


def check_runner(options: RunnerOptions) -> None:
    """Refuse, before anything is written, a runner that cannot work: no package, no answer, settings not taken."""
    if options.runner == "ray":
        check_ray(options)
    elif options.runner == "slurm":
        with TemporaryDirectory() as folder:
            make_executor(options, Path(folder))


def _started(jobs: Iterable[Job], options: RunnerOptions, folder: Path, freight: Freight | None) -> Iterator[Outcome]:
    if options.runner == "here":
        return (Outcome(job, attempt(job)) for job in jobs)
    if options.runner == "ray":
        return run_on_ray(jobs, options, folder=folder, freight=freight)
    if options.runner == "slurm":
        return run_on_slurm(jobs, options, folder=folder)
    return run_local(jobs, processes=options.processes, threads=options.cpus, retries=options.retries)


def _visible(job: Job) -> bool:
    until = time.monotonic() + VISIBLE
    while not job.done():
        if time.monotonic() > until:
            return False
        time.sleep(0.5)
    return True
