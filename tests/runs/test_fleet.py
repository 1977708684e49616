"""A fleet: every site as a run of its own would be, each once, and one that fails alone."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dept.cli.main import main
from dept.errors import DataError, DeptError, Interrupted, UsageError
from dept.models.files import ModelFile
from dept.runs import site_job
from dept.runs.adapt import adapt
from dept.runs.fleet import fleet
from dept.runs.runners.options import RunnerOptions
from dept.runs.site_job import Weights, loaded, read_record
from dept.runs.sites import Site
from dept.runs.summary import Summary, read_fleet
from dept.runs.train import TrainRun
from fleets import adapter_of, when_begun
from support import StopAfter, same_bits, write_unlabelled

HERE = RunnerOptions("here")
QUICK: dict[str, Any] = {"method": "dept+", "max_iters": 2, "batch": 4, "device": "cpu"}


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    yield
    site_job._LOADED.clear()


@pytest.fixture(scope="module")
def sites(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three sites of few images, of which one is broken."""
    root = tmp_path_factory.mktemp("sites")
    for number, name in enumerate(("north", "south")):
        write_unlabelled(root / name, 6, seed=number)
    (root / "zero").mkdir()
    (root / "zero" / "broken.png").write_bytes(b"not an image")
    return root


def run(model: Path, sites: Any, out: Path, **more: Any) -> tuple[Summary, list[dict[str, Any]]]:
    events: list[dict[str, Any]] = []
    return fleet(model, sites, out=out, **{"runner": HERE, "listener": events.append} | QUICK | more), events


def test_sites_end_as_single_runs_and_a_broken_one_fails_alone(
    source_run: TrainRun, sites: Path, tmp_path: Path
) -> None:
    summary, events = run(source_run.file, sites, tmp_path / "runs")
    for name in ("north", "south"):
        single = adapt(source_run.file, sites / name, out=tmp_path / name, **QUICK)
        assert same_bits(adapter_of(tmp_path / "runs" / name), adapter_of(single.folder))
        made = json.loads((tmp_path / "runs" / name / "result.json").read_text())
        assert made["protocol"] == json.loads(json.dumps(single.result["protocol"]))
    assert [row.site for row in summary.rows] == ["north", "south", "zero"]
    (failed,) = summary.of("failed")
    assert failed.site == "zero" and "can be decoded" in failed.words and "zero failed: None of" in str(summary)
    assert {event["site"]: bool(event["error"]) for event in events} == {"north": False, "south": False, "zero": True}


def test_finished_sites_are_skipped_and_changed_ones_adapted_again(source_run: TrainRun, tmp_path: Path) -> None:
    for number, name in enumerate("ab"):
        write_unlabelled(tmp_path / "sites" / name, 4, seed=number)
    run(source_run.file, tmp_path / "sites", tmp_path / "runs")
    first = {name: (tmp_path / "runs" / name / "job.json").read_text() for name in "ab"}
    _, events = run(source_run.file, tmp_path / "sites", tmp_path / "runs")
    assert all(event["stored"] for event in events)
    write_unlabelled(tmp_path / "sites" / "b" / "more", 2, seed=9)
    summary, events = run(source_run.file, tmp_path / "sites", tmp_path / "runs")
    assert [event["stored"] for event in events] == [True, False]
    assert (tmp_path / "runs" / "a" / "job.json").read_text() == first["a"]
    assert [row.images for row in summary.rows] == [4, 6]
    assert (tmp_path / "runs" / "b" / "adapter.1.safetensors").exists()  # what was replaced can be restored


def test_an_interrupted_site_is_resumed(
    source_run: TrainRun, sites: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    only = [Site("north", sites / "north")]
    longer = {"max_iters": 4}
    run(source_run.file, only, tmp_path / "whole", **longer)
    with monkeypatch.context() as patched:
        patched.setattr("dept.runs.folder.stop_signal", StopAfter(2))
        with pytest.raises(Interrupted):
            run(source_run.file, only, tmp_path / "runs", **longer)
    assert [row.status for row in read_fleet(tmp_path / "runs").rows] == ["open"]
    run(source_run.file, only, tmp_path / "runs", **longer)
    folder = tmp_path / "runs" / "north"
    steps = [json.loads(line)["event"] for line in (folder / "events.jsonl").read_text().splitlines()]
    assert steps.count("start") == 1 and steps.count("step") == 4
    assert read_record(folder)["attempts"] == 2 and read_record(folder)["finished"] == 1
    assert same_bits(adapter_of(folder), adapter_of(tmp_path / "whole" / "north"))


def test_what_follows_a_run_is_made_up_for(source_run: TrainRun, sites: Path, tmp_path: Path) -> None:
    """A worker that dies between adapter and report: the adaptation is not made again."""

    def fails(folder: Path, model: ModelFile) -> None:
        raise DataError("No ink.")

    def follows(folder: Path, model: ModelFile) -> None:
        assert model.path == source_run.file
        (folder / "page").write_text("done")

    only = [Site("north", sites / "north")]
    summary, _ = run(source_run.file, only, tmp_path / "runs", then=fails)
    assert summary.rows[0].status == "failed" and summary.rows[0].words == "No ink."
    written = (tmp_path / "runs/north/result.json").stat().st_mtime_ns
    summary, _ = run(source_run.file, only, tmp_path / "runs", then=follows)
    assert summary.rows[0].status != "failed" and (tmp_path / "runs/north/page").exists()
    assert (tmp_path / "runs/north/result.json").stat().st_mtime_ns == written


def test_other_settings_need_to_be_meant(source_run: TrainRun, sites: Path, tmp_path: Path) -> None:
    only = [Site("north", sites / "north")]
    run(source_run.file, only, tmp_path / "runs")
    with pytest.raises(UsageError, match=r"another config.*`overwrite`"):
        run(source_run.file, only, tmp_path / "runs", max_iters=3)
    _, events = run(source_run.file, only, tmp_path / "runs", max_iters=3, overwrite=True)
    assert events[0]["stored"] is False
    assert json.loads((tmp_path / "runs/north/result.json").read_text())["protocol"]["config"]["max_iters"] == 3


def test_a_run_that_no_fleet_made_is_left_alone(source_run: TrainRun, sites: Path, tmp_path: Path) -> None:
    adapt(source_run.file, sites / "north", out=tmp_path / "runs" / "north", **QUICK)
    for _ in range(2):
        summary, _ = run(source_run.file, [Site("north", sites / "north")], tmp_path / "runs")
        assert "already holds a run" in summary.rows[0].words
    summary, _ = run(source_run.file, [Site("north", sites / "north")], tmp_path / "runs", overwrite=True)
    assert summary.rows[0].status != "failed"


def test_a_site_may_have_a_method_and_a_prior_of_its_own(source_run: TrainRun, sites: Path, tmp_path: Path) -> None:
    own = [
        Site("a", sites / "north", "tent"),
        Site("b", sites / "north", "auto", "uniform"),
        Site("c", sites / "north"),
    ]
    summary, _ = run(source_run.file, own, tmp_path / "runs")
    configs = [
        json.loads((tmp_path / "runs" / name / "result.json").read_text())["protocol"]["config"] for name in "abc"
    ]
    assert summary.rows[0].method == "tent" and summary.rows[2].method == "dept+"
    assert [config["batch"] for config in configs] == [4, 4, 4]  # as far as a method has the fleet's settings
    auto = json.loads((tmp_path / "runs/b/result.json").read_text())["auto"]
    assert auto["prior"] == "uniform" and auto["declared"] is True


@pytest.mark.parametrize(
    ("site", "message"),
    [
        (Site("x", Path("i"), "nope"), "'x'.*nope"),
        (Site("x", Path("i"), "tent", "missing.json"), "'x'.*missing.json"),
        (Site("x", Path("i"), "auto", "missing.json"), "'x'.*missing.json"),
    ],
)
def test_settings_that_no_site_can_have_are_refused_before_anything_is_written(
    site: Site, message: str, source_run: TrainRun, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=message):
        run(source_run.file, [site], tmp_path / "runs")
    assert not (tmp_path / "runs").exists()


def test_places_that_are_refused(source_run: TrainRun, sites: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="would become a site"):
        run(source_run.file, sites, sites / "runs")
    with pytest.raises(UsageError, match="single run"):
        run(source_run.file, sites, source_run.file.parent)
    with pytest.raises(DataError, match="does not exist"):
        run(tmp_path / "no.safetensors", sites, tmp_path / "runs")
    assert not (tmp_path / "runs").exists() and not (sites / "runs").exists()


def test_a_site_whose_images_are_gone_fails_until_they_are_back(source_run: TrainRun, tmp_path: Path) -> None:
    images = write_unlabelled(tmp_path / "images", 4)
    only = [Site("x", images)]
    run(source_run.file, only, tmp_path / "runs")
    images.rename(tmp_path / "away")
    summary, _ = run(source_run.file, only, tmp_path / "runs")
    assert "does not exist" in summary.of("failed")[0].words
    (tmp_path / "away").rename(images)
    summary, events = run(source_run.file, only, tmp_path / "runs")
    assert not summary.of("failed") and events[0]["stored"]


def test_a_fleet_that_cannot_start_leaves_no_trace(
    source_run: TrainRun, sites: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(jobs: Iterator[Any], *args: Any, **more: Any) -> Any:
        next(jobs)  # for which the sites before it were listed, and one has no images
        raise DataError("The folder is not shared.")

    monkeypatch.setattr("dept.runs.fleet.run_jobs", refuses)
    listed = [Site("empty", tmp_path / "nowhere"), Site("north", sites / "north")]
    with pytest.raises(DeptError, match="not shared"):
        run(source_run.file, listed, tmp_path / "new")
    (tmp_path / "mine").mkdir()
    with pytest.raises(DeptError, match="not shared"):
        run(source_run.file, listed, tmp_path / "mine")
    assert not (tmp_path / "new").exists()
    assert [file.name for file in (tmp_path / "mine").iterdir() if file.name != ".lock"] == []


def test_weights_from_elsewhere_are_those_of_the_file(source_run: TrainRun) -> None:
    """What Ray brings to a node, whose arrays nobody can write to."""
    file = ModelFile(source_run.file)
    weights = Weights(source_run.file, file.identity, "cpu")
    arrays, meta = weights.pack()
    for array in arrays.values():
        array.flags.writeable = False
    weights.unpack((arrays, meta))
    kept = loaded(Path("not read"), file.identity, "cpu")
    assert same_bits(dict(kept.borrow().state_dict()), dict(file.borrow().state_dict()))
    site_job._LOADED.clear()
    with pytest.raises(DataError, match="has changed since"):
        loaded(source_run.file, "another", "cpu")


# ---- processes ----


def test_local_processes_one_of_them_killed(source_run: TrainRun, sites: Path, tmp_path: Path) -> None:
    """Every site ends once, with the bits of a run in this process."""
    longer = {"max_iters": 60}
    run(source_run.file, sites, tmp_path / "here", **longer)
    runs = tmp_path / "runs"
    killer = when_begun(runs / "south", lambda process: os.kill(process, signal.SIGKILL))
    summary, events = run(source_run.file, sites, runs, runner=RunnerOptions(jobs=2), **longer)
    killer.join()
    assert {event["site"] for event in events} == {"north", "south", "zero"}
    assert [row.site for row in summary.of("failed")] == ["zero"]
    for name, attempts in (("north", 1), ("south", 2)):
        assert same_bits(adapter_of(runs / name), adapter_of(tmp_path / "here" / name))
        assert read_record(runs / name)["attempts"] == attempts and read_record(runs / name)["finished"] == 1


def test_the_command_is_stopped_and_goes_on(source_run: TrainRun, sites: Path, tmp_path: Path, capsys: Any) -> None:
    """SIGTERM: the worker saves, the command says how to continue, and the same command does."""
    argv = ["fleet", str(source_run.file), str(sites), "--out", str(tmp_path / "runs"), "--method", "dept+"]
    argv += ["--batch", "4", "--device", "cpu", "--no-report", "--jobs", "1", "--max-iters"]
    driver = subprocess.Popen([sys.executable, "-m", "dept", *argv, "2000"], stderr=subprocess.PIPE, text=True)
    when_begun(tmp_path / "runs/north", lambda process: driver.terminate()).join()
    assert "To continue:\n  dept fleet" in driver.communicate(timeout=120)[1] and driver.returncode == 130
    assert (tmp_path / "runs/north/resume.safetensors").exists()
    assert main([*argv, "3", "--runner", "here"]) == 2  # other settings
    assert "--overwrite to adapt" in capsys.readouterr().err
    assert main([*argv, "3", "--runner", "here", "--overwrite"]) == 3
    printed = capsys.readouterr()
    assert "[3/3] zero: FAILED." in printed.err and "3 sites" in printed.out


def test_bad_runners(source_run: TrainRun, sites: Path, tmp_path: Path, capsys: Any) -> None:
    argv = ["fleet", str(source_run.file), str(sites), "--out", str(tmp_path / "runs")]
    for more, message in (
        (["--runner", "ray", "--address", "nonsense"], "--address must be HOST:PORT"),
        (["--runner", "ray", "--address", "127.0.0.1:9"], "Nobody answers at 127.0.0.1:9"),
        (["--runner", "slurm", "--slurm", "[1"], "--slurm must be a JSON object"),
        (["--runner", "slurm", "--slurm", '{"nonsense": 1}'], "submitit does not take"),
        (["--address", "auto"], "--address is for --runner ray"),
        (["--gpus", "1"], "--gpus is for"),
        (["--jobs", "-1"], "--jobs must be at least 0"),
    ):
        assert main(argv + more) == 2, more
        assert message in capsys.readouterr().err
    (tmp_path / "sites.csv").write_text("site,images,method\n")
    assert main(["fleet", str(source_run.file), str(tmp_path / "sites.csv"), "--out", str(tmp_path / "runs")]) == 2
    said = capsys.readouterr().err
    assert "lacks the column prior" in said and "The fields method and prior of a line may be empty." in said
    assert not (tmp_path / "runs").exists()
