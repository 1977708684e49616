"""Sites as tasks of submitit, here without SLURM: one is pre-empted, queued again, and ends once, bit for bit."""

from __future__ import annotations

import os
import pickle
import signal
import threading
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from dept.runs.fleet import fleet
from dept.runs.runners.options import RunnerOptions
from dept.runs.runners.slurm import Task, outcomes, split
from dept.runs.site_job import read_record
from dept.runs.train import TrainRun
from fleets import FakeJob, adapter_of, when_begun
from support import same_bits, write_unlabelled

pytest.importorskip("submitit", reason="the extra [slurm] is not installed")


def test_a_pre_empted_task(source_run: TrainRun, tmp_path: Path) -> None:
    write_unlabelled(tmp_path / "sites/north", 6)
    settings: dict[str, Any] = {"method": "dept+", "max_iters": 60, "batch": 4, "device": "cpu"}
    fleet(source_run.file, tmp_path / "sites", out=tmp_path / "here", runner=RunnerOptions("here"), **settings)
    runs = tmp_path / "runs"
    taken = when_begun(runs / "north", lambda process: os.kill(process, signal.SIGUSR2))
    summary = fleet(source_run.file, tmp_path / "sites", out=runs, runner=RunnerOptions("slurm", jobs=1), **settings)
    taken.join()
    assert not summary.of("failed") and summary.rows[0].attempts == 2
    assert read_record(runs / "north")["finished"] == 1
    assert same_bits(adapter_of(runs / "north"), adapter_of(tmp_path / "here/north"))


def test_a_stop_saves_what_was_begun(
    source_run: TrainRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Ctrl-C reaches submitit's process too, which must neither complain nor end before its task has saved."""
    write_unlabelled(tmp_path / "sites/north", 6)
    asked = threading.Event()

    def interrupt(process: int) -> None:
        controller = int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
        os.kill(controller, signal.SIGINT)
        asked.set()

    monkeypatch.setattr("dept.runs.runners.slurm.stop_signal", lambda: nullcontext(asked.is_set))
    when_begun(tmp_path / "runs/north", interrupt)
    settings: dict[str, Any] = {"method": "dept+", "max_iters": 100_000, "batch": 4, "device": "cpu"}
    with pytest.raises(KeyboardInterrupt):
        fleet(source_run.file, tmp_path / "sites", out=tmp_path / "runs", runner=RunnerOptions("slurm"), **settings)
    assert (tmp_path / "runs/north/resume.safetensors").exists()
    assert not (tmp_path / "runs/north/.holder").exists()  # its process has ended by itself
    assert "Traceback" not in capfd.readouterr().err


def test_tasks() -> None:
    jobs = [FakeJob(str(number)) for number in range(5)]
    options = RunnerOptions("slurm", per_task=2, jobs=3)
    queued, at_once = (
        [[one.key for one in part] for part in split(jobs, options, local=here)] for here in (False, True)
    )
    assert queued == [["0", "1"], ["2", "3"], ["4"]] and at_once == [["0", "3"], ["1", "4"], ["2"]]
    task = Task(tuple(jobs), 1)
    again = pickle.loads(pickle.dumps(task.checkpoint().function))
    assert again == task


def test_a_task_that_ends_without_a_word(tmp_path: Path) -> None:
    class Killed:
        job_id, paths = "17", type("Paths", (), {"stderr": "17.err"})

        def result(self) -> Any:
            raise RuntimeError("OUT_OF_MEMORY\nmore")

    jobs = (FakeJob("a", finished=True), FakeJob("b"))
    assert [one.error for one in outcomes(Killed(), jobs)] == ["", "Its task 17 ended (OUT_OF_MEMORY). Log: 17.err"]
