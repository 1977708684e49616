"""Sites on a Ray cluster of two workers: one is killed, and the driver is; every site still ends once, bit for bit."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dept._version import __version__
from dept.errors import DataError, UsageError
from dept.runs.fleet import fleet
from dept.runs.runners.options import RunnerOptions
from dept.runs.runners.ray import check_answers, check_shared, leave_token, on_every_node, probe, slots
from dept.runs.site_job import read_record
from dept.runs.train import TrainRun
from doc_world import build, open_world
from fleets import adapter_of, when_begun
from support import same_bits, write_unlabelled

ray = pytest.importorskip("ray", reason="the extra [ray] is not installed")
NAMES = ("east", "north", "south")
ON_RAY = RunnerOptions("ray", per_task=1)
SETTINGS: dict[str, Any] = {"method": "dept+", "max_iters": 60, "batch": 4, "device": "cpu"}


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """Address of a cluster with room for two tasks, ended with all its processes."""
    # Workers must be able to import what tests put in the place of large models.
    tests = str(Path(__file__).parents[1])
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [tests, os.environ.get("PYTHONPATH")]))
    os.environ["RAY_ENABLE_UV_RUN_RUNTIME_ENV"] = os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    for attempt in range(3):
        try:
            ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="error")
            break
        except Exception:  # Ray gives itself 30 seconds, which a busy machine exceeds
            ray.shutdown()
            if attempt == 2:
                raise
    yield ray.get_runtime_context().gcs_address
    ray.shutdown()


@pytest.fixture(scope="module")
def sites(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("sites")
    for number, name in enumerate(NAMES):
        write_unlabelled(root / name, 6, seed=number)
    return root


@pytest.fixture(scope="module")
def single(source_run: TrainRun, sites: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same fleet in this process, which has one thread as well."""
    out = tmp_path_factory.mktemp("single") / "runs"
    fleet(source_run.file, sites, out=out, runner=RunnerOptions("here"), **SETTINGS)
    return out


def all_ended_once(runs: Path, single: Path) -> None:
    for name in NAMES:
        assert read_record(runs / name)["finished"] == 1
        assert same_bits(adapter_of(runs / name), adapter_of(single / name))


def test_a_killed_worker(cluster: str, source_run: TrainRun, sites: Path, single: Path, tmp_path: Path) -> None:
    killer = when_begun(tmp_path / "runs/north", lambda process: os.kill(process, signal.SIGKILL))
    summary = fleet(source_run.file, sites, out=tmp_path / "runs", runner=ON_RAY, **SETTINGS)
    killer.join()
    assert not summary.of("failed") and {row.site: row.attempts for row in summary.rows}["north"] == 2
    all_ended_once(tmp_path / "runs", single)
    assert not list((tmp_path / "runs").glob(".shared-*"))


def test_a_killed_driver(cluster: str, source_run: TrainRun, sites: Path, single: Path, tmp_path: Path) -> None:
    argv = ["fleet", source_run.file, sites, "--out", tmp_path / "runs", "--runner", "ray", "--address", cluster]
    argv += ["--per-task", "1", "--no-report"]
    argv += [word for name, value in SETTINGS.items() for word in (f"--{name.replace('_', '-')}", value)]
    driver = subprocess.Popen([sys.executable, "-m", "dept", *map(str, argv)], stderr=subprocess.PIPE)
    when_begun(tmp_path / "runs/north", lambda process: driver.kill()).join()
    driver.communicate(timeout=60)
    assert driver.returncode == -signal.SIGKILL
    summary = fleet(source_run.file, sites, out=tmp_path / "runs", runner=ON_RAY, **SETTINGS)
    assert not summary.of("failed")
    all_ended_once(tmp_path / "runs", single)


def test_the_commands_of_fleet_md(cluster: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build(tmp_path / "built")
    world = open_world("docs/fleet.md", tmp_path / "built", tmp_path / "world", monkeypatch)
    world.values["CLUSTER"] = cluster
    world.run_page("docs/fleet.md")
    assert {row.name for row in (world.folder / "shared/fleet").iterdir()} >= {"north", "south", "west", "report.html"}
    (table,) = world.folder.glob("benchmarks/results/pacs-mini")
    assert len(list(table.iterdir())) == 4  # two rows, and the source models that they start from


def test_every_node_shares_the_folder(cluster: str, tmp_path: Path) -> None:
    new = tmp_path / "new" / "results"
    check_shared(new, lambda token: on_every_node(ray, new, token))
    assert list(new.iterdir()) == []


def test_a_folder_that_is_not_shared(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"  # the same path on two machines
    for folder in (here, there):
        folder.mkdir()
    with pytest.raises(DataError, match=r"node7 does not share .* what is written here is not seen there"):
        check_shared(here, lambda token: [("node7", leave_token(str(there), token, "node7", __version__))])

    def elsewhere(token: str) -> list[tuple[str, str]]:
        probe(there, token, "node7").write_text(token)
        return [("node7", "")]

    with pytest.raises(DataError, match="what it writes there is not seen here"):
        check_shared(here, elsewhere)
    with pytest.raises(DataError, match=r"it has dept .* and here it is 0.0"):
        check_shared(here, lambda token: [("node7", leave_token(str(here), token, "node7", "0.0"))])
    assert list(here.iterdir()) == []


def test_addresses() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        check_answers(f"127.0.0.1:{port}")
    with pytest.raises(UsageError, match=f"Nobody answers at 127.0.0.1:{port}"):
        check_answers(f"127.0.0.1:{port}")
    for wrong in ("cluster", "host:port", ":6379", "host:99999"):
        with pytest.raises(UsageError, match="must be HOST:PORT"):
            check_answers(wrong)


def test_tasks_that_fit_a_cluster() -> None:
    assert slots({"CPU": 8.0, "GPU": 2.0}, RunnerOptions("ray", cpus=2)) == 4
    assert slots({"CPU": 8.0, "GPU": 2.0}, RunnerOptions("ray", gpus=0.5)) == 4
    with pytest.raises(UsageError, match="No task fits the cluster: each asks for 1 cores and 1 GPUs"):
        slots({"CPU": 8.0}, RunnerOptions("ray", gpus=1))
