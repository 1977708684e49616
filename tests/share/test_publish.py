"""Publishing a run and loading what others published; the hub is a folder here."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from huggingface_hub.errors import RepositoryNotFoundError

import dept
from dept.cli.main import main
from dept.errors import DataError, UsageError
from dept.io import read_meta, write_json
from dept.models.hub import Reference
from dept.runs.read import read_run
from dept.runs.seal import sealed
from dept.runs.train import TrainRun
from dept.share.card import model_card
from fake_hub import FakeHub


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeHub:
    return FakeHub(tmp_path / "hub", monkeypatch)


@pytest.fixture(scope="module")
def adapted(
    source_run: TrainRun, target_images: Path, target_labelled: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A run that was scored on labelled images."""
    out = tmp_path_factory.mktemp("runs") / "site"
    settings = {"method": "neo", "accept": True, "score_on": target_labelled, "device": "cpu"}
    return dept.adapt(source_run.file, target_images, out=out, **settings).folder


def test_push_and_load(
    hub: FakeHub, adapted: Path, source_run: TrainRun, target_images: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["push", str(adapted), "hf-hub:us/site", "--private"]) == 0
    out = capsys.readouterr().out
    assert "Published: https://hub.example/us/site/commit/1" in out and "--adapter hf-hub:us/site" in out
    created, uploaded = hub.uploads
    assert created == {"created": "us/site", "private": True, "exist_ok": True} and uploaded["repo_id"] == "us/site"
    assert sorted(path.name for path in (hub.root / "us/site").iterdir()) == ["README.md", "adapter.safetensors"]
    argv = ["predict", str(source_run.file), str(target_images), "--adapter"]
    assert main([*argv, "hf-hub:us/site"]) == 0
    fetched = capsys.readouterr().out
    assert main([*argv, str(adapted / "adapter.safetensors")]) == 0
    assert fetched == capsys.readouterr().out
    read = dept.Adapter.from_pretrained("us/site", revision="main")
    images = torch.randn(2, 3, 32, 32)
    expected = dept.load(source_run.file, adapter=adapted / "adapter.safetensors")
    assert torch.equal(dept.load(source_run.file, adapter=read)(images), expected(images))
    assert hub.asked[-1] == ("us/site", "adapter.safetensors", "main")


def test_the_card(hub: FakeHub, adapted: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "to"
    assert main(["push", str(adapted), "hf-hub:us/site", "--to", str(folder)]) == 0
    assert "Nothing was uploaded" in capsys.readouterr().out and not hub.uploads
    card = (folder / "README.md").read_text()
    result = read_run(adapted).result
    assert card.startswith("---\nlibrary_name:") and '"neo"' in card.split("---")[1]
    for part in ("Did it help?", "How to load it", "Data", "Method", "Protocol"):
        assert f"\n## {part}\n" in card
    assert "dept predict MODEL.safetensors IMAGES --adapter hf-hub:us/site" in card
    assert f"{100 * result['after']['top1']:.1f} % after" in card and "10 unlabelled images of `target`" in card
    assert result["protocol"]["list_sha256"] in card and "`blue`" in card and "- Estimate without labels. " in card
    # Neither the card nor the file tells where anything lay.
    for file in folder.iterdir():
        assert str(tmp_path.parent).encode() not in file.read_bytes()


def test_the_card_of_a_model_from_the_hub_names_it(adapted: Path) -> None:
    run = read_run(adapted)
    run.events[0]["inputs"]["model"] = "hf-hub:us/source@v1"
    card = model_card(read_meta(adapted / "adapter.safetensors"), run, Reference("us/site", "v2"))
    assert 'base_model: "us/source"' in card and "dept predict hf-hub:us/source@v1 IMAGES" in card
    assert 'adapter="hf-hub:us/site@v2"' in card
    meta = read_meta(adapted / "adapter.safetensors")
    named_alike = model_card({**meta, "method": "dept"}, None, Reference("us/site"))
    assert 'tags: ["dept", "domain-adaptation", "test-time-adaptation"]' in named_alike
    hostile = {**meta, "classes": ["a`b\n---\n# x", "```"]}
    assert "`ab --- # x`" in model_card(hostile, None, Reference("us/site"))


def test_a_trained_model_is_published_too(
    hub: FakeHub, source_run: TrainRun, target_images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["push", str(source_run.folder), "hf-hub:us/source@v1"]) == 0
    assert "dept predict hf-hub:us/source@v1 IMAGES" in capsys.readouterr().out
    assert hub.uploads[1] == {"branch": "v1", "repo_id": "us/source", "exist_ok": True}
    card = (hub.root / "us/source/README.md").read_text()
    assert "held-out source images" in card and 'dept.load("hf-hub:us/source@v1")' in card
    assert dept.load("hf-hub:us/source").classes == dept.load(source_run.file).classes


def test_the_python_way(hub: FakeHub, adapted: Path, source_run: TrainRun, tmp_path: Path) -> None:
    adapter = dept.Adapter.from_pretrained(adapted)
    assert adapter.push_to_hub("us/python", branch="v1") == "https://hub.example/us/python/commit/1"
    assert hub.uploads[-1]["revision"] == "v1"
    card = (hub.root / "us/python/README.md").read_text()
    assert "hf-hub:us/python" in card and "Did it help?" in card
    folder = dept.Adapter.from_pretrained("us/python").save_pretrained(tmp_path / "folder")  # only the file is known
    assert "Did it help?" not in (folder / "README.md").read_text()
    again = dept.Adapter.from_pretrained(folder)
    assert again.diff(adapter) == dict.fromkeys(adapter.tensors, 0.0) and again.meta["method"] == "neo"
    with pytest.raises(UsageError, match="does not say which model"):
        dept.Adapter(adapter.tensors).push_to_hub("us/x")
    with pytest.raises(DataError, match="made for another backbone"):
        other = replace(again, meta={**again.meta, "backbone_sha256": "0" * 64})
        dept.load(source_run.file, adapter=other)
    hub.online = False
    hub.forget()
    with pytest.raises(DataError, match="no connection"):
        dept.Adapter.from_pretrained("us/python")


def test_what_is_not_published(
    hub: FakeHub, adapted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    run.mkdir()
    for file in adapted.iterdir():
        if file.is_file():
            (run / file.name).write_bytes(file.read_bytes())

    def refused(place: Path, repo: str, said: str, code: int = 2) -> None:
        assert main(["push", str(place), repo]) == code
        assert said in capsys.readouterr().err and not hub.uploads

    refused(run, "us/site", "is named hf-hub:USER/REPO")
    refused(run, "hf-hub:us/site/adapter.safetensors", "Give the repository alone, hf-hub:us/site")
    refused(tmp_path / "nothing", "hf-hub:us/site", "is not a folder")
    (run / "adapter.safetensors").rename(run / "adapter.rejected.safetensors")
    refused(run, "hf-hub:us/site", "counts as harmful and is not published")
    (run / "result.json").unlink()
    refused(run, "hf-hub:us/site", "the run has not finished")

    def nobody(**given: object) -> None:
        raise RepositoryNotFoundError.__new__(RepositoryNotFoundError)

    monkeypatch.setattr(hub, "create_repo", nobody)
    refused(adapted, "hf-hub:us/site", "(there is no such repository, or it is private). Log in with", code=3)


def test_a_harmful_adapter_is_not_published(hub: FakeHub, adapted: Path, tmp_path: Path) -> None:
    run = read_run(adapted)
    verdict = {"verdict": "harmful", "gain": -0.1, "ci95": [-0.2, -0.01], "p_value": 0.01, "images": 10, "labels": {}}
    counts = {"disagreeing": 9, "right_after": 1, "right_before": 8, "neither": 0, "products": [run.product_sha256]}
    write_json(adapted / "verdict.json", sealed({**verdict, **counts}))
    try:
        assert main(["push", str(adapted), "hf-hub:us/site"]) == 2 and not hub.uploads
        with pytest.raises(UsageError, match="counts as harmful"):
            dept.Adapter.from_pretrained(adapted).push_to_hub("us/site")
    finally:
        (adapted / "verdict.json").unlink()
