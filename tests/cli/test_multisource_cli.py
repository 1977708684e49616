"""Several sources on the command line: train, info, adapt, ensembles; every bad input as a sentence with a code."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from dept.cli.main import main
from dept.data.images import find_labelled
from dept.inference import mean_probabilities, predict
from dept.models.files import load
from support import ARCH, PROJECTION, TIMM, write_labelled

MODEL = ["--arch", ARCH, "--no-pretrained", "--timm", json.dumps(TIMM), "--stages", "2", "--prompts", "4"]
HEADS = [word for name, value in PROJECTION.items() for word in (f"--{name.replace('_', '-')}", str(value))]
SMALL = ["--batch", "4", "--max-iters", "1", "--device", "cpu", *HEADS]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("domains")
    write_labelled(folder / "photo", 3)
    write_labelled(folder / "dark", 2, seed=1, dim=0.4)
    return folder


@pytest.fixture(scope="module")
def model(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "multi"
    assert main(["train", str(root / "photo"), str(root / "dark"), "--out", str(out), *MODEL, *SMALL]) == 0
    return out / "model.safetensors"


def failure(capsys: pytest.CaptureFixture[str], code: int, *words: Any) -> str:
    """Run a command that must fail with one sentence; returns it."""
    capsys.readouterr()
    assert main([str(word) for word in words]) == code
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("dept: ") and len(err.strip().splitlines()) == 1
    return err


def test_info_shows_the_domains(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", str(model)]) == 0
    assert "photo, dark (prompts per stage: 2 shared, 2 for each domain)" in capsys.readouterr().out
    assert main(["info", str(model), "--json"]) == 0
    tensors = json.loads(capsys.readouterr().out)["tensors"]
    assert tensors["prompts"] == [2, 4, 32] and tensors["domains.own.1"] == [2, 2, 32]


def test_adapt_prints_and_keeps_the_weights(
    model: Path, root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["adapt", model, root / "dark", "--out", tmp_path / "run", "--domain-weights", "signature",
             "--method", "source", "--device", "cpu"]  # fmt: skip
    assert main([str(word) for word in words]) == 0
    assert "source domains by signature: photo 0." in capsys.readouterr().out
    record = json.loads((tmp_path / "run" / "result.json").read_text())["domains"]
    assert record["weights"][1] > 0.5
    assert main(["info", str(tmp_path / "run" / "adapter.safetensors")]) == 0
    assert f"dark {record['weights'][1]:.2f}" in capsys.readouterr().out


def test_one_union(root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for out, words in (("plain", ["--stages", "0"]), ("prompted", ["--domain-prompts", "0"])):
        argv = ["train", str(root / "photo"), str(root / "dark"), "--out", str(tmp_path / out), *MODEL, *SMALL, *words]
        assert main([*argv, "--json"]) == 0
        result = json.loads(capsys.readouterr().out)
        assert result["protocol"]["method"] == "source-training" and len(result["domains"]) == 2
        assert load(tmp_path / out / "model.safetensors").domains is None


def test_an_ensemble_of_adapters_and_of_models(
    model: Path, root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The mean of the members' probabilities, against `predict` of each."""
    adapters = []
    for rate in ("0.05", "2.0"):
        out = tmp_path / rate
        words = ["adapt", model, root / "dark", "--out", out, "--method", "tent", "--lr", rate, "--batch", "4"]
        assert main([*map(str, words), "--device", "cpu"]) == 0
        adapters.append(out / "adapter.safetensors")
    images = find_labelled(root / "dark")
    members = []
    for adapter in adapters:
        rows = [dict(p.topk) for p in predict(load(model, adapter=adapter), images, topk=3, device="cpu")]
        members.append(torch.tensor([[row[name] for name in images.classes] for row in rows]))
    nll = -mean_probabilities(members)[range(6), list(images.labels or ())].log().mean()
    base = ["evaluate", str(model), str(root / "dark"), "--json", "--device", "cpu"]
    for words in (
        ["--adapter", str(adapters[0]), "--adapter", str(adapters[1])],
        ["--adapter", str(adapters[0]), "--member", f"{model},{adapters[1]}"],
    ):
        capsys.readouterr()
        assert main([*base, *words]) == 0
        assert json.loads(capsys.readouterr().out)["nll"] == pytest.approx(float(nll), abs=1e-4)
    capsys.readouterr()
    assert main([*base, "--adapter", str(adapters[0])]) == 0
    assert json.loads(capsys.readouterr().out)["nll"] != pytest.approx(float(nll), abs=1e-5)
    assert "does not exist" in failure(capsys, 3, *base, "--member", tmp_path / "none.safetensors")


def test_a_missing_class_is_a_note(root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(root / "dark" / "red", tmp_path / "sketch" / "red")
    out = str(tmp_path / "run")
    assert main(["train", str(root / "photo"), str(tmp_path / "sketch"), "--out", out, *MODEL, *SMALL]) == 0
    assert "Note: Source domain sketch" in (err := capsys.readouterr().err) and "no image of blue, green" in err


def test_refusals(root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    photo, dark, out = root / "photo", root / "dark", ["--out", tmp_path / "run", *MODEL, *SMALL]
    assert "is given twice" in failure(capsys, 2, "train", photo, photo, *out)
    assert "lies inside the source" in failure(capsys, 2, "train", photo, photo / "red", *out)
    (tmp_path / "empty" / "red").mkdir(parents=True)
    assert "empty holds no images" in failure(capsys, 3, "train", photo, tmp_path / "empty", *out)
    assert "nowhere does not exist" in failure(capsys, 3, "train", photo, tmp_path / "nowhere", *out)
    shutil.copytree(photo / "red", tmp_path / "other" / "cat")
    assert "none in common" in failure(capsys, 3, "train", photo, tmp_path / "other", *out)
    for name in ("Red", "blue"):
        shutil.copytree(photo / name.lower(), tmp_path / "capitals" / name)
    assert "two spellings" in failure(capsys, 3, "train", photo, tmp_path / "capitals", *out)
    assert "--batch 1 is smaller" in failure(capsys, 2, "train", photo, dark, *out, "--batch", "1")
    assert "must be left to share" in failure(capsys, 2, "train", photo, dark, *out, "--domain-prompts", "4")
    assert not (tmp_path / "run").exists()


def test_no_source_at_all(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        code = main(["train", "--out", str(tmp_path / "run"), *MODEL])
    except SystemExit as stop:  # the parser's own refusal
        code = int(stop.code or 0)
    assert code == 2 and "Traceback" not in capsys.readouterr().err
