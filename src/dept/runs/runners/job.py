"""What a runner runs: jobs that can be repeated at any time, because their files tell whether they are done."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from dept.errors import DeptError, Interrupted


class Job(Protocol):
    """A piece of work that can be pickled. It writes its result to files that all processes see, and returns nothing.

    Running it again when it is done changes nothing. Running it while another process does waits for that one.
    """

    @property
    def key(self) -> str:
        """Hash of everything that the result depends on."""
        ...

    @property
    def title(self) -> str:
        """For people: what the job is."""
        ...

    def done(self) -> bool:
        """Whether the result is there, told by its files."""
        ...

    def run(self) -> None:
        """Do what is left to do."""
        ...


class Freight(Protocol):
    """Something large that all jobs read, such as a model. Ray carries it to every node once."""

    def pack(self) -> Any:
        """As plain arrays, in the process that starts the jobs."""
        ...

    def unpack(self, packed: Any) -> None:
        """Keep it for the jobs of this process."""
        ...


@dataclass(frozen=True)
class Outcome:
    """A job after its turn; `error` says why it has no result."""

    job: Job
    error: str = ""


def attempt(job: Job) -> str:
    """Run a job; returns the sentence of its failure, which concerns this job alone."""
    try:
        job.run()
    except Interrupted:
        raise  # the user's wish, or the cluster's: the job goes on where it was
    except DeptError as error:
        return str(error)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def lost(jobs: Sequence[Job], error: str) -> list[str]:
    """The errors of jobs whose worker died: none for those that were done before."""
    return ["" if job.done() else error for job in jobs]


def use_threads(count: int) -> None:
    """Let torch use so many cores: several jobs share the machine, and the same number gives the same bits."""
    import torch

    torch.set_num_threads(count)
