"""Jobs on a Ray cluster: placement, restarts and the way of the weights to the nodes are Ray's.

Ray runs whatever it is sent, so a cluster belongs on a trusted network. Nothing but short texts comes back: results are
files on storage that all nodes share, which is checked before the first job.
"""

from __future__ import annotations

import os
import socket
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any

from dept._version import __version__
from dept.errors import DataError, UsageError, missing_extra
from dept.runs.folder import stop_signal
from dept.runs.runners.job import Freight, Job, Outcome, attempt, lost, use_threads
from dept.runs.runners.options import RunnerOptions, cores

LOOK = 0.5
"""seconds between two looks at whether the user wants to stop"""
PATIENCE = 5.0
"""seconds in which an address must answer"""
GRACE = 60.0
"""seconds that tasks have to save their state when the user stops"""
AHEAD = 2
"""tasks in flight for each that runs: none waits for work, and none waits for long"""


def run_on_ray(
    jobs: Iterable[Job], options: RunnerOptions, *, folder: Path, freight: Freight | None
) -> Iterator[Outcome]:
    """Run the jobs, a few per task. A task whose worker dies is started again by Ray, and skips what is done.

    Args:
        folder: where the jobs write.
        freight: what all jobs read; it is put into the object store once, from where every node fetches it once.
    """
    with connected(options) as ray:
        check_shared(folder, lambda token: on_every_node(ray, folder, token))
        packed = None if freight is None else ray.put(freight.pack())
        task = ray.remote(work).options(num_cpus=options.cpus, num_gpus=options.gpus, max_retries=options.retries)
        most = AHEAD * (options.jobs or slots(ray.cluster_resources(), options))
        queue = iter(jobs)
        pending: dict[Any, tuple[Job, ...]] = {}
        with stop_signal() as stopped:
            while True:
                while len(pending) < most and (part := tuple(islice(queue, options.per_task))):
                    pending[task.remote(part, freight, packed, options.cpus)] = part
                if not pending:
                    return
                for ready in ray.wait(list(pending), timeout=LOOK)[0]:
                    yield from outcomes(ray, ready, pending.pop(ready))
                if stopped():
                    stop(ray, list(pending))
                    raise KeyboardInterrupt


def work(jobs: Sequence[Job], freight: Freight | None, packed: Any, threads: int) -> list[str]:
    """A task: some jobs in turn. Returns the error of each, or nothing for one that has its result."""
    use_threads(threads)
    if freight is not None:
        freight.unpack(packed)
    return [attempt(job) for job in jobs]


def outcomes(ray: Any, ready: Any, jobs: Sequence[Job]) -> list[Outcome]:
    """What came of a task's jobs. If its worker died too often, those without a result have failed."""
    try:
        errors = ray.get(ready)
    except ray.exceptions.RayError as error:
        reason = str(error).strip().splitlines()[0]
        errors = lost(jobs, f"Its Ray worker died too often ({reason}).")
    return [Outcome(job, error) for job, error in zip(jobs, errors, strict=True)]


def stop(ray: Any, tasks: list[Any]) -> None:
    """Ask the tasks to save their state and end."""
    for one in tasks:
        ray.cancel(one)
    ray.wait(tasks, num_returns=len(tasks), timeout=GRACE)


def slots(resources: dict[str, float], options: RunnerOptions) -> int:
    """Tasks that fit the cluster at the same time."""
    fit = resources.get("CPU", 0) / options.cpus
    if options.gpus:
        fit = min(fit, resources.get("GPU", 0) / options.gpus)
    if fit < 1:
        raise UsageError(
            f"No task fits the cluster: each asks for {options.cpus} cores and {options.gpus:g} GPUs, and there are "
            f"{resources.get('CPU', 0):g} and {resources.get('GPU', 0):g}. Lower `cpus` or `gpus`."
        )
    return int(fit)


# ---- the cluster ----


@contextmanager
def connected(options: RunnerOptions) -> Iterator[Any]:
    """The module ray, connected to the cluster that is asked for, or to one that is started here and ended after."""
    # Ray would start the workers of a `uv run` by uv again, in an environment without dept. And it would phone home.
    os.environ.setdefault("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    check_ray(options)
    import ray

    if ray.is_initialized():  # by a program that uses dept
        yield ray
        return
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "error"}
    try:
        if options.address:
            ray.init(address=options.address, **quiet)
        else:
            # "local": not a cluster that happens to run here. No dashboard: it is a server that nobody asked for.
            count = options.jobs * options.cpus or cores()
            ray.init(address="local", num_cpus=count, include_dashboard=False, **quiet)
    except (Exception, SystemExit) as error:  # Ray raises plain exceptions, and ends the process after a minute
        where = f"the Ray cluster at {options.address!r}" if options.address else "a local Ray cluster"
        raise UsageError(f"There is no connection to {where}: {' '.join(str(error).split())}") from error
    try:
        yield ray
    finally:
        ray.shutdown()


def check_ray(options: RunnerOptions) -> None:
    """Refuse what cannot work, before anything is written."""
    if not find_spec("ray"):
        raise missing_extra("ray", "ray")
    if options.address not in ("", "auto"):
        check_answers(options.address)


def check_answers(address: str) -> None:
    """Refuse at once an address where nobody listens: Ray itself tries for more than a minute."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not (host and port.isdigit() and int(port) < 2**16):
        raise UsageError(f"`address` must be HOST:PORT, such as 10.0.0.5:6379, or auto; found {address!r}.")
    try:
        socket.create_connection((host, int(port)), timeout=PATIENCE).close()
    except OSError as error:
        raise UsageError(
            f"Nobody answers at {address} ({error.strerror or error}). Is the Ray cluster up? `ray start --head` "
            "starts one and prints its address."
        ) from error


# ---- shared storage ----


def check_shared(folder: Path, write: Callable[[str], Iterable[tuple[str, str]]]) -> None:
    """Refuse a folder that the workers do not share with this process, before hours of work go to another disk.

    Args:
        write: lets a worker of every node write a token; gives name and complaint of each.
    """
    token = uuid.uuid4().hex
    folder.mkdir(parents=True, exist_ok=True)
    ours = probe(folder, token, "driver")
    ours.write_text(token)
    try:
        for node, complaint in write(token):
            theirs = probe(folder, token, node)
            if not complaint and not seen(theirs, token):
                complaint = "what it writes there is not seen here"
            theirs.unlink(missing_ok=True)
            if complaint:
                raise DataError(
                    f"The node {node} does not share {folder.absolute()} with this machine: {complaint}. `out`, the "
                    "model and the images must be on storage that all nodes have under the same path."
                )
    finally:
        ours.unlink()


def on_every_node(ray: Any, folder: Path, token: str) -> list[tuple[str, str]]:
    """Run `leave_token` on every node of the cluster; name and complaint of each."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    nodes = [node for node in ray.nodes() if node["Alive"]]
    places = [NodeAffinitySchedulingStrategy(node["NodeID"], soft=False) for node in nodes]
    task = ray.remote(leave_token)
    names = [node["NodeManagerHostname"] for node in nodes]
    answers = [
        task.options(num_cpus=0, scheduling_strategy=place).remote(str(folder.absolute()), token, name, __version__)
        for place, name in zip(places, names, strict=True)
    ]
    return list(zip(names, ray.get(answers), strict=True))


def leave_token(folder: str, token: str, node: str, version: str) -> str:
    """On a node: look for this machine's token and write one; returns what is wrong, or nothing."""
    if version != __version__:
        return f"it has dept {__version__}, and here it is {version}"
    if not seen(probe(Path(folder), token, "driver"), token):
        return "what is written here is not seen there"
    try:
        probe(Path(folder), token, node).write_text(token)
    except OSError as error:
        return f"it cannot write there ({error.strerror})"
    return ""


def probe(folder: Path, token: str, who: str) -> Path:
    """The file that somebody writes to be seen."""
    return folder / f".shared-{token}-{who}"


def seen(file: Path, token: str) -> bool:
    """Whether a token is there. Listing the folder first makes network file systems look again."""
    list(file.parent.iterdir()) if file.parent.is_dir() else None
    return file.is_file() and file.read_text() == token
