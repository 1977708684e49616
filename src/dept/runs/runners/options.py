"""What is asked of a runner."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from typing import Any, Literal

from dept.errors import UsageError


@dataclass(frozen=True)
class RunnerOptions:
    """Where jobs run, and with what."""

    runner: Literal["here", "local", "ray", "slurm"] = "local"
    """here: one after the other; local: processes; ray: a Ray cluster; slurm: a job array (without srun: processes)"""
    jobs: int = 0
    """how many at once; 0: one per core (ray: what fits the cluster, slurm: no limit)"""
    per_task: int = 4
    """small jobs that go to a worker of Ray or SLURM together"""
    cpus: int = 1
    """cores, and threads, of each job"""
    gpus: float = 0.0
    """GPUs of each job (ray, slurm); ray also takes a share such as 0.25"""
    retries: int = 3
    """how often a job is started again after its process has died"""
    address: str = ""
    """Ray cluster: HOST:PORT, or auto for the one of this machine; by default a local one is started. Ray runs whatever
    it is sent, so a cluster belongs on a trusted network"""
    slurm: str = "{}"
    """more parameters for submitit as JSON, e.g. '{"slurm_partition": "gpu", "timeout_min": 240}'"""

    def __post_init__(self) -> None:
        for name, least in (("jobs", 0), ("per_task", 1), ("cpus", 1), ("gpus", 0), ("retries", 0)):
            if getattr(self, name) < least:
                raise UsageError(f"`{name}` must be at least {least}, found {getattr(self, name)}.")
        if self.address and self.runner != "ray":
            raise UsageError("`address` is for `runner=ray`.")
        if self.slurm_parameters and self.runner != "slurm":
            raise UsageError("`slurm` is for `runner=slurm`.")
        if self.gpus and self.runner in ("here", "local"):
            raise UsageError(
                "`gpus` is for `runner=ray` and `runner=slurm`. To share the GPUs of one machine, use `runner=ray`."
            )

    @property
    def processes(self) -> int:
        """Jobs at once on this machine."""
        return self.jobs or max(1, cores() // self.cpus)

    @property
    def slurm_parameters(self) -> dict[str, Any]:
        """More keyword arguments for submitit."""
        try:
            return {**json.loads(self.slurm)}
        except (ValueError, TypeError) as error:
            example = '{"slurm_partition": "gpu"}'
            raise UsageError(f"`slurm` must be a JSON object such as '{example}', found {self.slurm!r}.") from error


@dataclass(frozen=True)
class CellRunner(RunnerOptions):
    """Where the cells of a benchmark run. By default in this process, with all its threads."""

    runner: Literal["here", "local", "ray", "slurm"] = "here"
    """here: one after the other; local: processes; ray: a Ray cluster; slurm: a job array (without srun: processes)"""
    per_task: int = 1
    """jobs that go to a worker of Ray or SLURM together"""


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
