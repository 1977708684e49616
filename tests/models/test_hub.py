"""hf-hub:USER/REPO[@REVISION][/FILE] wherever a model, an adapter or statistics are read; the hub is a folder here."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch

import dept
from dept.cli.main import main
from dept.core.adapter import Adapter
from dept.errors import DataError, UsageError
from dept.models.files import adapter_meta, load, load_model, save_adapter, save_model
from dept.models.foreign.read import read_foreign
from dept.models.hub import Reference, located, parse
from dept.models.model import Model, fingerprint, from_checkpoint
from dept.models.stats import load_stats
from dept.runs.inputs import Missing, models_of
from dept.runs.read import read_run
from dept.runs.train import TrainRun
from fake_hub import FakeHub
from foreign_models import SIZE, config_of, folder, vit_tensors
from support import CLASSES, spread_predictions, tiny_model

PROCESSOR = "preprocessor_config.json"
LABELS = {str(number): name for number, name in enumerate(CLASSES)}


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeHub:
    return FakeHub(tmp_path / "hub", monkeypatch)


@pytest.fixture
def vit(hub: FakeHub) -> Path:
    """somebody/vit: a model as transformers publishes it."""
    return folder(hub.root / "somebody" / "vit", vit_tensors(), config_of("vit", id2label=LABELS))


def images() -> torch.Tensor:
    return torch.randn(2, 3, SIZE, SIZE)


def adapter_of(model: Model, path: Path) -> Path:
    adapter = Adapter.of(model, ["head.weight", "head.bias"])
    adapter.tensors["head.bias"] += 1.0
    adapter.meta = adapter_meta(model, backbone_sha256=fingerprint(model))
    return save_adapter(adapter, path)


def test_references() -> None:
    assert parse("hf-hub:a/b") == Reference("a/b")
    assert parse(Path("hf-hub:a/b-c@v1.2/x/d.safetensors")) == Reference("a/b-c", "v1.2", "x/d.safetensors")
    for name in ("hf-hub:model", "hf-hub:../../etc", "hf-hub:a/b/../c", "hf-hub:a/b@", "hf-hub:a/b/.c", "hf-hub:/a/b"):
        with pytest.raises(UsageError, match="is named hf-hub:USER/REPO"):
            parse(name)
    assert located("some/file", ("x",)) == Path("some/file")


def test_a_model_is_fetched_only_when_named(hub: FakeHub, vit: Path) -> None:
    found = read_foreign("hf-hub:somebody/vit@v2")
    assert found.classes == CLASSES and found.file == vit / "model.safetensors"
    assert hub.asked == [("somebody/vit", f, "v2") for f in ("model.safetensors", "config.json", PROCESSOR)]
    assert read_foreign("hf-hub:somebody/vit@v2").file == found.file and len(hub.asked) == 3  # once per process
    (vit / "model.safetensors").rename(vit / "other.safetensors")
    assert read_foreign("hf-hub:somebody/vit/other.safetensors").classes == CLASSES
    with pytest.raises(DataError, match=r"somebody/vit on the Hugging Face hub has no model.safetensors or pytorch"):
        read_foreign("hf-hub:somebody/vit")
    hub.online = False
    with pytest.raises(DataError, match=r"could not be fetched .*\(no connection\).*give their folder"):
        read_foreign("hf-hub:somebody/vit@v3")


def test_models_and_adapters_of_our_own(hub: FakeHub, tmp_path: Path) -> None:
    model, batch = tiny_model(), torch.randn(2, 3, 32, 32)
    save_model(model, hub.root / "us/source/model.safetensors")
    adapter_of(model, hub.root / "us/site/adapter.safetensors")
    adapted = dept.load("hf-hub:us/source", adapter="hf-hub:us/site")
    with torch.no_grad():
        torch.testing.assert_close(adapted(batch), model(batch) + 1.0)
        assert torch.equal(load(hub.root / "us/source/model.safetensors")(batch), model(batch))
    with pytest.raises(DataError, match=r"us/site on the Hugging Face hub has no model.safetensors"):
        load_model("hf-hub:us/site")
    with pytest.raises(DataError, match=r"us/source on the Hugging Face hub has no stats.safetensors"):
        load_stats("hf-hub:us/source", model)


def test_what_converts_without_a_question_is_converted(hub: FakeHub, vit: Path, tmp_path: Path) -> None:
    found = read_foreign(vit)
    expected, batch = from_checkpoint(found, CLASSES), images()
    for place in ("hf-hub:somebody/vit", vit, str(vit)):
        model = load_model(place)
        assert model.classes == CLASSES and torch.equal(model(batch), expected(batch))
        assert fingerprint(model) == fingerprint(expected)
    adapter_of(expected, tmp_path / "adapter.safetensors")
    assert load("hf-hub:somebody/vit", adapter=tmp_path / "adapter.safetensors").classes == CLASSES
    settings = json.loads((vit / "config.json").read_text())
    del settings["id2label"]
    (vit / "config.json").write_text(json.dumps(settings))
    with pytest.raises(UsageError, match=r"without class names. Convert it with `dept convert`"):
        load_model(vit)
    with pytest.raises(DataError, match="holds plain weights without dept's metadata"):
        load_model(vit / "model.safetensors")  # a file of the user's may be a mistake


def test_the_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch, hub: FakeHub) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(UsageError, match=r"pip install 'dept\[hub\]'"):
        load_model("hf-hub:somebody/vit")


def test_a_run_folder_is_not_taken_for_a_model(tmp_path: Path) -> None:
    save_model(tiny_model(), tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(DataError, match=r"is a folder.*Did you mean .*model.safetensors"):
        load_model(tmp_path)


def test_the_commands_take_references(
    hub: FakeHub, target_images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_model(spread_predictions(tiny_model()), hub.root / "us/source/model.safetensors")
    run, words = tmp_path / "run", ["--method", "neo", "--accept"]
    assert main(["adapt", "hf-hub:us/source", str(target_images), "--out", str(run), *words]) == 0
    assert f"dept predict hf-hub:us/source IMAGES --adapter {run}" in capsys.readouterr().out
    (hub.root / "us/site").mkdir()
    (run / "adapter.safetensors").rename(hub.root / "us/site/adapter.safetensors")
    argv = ["predict", "hf-hub:us/source", str(target_images), "--adapter", "hf-hub:us/site@main"]
    assert main(argv) == 0
    assert capsys.readouterr().out.startswith("path,label,confidence")
    assert main(["info", "hf-hub:us/site"]) == 0 and "dept adapter" in capsys.readouterr().out
    assert main(["stats", "hf-hub:us/source", str(target_images), "--card"]) == 2
    assert "--card writes into a model file" in capsys.readouterr().err
    hub.online = False
    assert main(["predict", "hf-hub:us/other", str(target_images)]) == 3
    assert "no connection" in capsys.readouterr().err
    assert main(["adapt", "hf-hub:nobody", str(target_images), "--out", str(tmp_path / "x")]) == 2


def test_a_run_folder_makes_nobody_connect(
    hub: FakeHub, source_run: TrainRun, target_images: Path, tmp_path: Path
) -> None:
    (hub.root / "us/source").mkdir(parents=True)
    (hub.root / "us/source/model.safetensors").write_bytes(source_run.file.read_bytes())
    out = tmp_path / "run"
    dept.adapt("hf-hub:us/source", target_images, out=out, method="neo", device="cpu", accept=True)
    run = read_run(out)
    assert run.inputs["model"] == "hf-hub:us/source"
    before, after = models_of(run)
    assert before is not None and before.classes == after.classes
    hub.cached = False
    hub.forget()
    with pytest.raises(Missing, match="was never fetched here"):
        models_of(run)
