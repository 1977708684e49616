from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

from dept.bench import cost, flops, growth
from dept.cli.main import main
from dept.core.bank import MemoryBank
from dept.methods.base import Progress
from dept.methods.dept import DePT
from support import random_batch, tiny_model

REFERENCE = Path(__file__).parents[2] / "benchmarks" / "reference"


def test_bounds_of_the_published_columns() -> None:
    """Ratios to full tuning for ViT-B/16 at 224 px, 50 prompts."""
    shape = flops.Shape()
    assert flops.plain_forward(shape) == pytest.approx(17.5e9, rel=0.01)  # the well-known 17.5 GMACs
    bounds = [flops.step_bound(name, shape, m, 50) for name, m in (("S50", 1), ("G50", 4), ("D50", 12))]
    assert bounds == pytest.approx([0.79, 0.75, 0.64], abs=0.015)
    assert flops.step_bound("LN", shape) == pytest.approx(2 / 3)
    assert flops.step_bound("G50", shape, 4, 50, checkpoint=True) == pytest.approx(1.5 * bounds[1])


def test_prompted_bound_counts_layer_by_layer() -> None:
    """M = 2 of 4 layers, by hand: shared first layers, K and V only in last ones, one query at the very end."""
    shape = flops.Shape(layers=4, width=2, tokens=5, patch_inputs=3, mlp_ratio=1)
    n, p, d = 5, 2, 2

    def layer(rows: int, projected: int) -> int:
        return rows * 4 * d * d + projected * 2 * d * d + 2 * rows * (n + p) * d

    expected = 4 * 3 * d + layer(n + p, n) + layer(n, n + p) + layer(n + p, n) + layer(1, n + p)
    assert flops.prompted_forward(shape, 2, 2) == expected


def test_peak_counts_what_is_alive() -> None:
    module = torch.nn.Linear(4, 4)

    def allocate() -> None:
        first = torch.empty(1_000_000)
        del first
        second = torch.empty(500_000)
        del second

    weights = 4 * (16 + 4)
    assert cost.peak_bytes(allocate, module) == pytest.approx(4_000_000 + weights, abs=2000)


def test_command_prints_every_column(capsys: pytest.CaptureFixture[str]) -> None:
    options = json.dumps({"img_size": 16, "patch_size": 8, "embed_dim": 24, "depth": 12, "num_heads": 2})
    arguments = ["bench", "cost", "--arch", "vit_tiny_patch16_224", "--batch", "4", "--iters", "1", "--timm", options]
    assert main([*arguments, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert list(result)[:4] == ["Full", "Feature", "LN", "S50"] and "G50, checkpointed" in result
    assert result["Full"]["time_ratio"] == result["Full"]["memory_ratio"] == 1.0
    assert set(result["G50"]) == {"time_ratio", "memory_ratio", "seconds", "megabytes", "flop_bound", "params"}
    for name in ("time_ratio", "memory_ratio"):
        whole = {"time_ratio": "seconds", "memory_ratio": "megabytes"}[name]
        assert result["G50"][whole] / result["Full"][whole] == pytest.approx(result["G50"][name], rel=0.05)
    assert result["G50"]["params"] == 4 * 50 * 24 + 24 * 12 + 12
    assert result["LN"]["memory_ratio"] < 1.0
    assert main([*arguments, "--part", "inference", "--device", "cpu"]) == 0
    shown = capsys.readouterr().out
    assert "G50 mixed" in shown and "Batch 4, median of 1 rounds, on " in shown


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--iters", "0"], "--iters must be at least 1, found 0"),
        (["--device", "cuda:77"], "There is no device 'cuda:77'"),
        (["--device", "mps"], "--device must be"),
    ],
)
def test_what_cannot_be_measured_is_a_sentence(
    flags: list[str], said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert main(["bench", "cost", "--arch", "vit_tiny_patch16_224", "--batch", "2", *flags]) == 2
    assert said in capsys.readouterr().err


def test_the_clock_waits_for_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    diary: list[str] = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: diary.append(f"wait for {device}"))
    monkeypatch.setattr(cost.time, "perf_counter", lambda: diary.append("clock") or float(len(diary)))
    cost.interleaved({"a": lambda: diary.append("step")}, 1, torch.device("cuda:0"))
    measured = ["wait for cuda:0", "clock", "step", "wait for cuda:0", "clock"]
    assert diary == [*measured[:-1], *measured]  # the first turn is not measured
    assert cost.synchroniser(torch.device("cpu"))() is None


def test_the_peak_of_a_gpu_is_that_of_the_second_step(monkeypatch: pytest.MonkeyPatch) -> None:
    diary: list[object] = []
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device: diary.append(device))
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: 7)
    assert cost._cuda_peak(lambda: diary.append("step"), torch.device("cuda")) == 7
    assert diary == ["step", torch.device("cuda"), "step"]


def straightforward() -> ModuleType:
    spec = importlib.util.spec_from_file_location("straightforward", REFERENCE / "straightforward.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["straightforward"] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("clip", [1.0, 0.01])
def test_our_step_equals_the_straightforward_one(clip: float) -> None:
    """Loss terms of four steps, so that teacher, centre, bank, clipping and optimiser are compared as well."""
    torch.manual_seed(0)
    model = tiny_model(5, stages=4, prompts=3, depth=4)
    method = DePT(
        model,
        DePT.Config(batch=4, lr=0.05, clip=clip, projection_hidden=16, projection_bottleneck=8, projection_out=12),
    )
    features, probabilities = torch.randn(60, model.head.in_features), torch.rand(60, 5).softmax(dim=1)
    method.bank = MemoryBank(60, model.head.in_features, 5)
    method.bank.write(features, probabilities)
    method.at(Progress(0, 10**9, 0))
    reference = straightforward().StraightforwardDePT(model, method.config, (features, probabilities))
    for seed in range(4):
        batch = random_batch("wss", 4, seed=seed)
        ours, theirs = method.step(batch), reference.step(*batch.views)
        for name, value in theirs.items():
            assert ours[name] == pytest.approx(value, abs=1e-5), (seed, name)


def test_lean_uses_the_teacher_for_its_labels() -> None:
    model = tiny_model(5, stages=2, prompts=3)
    settings = {"projection_hidden": 16, "projection_bottleneck": 8, "projection_out": 12}
    method = DePT(model, DePT.Config(lean=True, **settings))
    method.bank = MemoryBank(20, model.head.in_features, 5)
    method.bank.write(torch.randn(20, model.head.in_features), torch.rand(20, 5).softmax(dim=1))
    reads: list[int] = []
    original = model.read
    model.read = lambda *a, **k: reads.append(1) or original(*a, **k)  # type: ignore[method-assign]
    batch = random_batch("wss", 4)
    method.at(Progress(0, 10, 0))
    method.step(batch)
    assert len(reads) == 2  # teacher (both views in one batch) and student: no forward of the weak view by itself


def test_growth_has_every_series_and_a_figure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = json.dumps({"img_size": 16, "patch_size": 8, "embed_dim": 24, "depth": 4, "num_heads": 2})
    figure = tmp_path / "growth.png"
    arguments = ["--arch", "vit_tiny_patch16_224", "--batch", "4", "--iters", "1", "--timm", options]
    assert main(["bench", "cost", "--part", "growth", *arguments, "--plot", str(figure), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    sizes = {kind: [int(key.split()[1]) for key in result if key.startswith(kind)] for kind in growth.PANELS}
    assert sizes == {
        "prompts": [0, 25, 50, 100, 200],
        "batch": [1, 2, 4, 8],
        "images": [8, 16, 32, 64],
        "bank": [5000, 10000, 20000, 40000],
    }
    memory = [result[f"prompts {p}"]["memory_ratio"] for p in sizes["prompts"]]
    assert memory == sorted(memory) and memory[0] == 1.0 < memory[-1]
    assert result["images 64"]["memory_ratio"] == pytest.approx(1.0, abs=0.05)  # the bank is all that grows
    assert figure.read_bytes().startswith(b"\x89PNG")
