"""One run in several processes gives what one process gives."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from uda_support import SMALL

import dept.runs.folder
import registry
from dept.cli.main import main
from dept.core import collective
from dept.core.gradient_mean import packed
from dept.data.images import find_images, find_labelled
from dept.data.loader import Runtime
from dept.errors import DeptError, Interrupted
from dept.io import read_json, read_tensors
from dept.models.files import load_model
from dept.models.stats import compute_stats
from dept.runs.adapt import adapt
from dept.runs.distributed import keep_in_step
from dept.runs.seal import unsealed
from dept.runs.train import TrainRun, train
from dept.runs.uda import adapt_with_source
from registry import Case, Inputs
from support import PROJECTION, StopAfter, events, random_batch, spread_predictions, teach, tiny_model, tiny_resnet
from together import run_together

TOLERANCE = 1e-5


class Places(NamedTuple):
    """Where the files of these tests are."""

    inputs: Inputs
    source: Path
    target: Path
    runs: Path


@pytest.fixture(scope="module")
def places(source_run: TrainRun, source_images: Path, target_images: Path, tmp_path_factory: Any) -> Places:
    folder, labelled = tmp_path_factory.mktemp("together"), find_labelled(source_images)
    models = {"vit": load_model(source_run.file), "resnet": tiny_resnet().eval()}
    taught = {name: teach(spread_predictions(one), "contrastive") for name, one in models.items()}
    stats = {name: compute_stats(one, labelled, Runtime())[0] for name, one in taught.items()}
    torch.save(stats, folder / "stats.pt")
    return Places(Inputs(source_run.file, folder / "stats.pt"), source_images, target_images, folder)


@pytest.fixture(scope="module")
def together(places: Places) -> list[dict[str, Any]]:
    """What each of two processes has found out. They are started once for all tests."""
    return run_together(in_two_processes, 2, places.runs / "answers", places)


def in_two_processes(places: Places) -> dict[str, Any]:
    torch.manual_seed(collective.rank())  # the global generator must not matter
    return {
        "cases": registry.run_all(places.inputs),
        "runs": {name: product(name, places, "two") for name in RUNS},
        "refused": {name: refused(name, places) for name in REFUSED},
        "stopped": stopped(places, "stopped"),
        "apart": apart(places),
        "mended": mended(places),
        "buckets": buckets(),
        "dropped": dropped(),
    }


# ---- every method ----


@pytest.mark.parametrize("case", registry.cases(), ids="-".join)
def test_three_steps_of_every_method(case: Case, places: Places, together: list[dict[str, Any]]) -> None:
    """Parameters and all other state, statistics of batch norm and labels in banks included."""
    alone = registry.run(case, places.inputs)
    first, second = (answers["cases"][case] for answers in together)
    assert alone.keys() == first.keys() == second.keys()
    for name, tensor in alone.items():
        assert torch.equal(first[name], second[name]), f"the processes differ in {name}"
        if tensor.is_floating_point():
            # Momentum is a sum of gradients, which the learning rate makes small. Features enlarge rounding.
            tolerance = TOLERANCE * (100 if ".optimizer." in name else 10 if name == "method.queue" else 1)
            assert torch.allclose(tensor, first[name], atol=tolerance, rtol=tolerance), name
        else:
            assert torch.equal(tensor, first[name]), name
    banks = [name for name in alone if name.endswith("bank.probabilities")]
    for name in banks:
        assert torch.equal(alone[name].argmax(dim=1), first[name].argmax(dim=1))


# ---- whole runs ----

RUN: dict[str, Any] = {"device": "cpu", "batch": 4}
RUNS = ("dept", "auto", "train", "uda")


def product(name: str, places: Places, how: str) -> dict[str, Any]:
    """One run of each kind: what it returns."""
    out = places.runs / how / name
    if name == "train":
        run: Any = train(tiny_model().train(), places.source, out=out, epochs=1, **RUN, **PROJECTION)
        return {"tensors": run.model.state_dict(), "result": run.result}
    if name == "uda":
        small = {key: SMALL[key] for key in ("batch", "hidden")}
        run = adapt_with_source(
            tiny_resnet(), places.source, places.target, out=out, method="cdan", max_iters=3, device="cpu", **small
        )
        return {"tensors": run.model.state_dict(), "result": run.result}
    more = {"epochs": 2, "eval_every": 1, **PROJECTION} if name == "dept" else {"max_iters": 3}
    run = adapt(
        places.inputs.model, places.target, out=out, method=name, score_on=places.source, accept=True, **RUN, **more
    )
    return {"tensors": run.model.state_dict(), "result": run.result}


@pytest.mark.parametrize("name", RUNS)
def test_whole_runs(name: str, places: Places, together: list[dict[str, Any]]) -> None:
    alone = product(name, places, "one")
    for answers in together:
        shared = answers["runs"][name]
        assert largest_difference(alone["tensors"], shared["tensors"]) <= TOLERANCE
        assert shared["result"]["environment"]["processes"] == 2
        assert {**shared["result"]["protocol"]} == alone["result"]["protocol"]
    assert together[0]["runs"][name]["result"] == together[1]["runs"][name]["result"]
    written = unsealed(read_json(places.runs / "two" / name / "result.json"))
    assert written == json.loads(json.dumps(together[0]["runs"][name]["result"]))


def test_one_process_writes(places: Places, together: list[dict[str, Any]]) -> None:
    alone = places.runs / "one" / "dept"
    if not alone.exists():
        product("dept", places, "one")
    kinds = [[event["event"] for event in events(folder)] for folder in (alone, places.runs / "two" / "dept")]
    assert kinds[0] == kinds[1]
    names = [sorted(file.name for file in folder.iterdir()) for folder in (alone, places.runs / "two" / "dept")]
    assert names[0] == names[1]


def largest_difference(one: dict[str, Tensor], two: dict[str, Tensor]) -> float:
    assert one.keys() == two.keys()
    return max(float((one[name].double() - two[name].double()).abs().max()) for name in one if one[name].numel())


# ---- interrupted, and resumed by another number of processes ----


def stopped(places: Places, name: str) -> str:
    """A run of two processes that stops after its second step."""
    patch = pytest.MonkeyPatch()
    patch.setattr(dept.runs.folder, "stop_signal", StopAfter(2))
    patch.setattr(dept.runs.folder, "rank", lambda: 0)  # or the second process would go on until it is alone
    with patch.context(), pytest.raises(Interrupted) as stop:
        half(places, name)
    patch.undo()
    return str(stop.value)


def half(places: Places, name: str, **more: Any) -> Any:
    settings = RUN | PROJECTION | more
    return adapt(places.inputs.model, places.target, out=places.runs / name, method="dept", epochs=2, **settings)


def test_resumed_by_one_process(places: Places, together: list[dict[str, Any]]) -> None:
    assert "step 2" in together[0]["stopped"]
    resumed, whole = half(places, "stopped", resume=True), half(places, "whole")
    assert largest_difference(whole.model.state_dict(), resumed.model.state_dict()) <= TOLERANCE
    assert (whole.after - resumed.after).abs().max() <= TOLERANCE
    assert [e["step"] for e in events(places.runs / "stopped") if e["event"] == "step"] == list(range(6))


def apart(places: Places) -> dict[str, Tensor]:
    """A stopped run, resumed by two processes of which only the first sees the run folder."""
    stopped(places, "apart")
    run = half(places, "nowhere" if collective.rank() else "apart", resume=True)
    return dict(run.model.state_dict())


def test_only_the_first_process_needs_the_run_folder(places: Places, together: list[dict[str, Any]]) -> None:
    whole = half(places, "alone").model.state_dict()
    assert all(largest_difference(whole, answers["apart"]) <= TOLERANCE for answers in together)
    assert (places.runs / "apart" / "result.json").exists() and not (places.runs / "nowhere").exists()


# ---- refused ----

REFUSED = {
    "batch": "`batch` is 1, but there are 2 processes, and each needs an image of every batch. Raise it to 2",
    "few": "The run has more processes (2) than images in `images` (1 in ",
    "files": "Process 1 of this run sees another `images` than process 0 (9 files",
    "model": "Process 1 of this run sees another `model` than process 0",
    "method": "has no setting 'nonsense'",
    "used": "already holds a run",
}


def refused(name: str, places: Places) -> tuple[str, int]:
    """The sentence and exit code of a request that two processes refuse."""
    images, model, settings = find_images(places.target), load_model(places.inputs.model), dict(RUN)
    out = places.runs / ("two/dept" if name == "used" else "refused")
    if name == "batch":
        settings["batch"] = 1
    if name == "few":
        images = images.take([0])
    if name == "files" and collective.rank() == 1:
        images = images.take(range(9))
    if name == "model" and collective.rank() == 1:
        model = tiny_model(seed=1)
    if name == "method":
        settings["nonsense"] = 1
    with pytest.raises(DeptError) as error:
        adapt(model, images, out=out, method="tent", **settings)
    return str(error.value), error.value.exit_code


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str, places: Places, together: list[dict[str, Any]]) -> None:
    for answers in together:
        sentence, code = answers["refused"][name]
        assert REFUSED[name] in sentence
        assert code == (3 if name in ("few", "files", "model") else 2)
    assert not (places.runs / "refused").exists()


# ---- parts ----


def mended(places: Places) -> Tensor:
    """What is tuned after the processes have drifted apart and looked at each other."""
    case = Case("tent", "offline", "vit")
    method = registry.made(case, places.inputs)
    with torch.no_grad():
        method.model.get_parameter(method.trained_names[0]).add_(1e-7 * collective.rank())
    keep_in_step(method)
    return method.model.get_parameter(method.trained_names[0]).detach().clone()


def test_processes_that_drifted_apart_come_together(together: list[dict[str, Any]]) -> None:
    assert torch.equal(together[0]["mended"], together[1]["mended"])


def buckets() -> dict[str, Tensor]:
    """Gradients of a step whose parameters fill several buckets, two of which are complete before the backward ends."""
    patch = pytest.MonkeyPatch()
    patch.setattr("dept.core.gradient_mean.packed", lambda parameters: packed(parameters, most=4096))
    method = registry.made(Case("shot", "online", "vit"), None)
    patch.undo()
    assert len(method.share_gradients.buckets) > 3 or collective.size() == 1
    for number in range(2):
        method.step(random_batch(method.views, 5, seed=number))
    return {name: tensor.detach().clone() for name, tensor in method.model.named_parameters()}


def test_buckets_are_sent_during_the_backward(together: list[dict[str, Any]]) -> None:
    alone = buckets()
    assert largest_difference(alone, together[0]["buckets"]) <= TOLERANCE
    assert largest_difference(together[0]["buckets"], together[1]["buckets"]) == 0


def dropped() -> Tensor:
    """Features of a network in training mode that drops activations and whole branches."""
    model = tiny_model(stages=0, prompts=0, drop_path_rate=0.5, proj_drop_rate=0.5).train()
    torch.manual_seed(3)
    return model.read(random_batch("t", 5).views[0]).features.detach()


def test_dropout_does_not_depend_on_the_number_of_processes(together: list[dict[str, Any]]) -> None:
    alone = dropped()
    for answers in together:
        assert torch.allclose(alone, answers["dropped"], atol=TOLERANCE)


# ---- processes of their own ----


@pytest.fixture
def meeting() -> dist.TCPStore:
    """Where the processes meet. torchrun keeps it in a process of its own, which outlives them."""
    return dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


def start(rank: int, meeting: dist.TCPStore, *words: str) -> subprocess.Popen[str]:
    """One of two processes, with the environment that torchrun gives it."""
    given = {"RANK": rank, "WORLD_SIZE": 2, "LOCAL_RANK": rank, "MASTER_ADDR": "127.0.0.1", "OMP_NUM_THREADS": 1}
    given |= {"MASTER_PORT": meeting.port, "TORCHELASTIC_USE_AGENT_STORE": True, "TORCHELASTIC_RESTART_COUNT": 0}
    environment = os.environ | {name: str(value) for name, value in given.items()}
    command = [sys.executable, "-m", "dept", *words]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def steps_made(folder: Path) -> int:
    return sum(e["event"] == "step" for e in events(folder)) if (folder / "events.jsonl").exists() else 0


@pytest.mark.parametrize("victim", [1, 0])
def test_a_killed_process_ends_the_run_and_it_can_be_resumed(
    victim: int, places: Places, tmp_path: Path, meeting: dist.TCPStore
) -> None:
    flags = ["--method", "tent", "--batch", "4", "--max-iters", "40", "--device", "cpu", "--accept", "--out"]
    words = ["adapt", str(places.inputs.model), str(places.target), *flags]
    both = [start(rank, meeting, *words, str(tmp_path / "run")) for rank in (0, 1)]
    while steps_made(tmp_path / "run") < 3 and both[0].poll() is None:
        time.sleep(0.02)
    both[victim].kill()
    outputs = [process.communicate(timeout=300) for process in both]
    survivor = 1 - victim
    said = outputs[survivor][1].splitlines()[-1]
    name = "dept (process 1 of 2)" if survivor else "dept"
    assert said.startswith(f"{name}: Another process of this run has ended, or no longer answers")
    assert said.endswith("Use --resume to continue from the last saved step.")
    assert both[survivor].returncode == 1
    assert (tmp_path / "run" / "resume.safetensors").exists() and not (tmp_path / "run" / "result.json").exists()
    if victim:  # continued by one process
        assert main([*words, str(tmp_path / "run"), "--resume"]) == main([*words, str(tmp_path / "whole")]) == 0
        one, two = (read_tensors(tmp_path / run / "adapter.safetensors", "adapter")[0] for run in ("run", "whole"))
        assert largest_difference(one, two) <= TOLERANCE


def test_different_arguments_are_refused(places: Places, tmp_path: Path, meeting: dist.TCPStore) -> None:
    words = ["adapt", str(places.inputs.model), str(places.target), "--out", str(tmp_path / "run"), "--method", "tent"]
    both = [start(rank, meeting, *words, "--lr", lr) for rank, lr in ((0, "0.1"), (1, "0.2"))]
    outputs = [process.communicate(timeout=300) for process in both]
    assert [process.returncode for process in both] == [2, 2]
    said = [line for _, error in outputs for line in error.splitlines() if line.startswith("dept")]
    assert len(said) == 1 and "process 0 with [--lr 0.1], process 1 with [--lr 0.2]" in said[0]
    assert not (tmp_path / "run").exists() and not any(output for output, _ in outputs)


def test_other_commands_are_refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("RANK", "0")
    assert main(["predict", "model.safetensors", "images"]) == 2
    assert "`dept predict` was started 4 times at once. Only train, adapt, uda share" in capsys.readouterr().err
    monkeypatch.setenv("RANK", "3")
    with pytest.raises(SystemExit) as end:
        main(["predict", "model.safetensors", "images"])
    assert end.value.code == 2 and capsys.readouterr().err == ""
