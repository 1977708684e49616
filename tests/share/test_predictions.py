"""`dept predict` in the formats of other tools, before and after side by side."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch

from dept.cli.main import main
from dept.core.adapter import Adapter
from dept.inference import predict
from dept.models.files import adapter_meta, load, save_adapter
from dept.models.model import fingerprint
from dept.runs.train import TrainRun
from support import CLASSES


@pytest.fixture(scope="module")
def adapter(source_run: TrainRun, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One after which everything is blue."""
    model = load(source_run.file)
    made = Adapter.of(model, ["head.weight", "head.bias"])
    made.tensors["head.bias"] += torch.tensor([9.0, 0.0, 0.0])
    made.meta = adapter_meta(model, backbone_sha256=fingerprint(model))
    return save_adapter(made, tmp_path_factory.mktemp("adapters") / "blue.safetensors")


@pytest.fixture
def argv(source_run: TrainRun, target_images: Path, adapter: Path) -> list[str]:
    return ["predict", str(source_run.file), str(target_images), "--adapter", str(adapter), "--device", "cpu"]


@pytest.fixture
def before(source_run: TrainRun, target_images: Path) -> dict[str, str]:
    return {one.path: one.label for one in predict(load(source_run.file), target_images, device="cpu")}


def test_csv(argv: list[str], before: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*argv, "--both", "--topk", "2"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    columns = ["before", "before_confidence", "before_topk", "after", "after_confidence", "after_topk"]
    assert list(rows[0]) == ["path", "changed", *columns]
    assert {row["path"]: row["before"] for row in rows} == before
    assert len(set(before.values())) > 1 and {row["after"] for row in rows} == {"blue"}
    assert all(row["changed"] == str(row["before"] != "blue").lower() for row in rows)
    assert len(rows[0]["after_topk"].split()) == 2 and float(rows[0]["after_confidence"]) > 0.5


def test_jsonl(argv: list[str], before: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*argv, "--both", "--out", str(tmp_path / "both.jsonl"), "--features"]) == 0
    changed = sum(label != "blue" for label in before.values())
    assert f"10 predictions in {tmp_path / 'both.jsonl'}, {changed} of them changed" in capsys.readouterr().err
    rows = [json.loads(line) for line in (tmp_path / "both.jsonl").read_text().splitlines()]
    assert {row["path"]: row["before"]["label"] for row in rows} == before
    assert set(rows[0]) == {"path", "changed", "before", "after"} and len(rows[0]["after"]["features"]) == 32
    assert rows[0]["after"]["topk"][0]["label"] == "blue"


def test_fiftyone(argv: list[str], before: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What FiftyOne's importer of data sets without a version asks for: filepath, tags, labels by class name."""
    out = tmp_path / "set"
    assert main([*argv, "--both", "--format", "fiftyone", "--out", str(out)]) == 0
    assert "fiftyone.types.FiftyOneDataset" in capsys.readouterr().err
    meta = json.loads((out / "metadata.json").read_text())
    assert "version" not in meta and meta["info"]["classes"] == list(CLASSES)
    samples = json.loads((out / "samples.json").read_text())["samples"]
    assert sorted(one["before"]["label"] for one in samples) == sorted(before.values())
    for one in samples:
        assert Path(one["filepath"]).is_absolute() and Path(one["filepath"]).is_file()
        assert one["before"].keys() == {"_cls", "tags", "label", "confidence", "logits"}
        assert one["after"]["_cls"] == "Classification" and 0 < one["after"]["confidence"] <= 1
        assert one["tags"] == (["changed"] if one["before"]["label"] != one["after"]["label"] else [])
    assert main([*argv, "--format", "fiftyone", "--out", str(out)]) == 0
    alone = json.loads((out / "samples.json").read_text())["samples"][0]
    assert alone["prediction"]["label"] == "blue" and "before" not in alone


def test_label_studio(argv: list[str], before: dict[str, str], tmp_path: Path) -> None:
    out = tmp_path / "tasks"
    assert main([*argv, "--both", "--format", "label-studio", "--out", str(out)]) == 0
    tasks = json.loads((out / "label_studio.json").read_text())
    assert {task["data"]["image"]: task["data"]["before"] for task in tasks} == before
    assert all(task["data"]["picture"].startswith("data:image/jpeg;base64,") for task in tasks)
    old, new = tasks[0]["predictions"]
    assert (old["model_version"], new["model_version"]) == ("before", "after") and 0 < new["score"] <= 1
    (choice,) = new["result"]
    choices = ElementTree.parse(out / "label_studio.xml").getroot().find("Choices")
    assert choices is not None and choice["from_name"] == choices.get("name")
    assert choice["value"]["choices"] == ["blue"] and [one.get("value") for one in choices] == list(CLASSES)


def test_refusals(argv: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def refused(words: list[str], said: str) -> None:
        assert main(words) == 2
        assert said in capsys.readouterr().err

    refused([*argv[:3], "--both"], "--both compares predictions without and with an adapter")
    refused([*argv, "--format", "fiftyone"], "Give their folder as --out")
    refused([*argv, "--format", "label-studio", "--out", str(tmp_path / "x.json")], "Give their folder as --out")
    (tmp_path / "file").write_text("")
    refused([*argv, "--format", "fiftyone", "--out", str(tmp_path / "file")], "is a file, not a folder")
