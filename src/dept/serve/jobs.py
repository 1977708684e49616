"""Offline adaptations beside the server: each a process of its own, with its folder below FOLDER/jobs.

What is known of a job is in the index, so that every server process can list and cancel it. The one that holds the lock
of a job's folder runs it. The system ends the lock of a process that was killed, and then another one takes over.
"""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from dept import methods
from dept.data.decoding import suffix_of
from dept.data.images import find_images
from dept.errors import DataError, DeptError, UsageError
from dept.io import read_json, read_shapes, write_json
from dept.serve.gains import from_run
from dept.serve.pool import Conflict, NotFound, Pool, check_name
from dept.serve.routing import load
from dept.serve.work import FEATURES, JOB, OUTCOME, RUN, STAGE

logger = logging.getLogger(__name__)
OPEN = ("queued", "running", "interrupted")
"""states of a job that has not ended"""
ENDED = ("finished", "failed", "cancelled")
MOST_WAITING = 32
TAIL = 4096
"""bytes at the end of events.jsonl in which the last step is"""
NICE = 5
"""how much adaptation steps back behind predictions: about a third of a core where both want one"""
POLL = 0.25
"""seconds between two looks at the processes"""
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9._-]+")


@dataclass(frozen=True)
class Progress:
    """How far a running job is."""

    stage: str
    step: int = 0
    steps: int = 0
    eta: float | None = None

    @property
    def share(self) -> float:
        """Of the present stage, 0 to 1."""
        return min(1.0, self.step / self.steps) if self.steps else 0.0


class Jobs:
    """The jobs of a folder of adapters, and those that this process runs.

    Args:
        model: the model file.
        folders: below which a job may read images.
        most: jobs that run at the same time.
    """

    def __init__(self, pool: Pool, model: Path, *, folders: Sequence[Path], most: int, device: str) -> None:
        self.pool, self.model, self.most, self.device = pool, model, most, device
        self.folders = [folder.resolve() for folder in folders]
        self.place = pool.folder / "jobs"
        self._running: dict[str, tuple[subprocess.Popen[bytes], FileLock]] = {}
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    # -- what callers ask for -------------------------------------------------------------------------------

    def start_on_folder(self, domain: str, folder: str, made_by: str, **settings: Any) -> str:
        """Adapt to a folder that the server may read."""
        images = self.allowed(folder)
        found = find_images(images)
        roots = [root.resolve() for root in self.folders]
        if not all(any(path.resolve().is_relative_to(root) for root in roots) for path in found.paths):
            raise DataError(f"{folder} has links to files outside the folders that the server may read.")
        return self._start(domain, images, len(found), str(images), made_by, **settings)

    def start_on_upload(self, domain: str, files: Iterable[tuple[str, bytes]], made_by: str, **settings: Any) -> str:
        """Adapt to uploaded images, read one at a time; files that are not images are left out."""
        check_name(domain)
        job = _new_id()
        place = self.place / job / "images"
        place.mkdir(parents=True)
        given = kept = 0
        for given, (name, data) in enumerate(files, 1):  # noqa: B007 (how many there were)
            suffix = suffix_of(data)
            if suffix is not None:
                # Only letters and digits of the name are kept, and a number makes it unique.
                stem = _NOT_IN_NAMES.sub("-", Path(name).stem)[:60]
                (place / f"{kept:05}-{stem}{suffix}").write_bytes(data)
                kept += 1
        if not kept:
            shutil.rmtree(self.place / job)
            raise DataError(f"None of the {given} files is an image that can be read.")
        try:
            return self._start(domain, place, kept, "upload", made_by, job=job, **settings)
        except DeptError:
            shutil.rmtree(self.place / job)
            raise

    def allowed(self, folder: str) -> Path:
        """A folder of a request, resolved, if it lies below one that the server may read."""
        if not self.folders:
            raise UsageError("This server may read no folder. Start it with `allow_folder`, or upload the images.")
        try:
            place = Path(folder).resolve(strict=True)
            inside = any(place.is_relative_to(root) for root in self.folders) and place.is_dir()
        except (OSError, ValueError):
            inside = False
        if not inside:  # the same words whether it exists or not: the server's disk is nobody's business
            raise DataError("The folder does not exist, or the server may not read it.")
        return place

    def _start(
        self,
        domain: str,
        images: Path,
        count: int,
        source: str,
        made_by: str,
        *,
        job: str = "",
        method: str = "auto",
        promote: str = "never",
        settings: dict[str, Any] | None = None,
    ) -> str:
        check_name(domain)
        try:
            methods.place(method, "offline")
        except ValueError as error:
            raise UsageError(str(error)) from error
        if sum(state in OPEN for _, state, _ in self.pool.index.jobs()) >= MOST_WAITING:
            raise Conflict(f"There are {MOST_WAITING} adaptations waiting already. Cancel one, or wait.")
        job = job or _new_id()
        self.pool.create(domain, made_by)
        what = {"model": str(self.model.resolve()), "images": str(images), "method": method, "device": self.device}
        (self.place / job).mkdir(parents=True, exist_ok=True)
        write_json(self.place / job / JOB, what | {"settings": settings or {}})
        record = {"domain": domain, "method": method, "promote": promote, "images": count, "source": source}
        self.pool.index.save_job(job, "queued", record | {"created": time.time(), "made_by": made_by})
        return job

    def find(self, job: str) -> tuple[str, dict[str, Any]]:
        """State and record of a job."""
        found = self.pool.index.job(job)
        if found is None:
            raise NotFound(f"There is no job {job[:80]!r}.")
        return found

    def folder(self, job: str) -> Path:
        """Where the files of a job are, which exists only if the index knows it."""
        self.find(job)
        return self.place / job

    def cancel(self, job: str) -> None:
        """Stop a job. The process that runs it sees that within a second."""
        self.find(job)
        ended = self.pool.index.claim_job(job, ("queued", "interrupted"), "cancelled", ended=time.time())
        if ended is None and self.pool.index.claim_job(job, ("running",), "running", cancel=True) is None:
            raise Conflict(f"Job {job} has ended already.")

    def remove(self, job: str) -> None:
        """Remove the files of a job that has ended, images included. The version that it made stays."""
        state, _ = self.find(job)
        if state in OPEN:
            raise Conflict(f"Job {job} is {state}. Cancel it first.")
        shutil.rmtree(self.place / job, ignore_errors=True)
        self.pool.index.forget_job(job)

    def progress(self, job: str) -> Progress:
        """How far a running job is, from the events of its run."""
        folder = self.place / job
        if (folder / STAGE).exists():
            return Progress("check")
        files = [folder / RUN / "events.jsonl", *(folder / RUN / "candidates").glob("*/events.jsonl")]
        files = [file for file in files if file.is_file()]
        if not files:
            return Progress("starting")
        latest = max(files, key=lambda file: file.stat().st_mtime)
        named = latest.parent.name
        return _last_step(latest, read_json(folder / JOB)["method"] if named == RUN else named)

    # -- the thread that runs them --------------------------------------------------------------------------

    def open(self) -> None:
        """Begin to run jobs, those that a stopped or killed server has left included."""
        self._thread = threading.Thread(target=self._serve, name="jobs", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop the processes. They save their state, and another server continues."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        for process, _ in self._running.values():
            process.send_signal(signal.SIGTERM)
        for job, (process, _) in list(self._running.items()):
            try:
                process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            self._ended(job, process.returncode, stopped=True)
            self._running.pop(job)[1].release()

    def _serve(self) -> None:
        while not self._stop.wait(POLL):
            try:
                self._begin()
                self._watch()
            except Exception:  # of one round; the next one may be well
                logger.exception("A look at the adaptations failed.")

    def _begin(self) -> None:
        """Run what nobody runs, the oldest first, as far as there is room."""
        for job, state, record in reversed(self.pool.index.jobs()):
            if len(self._running) >= self.most:
                return
            if state in OPEN and job not in self._running:
                self._claim(job, cancelled=bool(record.get("cancel")))

    def _claim(self, job: str, *, cancelled: bool) -> None:
        """Run a job, or end one whose server was killed before it could cancel it; unless another server has it."""
        # Taken in one thread and released in another, which locks refuse by default.
        lock = FileLock(self.place / job / ".lock", thread_local=False)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            return
        state, now = ("cancelled", "ended") if cancelled else ("running", "started")
        if self.pool.index.claim_job(job, OPEN, state, **{now: time.time()}) is None or cancelled:
            lock.release()
            return
        try:
            self._running[job] = self._spawn(job), lock
        except OSError as error:
            self.pool.index.claim_job(job, ("running",), "failed", message=str(error), ended=time.time())
            lock.release()

    def _spawn(self, job: str) -> subprocess.Popen[bytes]:
        with (self.place / job / "log.txt").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "dept.serve.work", str(self.place / job)],
                stdin=subprocess.PIPE,  # which ends with this process, see `work.stop_with_server`
                stdout=log,
                stderr=log,
                start_new_session=True,  # a Ctrl-C is for the server, which then stops its jobs
            )
        if hasattr(os, "setpriority"):
            os.setpriority(os.PRIO_PROCESS, process.pid, NICE)  # predictions come first
        return process

    def _watch(self) -> None:
        for job, (process, _) in list(self._running.items()):
            if self.find(job)[1].get("cancel") and process.poll() is None:
                process.kill()  # nothing of it is wanted
                process.wait()
            if process.poll() is not None:
                self._ended(job, process.returncode)
                self._running.pop(job)[1].release()

    def _ended(self, job: str, code: int, *, stopped: bool = False) -> None:
        """Write down how a job ended, and add its adapter to the pool."""
        index, folder = self.pool.index, self.place / job
        now = {"ended": time.time()}
        if self.find(job)[1].get("cancel"):
            index.claim_job(job, ("running",), "cancelled", **now)
        elif (folder / OUTCOME).exists():
            try:
                state, changes = self._add(job, read_json(folder / OUTCOME))
            except (DeptError, KeyError, OSError, ValueError) as error:
                state, changes = "failed", {"message": str(error)}
            index.claim_job(job, ("running",), state, **changes, **now)
        elif stopped:
            index.claim_job(job, ("running",), "interrupted")
        else:
            message = f"The process ended with code {code}. See jobs/{job}/log.txt in the folder of adapters."
            index.claim_job(job, ("running",), "failed", message=message, **now)

    def _add(self, job: str, outcome: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        """Make the adapter of a finished run the next version of its domain; returns state and what to record."""
        if "error" in outcome:
            return "failed", {"message": outcome["error"].replace(f"{self.pool.folder}/", "")}
        _, record = self.find(job)
        domain, made_by, folder = record["domain"], record["made_by"], self.place / job
        verdict = from_run(outcome["expected"], outcome["images"])
        if not read_shapes(folder / RUN / outcome["adapter"]):
            return "finished", {"message": "No candidate was better than the source model, which stays in use."}
        version = self.pool.add(domain, folder / RUN / outcome["adapter"], made_by, job=job, verdict=verdict)
        if (folder / FEATURES).exists():
            self.pool.set_signature(domain, load((folder / FEATURES).read_bytes()))
        found: dict[str, Any] = {"version": version.number, "verdict": verdict}
        if record["promote"] != "improved":
            return "finished", found
        if verdict["verdict"] != "improved":
            return "finished", found | {"message": f"Not promoted, because the verdict is {verdict['verdict']}."}
        try:
            self.pool.activate(domain, version.number, made_by, automatic=True)
        except Conflict as error:
            return "finished", found | {"message": f"Not promoted. {error}"}
        return "finished", found | {"promoted": True, "message": "Promoted."}


def _new_id() -> str:
    return time.strftime("%Y%m%d-%H%M%S-", time.gmtime()) + uuid.uuid4().hex[:6]


def _last_step(file: Path, stage: str) -> Progress:
    """The last step that a run has recorded, and the time that the rest takes at this pace."""
    first_time = None
    with file.open("rb") as events:
        head = events.readline()
        events.seek(max(0, file.stat().st_size - TAIL))
        lines = events.read().splitlines()
    try:
        first_time = float(json.loads(head)["time"])
    except (ValueError, KeyError):
        return Progress(stage)
    for line in reversed(lines):
        try:
            event = json.loads(line)
        except ValueError:  # cut off at either end
            continue
        if event.get("event") == "step":
            done, total = int(event["step"]) + 1, int(event["total"])
            spent = float(event["time"]) - first_time
            return Progress(stage, done, total, spent / done * (total - done) if total else None)
    return Progress(stage)
