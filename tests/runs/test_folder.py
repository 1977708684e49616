from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from dept.data.images import ImageSet, list_hash
from dept.data.loader import resolve_device
from dept.errors import DataError, DeptError, Interrupted, UsageError
from dept.io import read_json, read_meta
from dept.methods.base import Progress
from dept.methods.tent import Tent
from dept.runs.folder import Checkpoints, RunFolder, kept, stop_signal
from dept.runs.loops import Event
from dept.runs.seal import unsealed
from support import events, random_batch, same_bits, tiny_config, tiny_model


def folder(path: Path, **kwargs: Any) -> RunFolder:
    return RunFolder(path, "adapter.safetensors", **{"resume": False, "overwrite": False, **kwargs})


def test_events_are_appended_and_heard(tmp_path: Path) -> None:
    heard: list[dict[str, Any]] = []
    run = folder(tmp_path / "a" / "b", listener=heard.append)
    run.configure({})
    run.log("start", total=3)
    run.log_step(Event(Progress(0, 3, 0), {"loss": 1.23456789}, 0.5, False))
    log = events(run.path)
    assert [e["event"] for e in log] == ["start", "step"] and log == heard
    assert log[1]["terms"] == {"loss": 1.234568} and (log[1]["step"], log[1]["total"], log[1]["lr"]) == (0, 3, 0.5)


TRACES = ["config.json", "events.jsonl", "result.json", "resume.safetensors", "adapter.safetensors", "report.html"]


@pytest.mark.parametrize("name", TRACES)
def test_any_trace_of_a_run_occupies_a_folder(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("{}")
    with pytest.raises(UsageError, match=rf"already holds a run \({name}\)"):
        folder(tmp_path)
    run = folder(tmp_path, overwrite=True)
    assert (tmp_path / name).exists(), "nothing is lost before the run is known to be possible"
    run.configure({"a": 1})
    assert (tmp_path / name).exists() == (name in ("config.json", "adapter.safetensors"))


def test_resuming_is_offered_only_where_there_is_something_to_resume(tmp_path: Path) -> None:
    (tmp_path / "result.json").write_text("{}")
    with pytest.raises(UsageError, match=r"\(result.json\)\. Use `overwrite`, or choose another `out`\."):
        folder(tmp_path)
    (tmp_path / "resume.safetensors").write_bytes(b"")
    with pytest.raises(UsageError, match=r"Use `resume` to continue or `overwrite` to replace it, or choose another"):
        folder(tmp_path)


def test_other_files_do_not_occupy_it(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    folder(tmp_path)
    folder(tmp_path, overwrite=True)
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_config_is_compared_on_resume(tmp_path: Path) -> None:
    run = folder(tmp_path)
    run.configure({"protocol": {"a": 1, "b": (1, 2), "config": {"p": Path("x")}}, "options": {"workers": 1}})
    (tmp_path / "resume.safetensors").write_bytes(b"")
    again = folder(tmp_path, resume=True)
    again.configure(
        {"protocol": {"a": 1, "b": [1, 2], "config": {"p": "x"}}, "options": {"workers": 2}}
    )  # equal as JSON
    with pytest.raises(UsageError, match=r"\(a, c differ\)"):
        again.configure({"protocol": {"a": 2, "b": [1, 2], "config": {"p": "x", "c": 0}}})
    assert json.loads((tmp_path / "config.json").read_text())["protocol"]["a"] == 1


def test_state_round_trip_on_disk(tmp_path: Path) -> None:
    def method() -> Tent:
        return Tent(tiny_model(), tiny_config(Tent, lr=0.1))

    first, run = method(), folder(tmp_path)
    first.at(Progress(0, 4, 0))
    first.step(random_batch("t"))
    run.save_state(first, 1, extra=torch.tensor([7]))
    second = method()
    step, extra = folder(tmp_path, resume=True).load_state(second)
    assert step == 1 and extra["extra"].tolist() == [7] and extra.keys() == {"extra"}
    assert same_bits(first.state_dict(), second.state_dict())
    assert read_meta(run.resume_file)["kind"] == "resume"


def test_state_of_another_model_is_refused(tmp_path: Path) -> None:
    folder(tmp_path).save_state(Tent(tiny_model()), 1)
    with pytest.raises(DataError, match="does not fit this model and method"):
        folder(tmp_path, resume=True).load_state(Tent(tiny_model(embed_dim=16)))


def test_finish_drops_the_resume_state(tmp_path: Path) -> None:
    run = folder(tmp_path)
    run.save_state(Tent(tiny_model()), 1)
    run.finish({"ok": True})
    assert not run.resume_file.exists() and unsealed(read_json(tmp_path / "result.json")) == {"ok": True}


def test_checkpoints_come_about_once_a_minute_and_never_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr("dept.runs.folder.time.monotonic", lambda: clock[0])
    checkpoints = Checkpoints()

    def due(at: float, step: int = 0) -> bool:
        clock[0] = at
        return checkpoints.due(Event(Progress(step, 10, 0), {}, 0.0, True))

    assert [due(30), due(61), due(90), due(122), due(300, step=9)] == [False, True, False, True, False]


def test_a_run_gives_up_after_ten_skipped_steps(tmp_path: Path) -> None:
    """A few are recorded without their loss, which JSON cannot hold."""
    run, method = folder(tmp_path), Tent(tiny_model())

    def steps() -> Iterator[Event]:
        for number in range(20):
            method.skipped_in_a_row = number + 1
            yield Event(Progress(number, 20, 0), {"loss": float("nan"), "selected": 1.0}, 0.1, False)

    with pytest.raises(DeptError, match=r"not finite in 10 steps in a row"):
        list(kept(steps(), method, run, lambda _: None))
    logged = events(run.path)
    assert len(logged) == 9 and all(event["terms"] == {"selected": 1.0} for event in logged)


@pytest.mark.parametrize("signalled", [False, True])
def test_what_was_done_is_saved_when_the_next_images_cannot_be_had(tmp_path: Path, signalled: bool) -> None:
    run, method, saved = folder(tmp_path), Tent(tiny_model()), list[int]()

    def steps(middle: bool) -> Iterator[Event]:
        for number in range(2):
            method.at(Progress(number, 9, 0))
            yield Event(method.progress, {}, 0.1, False)
        if middle:
            method.at(Progress(2, 9, 0))
        if signalled:  # as it reaches all processes of a terminal, or of a job
            signal.raise_signal(signal.SIGTERM)
            raise RuntimeError("DataLoader worker exited unexpectedly")
        raise DataError("x.png cannot be read.")

    ends, said = (Interrupted, "stopped after step 2") if signalled else (DataError, "2 steps so far .* `resume`")
    with pytest.raises(ends, match=said):
        list(kept(steps(middle=False), method, run, saved.append))
    assert saved == [2]
    with pytest.raises(RuntimeError if signalled else DataError, match=r"unexpectedly|read\.$"):
        list(kept(steps(middle=True), method, run, saved.append))
    assert saved == [2], "the tensors of a step that began are neither those before nor after it"


@pytest.mark.parametrize("first", [signal.SIGINT, signal.SIGTERM])
def test_first_ctrl_c_or_sigterm_is_a_flag_the_second_kills(first: signal.Signals) -> None:
    before = [signal.getsignal(stop) for stop in (signal.SIGINT, signal.SIGTERM)]
    with pytest.raises(KeyboardInterrupt), stop_signal() as stopped:
        assert not stopped()
        signal.raise_signal(first)
        assert stopped() and signal.getsignal(signal.SIGTERM) is before[1]
        signal.raise_signal(signal.SIGINT)
    assert [signal.getsignal(stop) for stop in (signal.SIGINT, signal.SIGTERM)] == before


def test_interruption_passes_the_context() -> None:
    with pytest.raises(Interrupted) as error, stop_signal():
        raise Interrupted(3, Path("run"))
    assert (error.value.step, error.value.folder) == (3, Path("run"))


def test_other_threads_cannot_hear_signals_but_can_run() -> None:
    result: list[bool] = []

    def work() -> None:
        with stop_signal() as stopped:
            result.append(stopped())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert result == [False]


def test_list_hash_depends_on_names_and_order_not_on_the_place(tmp_path: Path) -> None:
    def images(root: str, *names: str) -> ImageSet:
        return ImageSet(Path(root), tuple(Path(root) / name for name in names))

    assert list_hash(images("/a", "x.png", "y/z.png")) == list_hash(images("/b/c", "x.png", "y/z.png"))
    assert list_hash(images("/a", "x.png", "y.png")) != list_hash(images("/a", "y.png", "x.png"))


def test_names_that_are_no_text_have_a_hash() -> None:
    assert len(list_hash(ImageSet(Path("a"), (Path(os.fsdecode(b"a/\xff.png")),)))) == 64


@pytest.mark.parametrize("device", ["gpu", "cuda:x", "mps:", "xpu", "cpu:", "cpu:²", "cpu:999"])
def test_a_device_that_is_not_there(device: str) -> None:
    with pytest.raises(UsageError, match=rf"no device '{device}' here.*cpu"):
        resolve_device(device)


def test_device() -> None:
    assert resolve_device("cpu") == "cpu" and resolve_device("auto") in ("cpu", "cuda", "mps")


def test_one_process_per_folder(tmp_path: Path) -> None:
    """A second one is told who holds it; a lock whose process was killed holds nobody up."""
    code = f"""
import time
from dept.runs.folder import RunFolder
with RunFolder({str(tmp_path)!r}, "adapter.safetensors", resume=False).locked():
    print("held", flush=True)
    time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None and other.stdout.readline() == "held\n"
        with pytest.raises(UsageError, match=f"is in use by process {other.pid} on "), folder(tmp_path).locked():
            pass
        other.kill()
        other.wait()
    with folder(tmp_path).locked():
        assert (tmp_path / ".holder").read_text().startswith(f"process {os.getpid()} ")
    assert not (tmp_path / ".holder").exists()
