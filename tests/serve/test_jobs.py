"""Adaptation beside the server: upload or folder, progress, verdict, labels, cancel, and what is left by a stop."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from filelock import FileLock
from serve_support import png, service, until, write_adapter

from dept.io import write_json
from dept.runs.train import TrainRun
from dept.serve import work
from dept.serve.api import create_app
from dept.serve.jobs import Jobs, _last_step
from dept.serve.service import Service
from support import write_unlabelled


@pytest.fixture
def opened(source_run: TrainRun, tmp_path: Path, target_images: Path) -> Iterator[TestClient]:
    made = service(source_run.file, tmp_path / "pool", allow_folder=(target_images,), poll=0.05)
    with TestClient(create_app(made), base_url="http://127.0.0.1") as client:
        yield client


def behind(client: TestClient) -> Service:
    return client.app.state.service  # type: ignore[attr-defined, no-any-return]


def uploads(count: int = 12) -> list[tuple[str, tuple[str, bytes]]]:
    return [("images", (f"../../{n} ü.png", png(n % 3, n, dim=0.6))) for n in range(count)]


def ended(client: TestClient, job: str) -> dict[str, Any]:
    open_states = ("queued", "running")
    return until(lambda: (row := client.get(f"/v1/jobs/{job}").json())["state"] not in open_states and row, 240, 0.3)


def test_upload_adapt_verdict_label_promote_predict_roll_back(opened: TestClient) -> None:
    broken = ("images", ("broken.png", b"not an image"))
    data = {"domain": "site", "method": "tent", "max_iters": "2"}
    started = opened.post("/v1/jobs", data=data, files=[*uploads(), broken])
    assert started.status_code == 202
    assert started.json() | {"state": "queued", "images": 12, "source": "upload", "made_by": "local"} == started.json()
    # Predictions go on meanwhile, by the source model.
    answer = opened.post("/v1/predict?domain=site", files=uploads(1)).json()
    assert answer["predictions"][0]["version"] == 0
    done = ended(opened, started.json()["id"])
    assert (done["state"], done["version"], done["progress"]) == ("finished", 1, 1.0), done["message"]
    assert done["verdict"]["basis"] == "class shares" and not done["promoted"]
    names = sorted(file.name for file in (behind(opened).jobs.place / done["id"] / "images").iterdir())
    assert names[0] == "00000-0-.png" and len(names) == 12  # nothing of the path that was sent

    version = opened.get("/v1/domains/site/versions").json()[0]
    assert version["job"] == done["id"] and version["method"] == "tent" and not version["active"]
    opened.post("/v1/domains/site/activate", json={"version": 1, "force": True})
    answer = opened.post("/v1/predict?domain=site", files=uploads(1)).json()
    assert answer["predictions"][0]["version"] == 1
    assert opened.post("/v1/domains/site/rollback").json()["active"] == 0
    assert opened.delete(f"/v1/jobs/{done['id']}").status_code == 204
    assert opened.get(f"/v1/jobs/{done['id']}").status_code == 404
    assert not (behind(opened).jobs.place / done["id"]).exists()
    assert opened.get("/v1/domains/site/versions").json()[0]["number"] == 1


def test_disagreements_are_labelled_and_decide(opened: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Jobs, "_spawn", lambda jobs, job: Here(jobs, job))
    data = {"domain": "site", "method": "shot", "max_iters": "30"}
    done = ended(opened, opened.post("/v1/jobs", data=data, files=uploads(24)).json()["id"])
    place = "/v1/domains/site/versions/1"
    assert done["state"] == "finished", done
    asked = opened.get(f"{place}/check").json()
    assert asked["disagreeing"] >= len(asked["questions"]) > 0 and asked["verdict"] is None
    first = asked["questions"][0]
    assert first["picture"].startswith("data:image/jpeg") and first["right"] == "" and first["before"] != first["after"]
    assert opened.post(f"{place}/labels", json={"labels": {"nowhere.png": "after"}}).status_code == 422
    assert opened.post(f"{place}/labels", json={"labels": {first["image"]: "both"}}).status_code == 422
    told = opened.post(f"{place}/labels", json={"labels": {first["image"]: "after"}}).json()
    assert told["verdict"]["basis"] == "labels" and told["verdict"]["images"] == 1 and told["verdict"]["gain"] > 0
    rest = {one["image"]: "before" for one in asked["questions"]}
    check = behind(opened).jobs.place / done["id"] / "run" / "check"
    with ThreadPoolExecutor(1) as other:
        with FileLock(check / ".labels.lock"):  # somebody else is being answered
            late = other.submit(opened.post, f"{place}/labels", json={"labels": rest})
            assert not wait([late], 0.5).done
        told = late.result().json()
    assert told["verdict"]["gain"] < 0 and {one["right"] for one in told["questions"]} == {"before"}
    assert opened.get("/v1/domains/site/versions").json()[0]["verdict"] == told["verdict"]
    assert opened.get(f"/v1/jobs/{done['id']}").json()["verdict"] == told["verdict"]
    assert opened.get("/v1/domains/site/history").json()[0]["action"] == "verdict"


def test_a_folder_that_the_server_may_read(
    opened: TestClient, target_images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Jobs, "_spawn", lambda jobs, job: Here(jobs, job))
    data = {"domain": "site", "method": "source", "folder": str(target_images / "day1")}
    started = opened.post("/v1/jobs", data=data).json()
    assert started["source"] == str(target_images / "day1") and started["images"] == 5
    done = ended(opened, started["id"])
    assert done["state"] == "finished" and done["version"] is None and "source model" in done["message"]
    write_unlabelled(tmp_path / "private", 4)
    for folder in (tmp_path / "private", target_images / ".." / "source", target_images / "nowhere", "/etc", "a\0b"):
        refused = opened.post("/v1/jobs", data={"domain": "site", "folder": str(folder)})
        assert refused.status_code == 422 and "may not read" in refused.json()["detail"]


def test_links_out_of_an_allowed_folder_are_not_followed(source_run: TrainRun, tmp_path: Path) -> None:
    private, allowed = write_unlabelled(tmp_path / "private", 4), write_unlabelled(tmp_path / "allowed", 4)
    (allowed / "link.png").symlink_to(private / "img000.png")
    (tmp_path / "elsewhere").symlink_to(private)
    made = service(source_run.file, tmp_path / "pool", allow_folder=(allowed,))
    with TestClient(create_app(made), base_url="http://127.0.0.1") as client:
        for folder in (allowed, tmp_path / "elsewhere"):
            answer = client.post("/v1/jobs", data={"domain": "site", "folder": str(folder)})
            assert answer.status_code == 422
    bare = service(source_run.file, tmp_path / "pool")
    with TestClient(create_app(bare), base_url="http://127.0.0.1") as client:
        answer = client.post("/v1/jobs", data={"domain": "site", "folder": str(allowed)})
        assert answer.status_code == 400 and "upload" in answer.json()["detail"]


@pytest.mark.parametrize(
    ("data", "count", "status"),
    [
        ({"domain": "site"}, 0, 400),
        ({"domain": "../up"}, 1, 400),
        ({"domain": "site", "method": "nonsense"}, 1, 400),
        ({"domain": "site", "promote": "always"}, 1, 422),
        ({"domain": "site", "folder": "/etc"}, 1, 400),
    ],
)
def test_bad_jobs_are_refused(opened: TestClient, data: dict[str, str], count: int, status: int) -> None:
    answer = opened.post("/v1/jobs", data=data, files=uploads(count))
    assert answer.status_code == status and answer.json()["detail"]
    assert opened.get("/v1/jobs").json() == []
    only_broken = opened.post("/v1/jobs", data={"domain": "site"}, files=[("images", ("a.png", b"x"))])
    assert only_broken.status_code == 422 and not list(behind(opened).jobs.place.glob("*"))


class Here:
    """Stands in for the process of a job: the work is done in this one, which has imported torch already."""

    returncode = 0

    def __init__(self, jobs: Jobs, job: str) -> None:
        self.returncode = work.main(jobs.place / job)

    def poll(self) -> int:
        return self.returncode


class Sleeping:
    """Stands in for the processes of jobs: they run until they are stopped."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.spawned: list[str] = []

        def spawn(jobs: Jobs, job: str) -> subprocess.Popen[bytes]:
            self.spawned.append(job)
            return subprocess.Popen(["sleep", "60"])

        monkeypatch.setattr(Jobs, "_spawn", spawn)


def test_a_job_is_cancelled_and_the_next_one_begins(opened: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    sleeping = Sleeping(monkeypatch)
    first, second = (
        opened.post("/v1/jobs", data={"domain": name}, files=uploads(1)).json()["id"] for name in ("x", "y")
    )
    until(lambda: opened.get(f"/v1/jobs/{first}").json()["state"] == "running")
    assert opened.get(f"/v1/jobs/{second}").json()["state"] == "queued" and sleeping.spawned == [first]
    assert opened.delete(f"/v1/jobs/{first}").status_code == 409
    assert opened.post(f"/v1/jobs/{first}/cancel").status_code == 200
    assert until(lambda: opened.get(f"/v1/jobs/{first}").json()["state"] == "cancelled", 10)
    until(lambda: sleeping.spawned == [first, second])
    for metric in ('dept_jobs{state="running"} 1.0', 'dept_jobs{state="queued"} 0.0', 'dept_jobs{state="failed"} 0.0'):
        until(lambda: metric in opened.get("/metrics").text)  # noqa: B023
    assert opened.post(f"/v1/jobs/{first}/cancel").status_code == 409
    assert opened.post("/v1/jobs/nowhere/cancel").status_code == 404


def test_a_stopped_server_leaves_its_jobs_to_the_next(
    source_run: TrainRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sleeping = Sleeping(monkeypatch)
    first = service(source_run.file, tmp_path / "pool")
    with TestClient(create_app(first), base_url="http://127.0.0.1") as client:
        job = client.post("/v1/jobs", data={"domain": "x"}, files=uploads(1)).json()["id"]
        until(lambda: sleeping.spawned == [job])
    assert first.pool.index.job(job)[0] == "interrupted"  # type: ignore[index]
    second = service(source_run.file, tmp_path / "pool")
    with TestClient(create_app(second), base_url="http://127.0.0.1") as client:
        until(lambda: sleeping.spawned == [job, job])
        assert client.get(f"/v1/jobs/{job}").json()["state"] == "running"


def test_the_job_of_a_killed_server_is_taken_over(
    source_run: TrainRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sleeping = Sleeping(monkeypatch)
    first, second = (service(source_run.file, tmp_path / "pool", jobs=2) for _ in range(2))
    begun, cancelled = (first.jobs.start_on_upload(name, [("a.png", png())], "alice") for name in ("x", "y"))
    first.jobs._begin()
    second.jobs._begin()
    assert sleeping.spawned == [begun, cancelled]  # by the first alone
    for process, lock in first.jobs._running.values():  # what the system does for a server that was killed
        lock.release()
        process.kill()
        process.wait()
    second.jobs.cancel(cancelled)  # which nobody hears
    second.jobs._begin()
    assert sleeping.spawned == [begun, cancelled, begun] and second.jobs.find(cancelled)[0] == "cancelled"
    second.jobs.close()
    assert second.jobs.find(begun)[0] == "interrupted"


def test_the_process_of_a_job_ends_with_its_server(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "dept.serve.work", str(tmp_path)]
    with FileLock(tmp_path / ".work.lock"), subprocess.Popen(command, stdin=subprocess.PIPE) as process:
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(1)
        process.stdin.close()  # type: ignore[union-attr]
        assert process.wait(120) == -signal.SIGTERM


def test_an_outcome_that_no_server_has_seen_is_kept(tmp_path: Path) -> None:
    write_json(tmp_path / "outcome.json", {"error": "no image"})
    assert work.main(tmp_path) == 0  # without job.json, which it would need to adapt again


def test_promotion_goes_through_the_verdict(source_run: TrainRun, tmp_path: Path, adapters: Path) -> None:
    made = service(source_run.file, tmp_path / "pool")
    for verdict, promoted in (("improved", True), ("uncertain", False), ("harmful", False)):
        job = made.jobs._start(verdict, tmp_path, 4, "upload", "alice", promote="improved")
        folder = made.jobs.place / job
        write_adapter(source_run.file, folder / "run" / "adapter.safetensors")
        expected = {"verdict": verdict, "gain": 0.1, "low": 0.0, "high": 0.2, "shares": "source"}
        write_json(folder / "outcome.json", {"adapter": "adapter.safetensors", "expected": expected, "images": 4})
        made.pool.index.claim_job(job, ("queued",), "running")
        made.jobs._ended(job, 0)
        state, record = made.jobs.find(job)
        assert state == "finished" and record.get("promoted", False) == promoted
        assert record["message"].startswith("Promoted" if promoted else "Not promoted")
        assert made.pool.get(verdict).version == int(promoted)


def test_a_process_that_dies_is_a_failed_job(source_run: TrainRun, tmp_path: Path) -> None:
    made = service(source_run.file, tmp_path / "pool")
    job = made.jobs._start("x", tmp_path, 4, "upload", "alice")
    made.pool.index.claim_job(job, ("queued",), "running")
    made.jobs._ended(job, -9)
    assert made.jobs.find(job)[0] == "failed" and "-9" in made.jobs.find(job)[1]["message"]


def test_progress_is_read_from_the_end_of_the_events(tmp_path: Path) -> None:
    rows = [{"event": "start", "time": 100.0}]
    rows += [{"event": "step", "time": 101.0 + step, "step": step, "total": 200} for step in range(100)]
    file = tmp_path / "events.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows) + '{"event": "st')
    found = _last_step(file, "dept+")
    assert (found.stage, found.step, found.steps, found.share) == ("dept+", 100, 200, 0.5)
    assert found.eta == pytest.approx(100.0)
