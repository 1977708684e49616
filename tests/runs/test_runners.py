"""What all runners share, without a process or a cluster."""

from __future__ import annotations

from pathlib import Path

import pytest

from dept.errors import DataError, Interrupted, UsageError
from dept.runs.runners import run as running
from dept.runs.runners.job import Outcome, attempt, lost
from dept.runs.runners.local import died
from dept.runs.runners.options import RunnerOptions, cores
from dept.runs.runners.run import run_jobs
from fleets import FakeJob


def test_a_job_that_fails_does_not_stop_the_others(tmp_path: Path) -> None:
    jobs = [FakeJob("a", error=DataError("No images.")), FakeJob("b", error=KeyError("x")), FakeJob("c")]
    ended = list(run_jobs(jobs, RunnerOptions("here"), folder=tmp_path))
    assert [one.error for one in ended] == ["No images.", "KeyError: 'x'", ""]


def test_an_interruption_is_not_a_failure() -> None:
    with pytest.raises(Interrupted):
        attempt(FakeJob("a", error=Interrupted(3, Path("x"))))


def test_jobs_are_asked_for_as_they_are_needed(tmp_path: Path) -> None:
    asked = []

    def jobs():  # type: ignore[no-untyped-def]
        for name in "abc":
            asked.append(name)
            yield FakeJob(name)

    next(run_jobs(jobs(), RunnerOptions("here"), folder=tmp_path))
    assert asked == ["a"]


def test_files_that_nobody_sees_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker on another machine says that it is done, but the folder is not shared."""
    monkeypatch.setattr(running, "VISIBLE", 0.0)
    monkeypatch.setattr(running, "run_on_slurm", lambda jobs, *rest, **more: (Outcome(job) for job in jobs))
    (outcome,) = run_jobs([FakeJob("a")], RunnerOptions("slurm"), folder=tmp_path)
    assert "is not shared" in outcome.error


def test_no_jobs_start_no_cluster(tmp_path: Path) -> None:
    assert list(run_jobs([], RunnerOptions("ray", address="nowhere:1"), folder=tmp_path)) == []


def test_jobs_of_a_worker_that_died() -> None:
    assert lost([FakeJob("a", finished=True), FakeJob("b")], "It died.") == ["", "It died."]
    assert "died 2 times (last: signal 9)" in died(2, -9) and "code 1" in died(1, 1)


def test_processes() -> None:
    assert RunnerOptions().processes == cores() and RunnerOptions(cpus=10_000).processes == 1
    assert RunnerOptions(jobs=7, cpus=2).processes == 7


def test_options_that_contradict_each_other() -> None:
    with pytest.raises(UsageError, match="`per_task` must be at least 1"):
        RunnerOptions(per_task=0)
    with pytest.raises(UsageError, match="`slurm` is for"):
        RunnerOptions(slurm='{"slurm_partition": "gpu"}')
