"""Archives and addresses from the command line: the same results as from a folder, and sentences for bad ones."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from dept.cli.main import main
from dept.data.images import find_labelled
from dept.io import read_tensors
from dept.runs.train import TrainRun
from support import same_bits

TENT = ["--method", "tent", "--batch", "4", "--device", "cpu"]


@pytest.fixture
def archive(target_images: Path, tmp_path: Path) -> Path:
    """The unlabelled target images as a tar."""
    with tarfile.open(tmp_path / "site.tar", "w") as tar:
        tar.add(target_images, ".")
    return tmp_path / "site.tar"


def ran(capsys: Any, *words: object) -> str:
    assert main([str(word) for word in words]) in (0, None)
    return str(capsys.readouterr().out)


def test_adapt_equals_the_folder(source_run: TrainRun, target_images: Path, archive: Path, tmp_path: Path) -> None:
    for name, images in (("folder", target_images), ("tar", archive)):
        words = ["adapt", source_run.file, images, "--out", tmp_path / name, *TENT, "--max-iters", 3, "--accept"]
        assert main([str(word) for word in words]) == 0
    (one, first), (two, second) = (
        (read_tensors(tmp_path / name / "adapter.safetensors", "adapter")[0], tmp_path / name / "result.json")
        for name in ("folder", "tar")
    )
    assert same_bits(one, two)
    hashes = [json.loads(file.read_text())["protocol"]["list_sha256"] for file in (first, second)]
    assert hashes[0] == hashes[1], "names below an archive are those below the folder that it was made of"


def test_predict_and_stream_equal_the_folder(
    source_run: TrainRun, target_images: Path, archive: Path, tmp_path: Path, capsys: Any
) -> None:
    assert ran(capsys, "predict", source_run.file, target_images) == ran(capsys, "predict", source_run.file, archive)
    for name, images in (("folder", target_images), ("tar", archive)):
        ran(capsys, "stream", source_run.file, images, "--out", tmp_path / name, *TENT)
    folder, tar = (
        [json.loads(line) for line in (tmp_path / name / "predictions.jsonl").read_text().splitlines()]
        for name in ("folder", "tar")
    )
    assert [row | {"path": ""} for row in folder] == [row | {"path": ""} for row in tar] and len(tar) == 10
    assert [row["path"].replace(str(target_images), str(archive)) for row in folder] == [row["path"] for row in tar]


def test_a_stream_from_an_archive_resumes(source_run: TrainRun, archive: Path, tmp_path: Path, capsys: Any) -> None:
    """Lines after the last save are learned from again, from their places in the archive."""
    words = ["stream", source_run.file, archive, *TENT, "--out"]
    ran(capsys, *words, tmp_path / "whole")
    ran(capsys, *words, tmp_path / "cut")
    lines = (tmp_path / "cut" / "predictions.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "cut" / "predictions.jsonl").write_text("".join(lines[:8]))
    (tmp_path / "cut" / "resume.safetensors").unlink()  # as if it had been killed before its first save
    ran(capsys, *words, tmp_path / "cut", "--resume")
    one, two = (read_tensors(tmp_path / name / "adapter.safetensors", "adapter")[0] for name in ("whole", "cut"))
    assert same_bits(one, two)


def test_evaluate_with_labels_in_the_archive(
    source_run: TrainRun, target_labelled: Path, tmp_path: Path, capsys: Any
) -> None:
    images = find_labelled(target_labelled)
    with tarfile.open(tmp_path / "labelled.tar", "w") as tar:
        for number, (path, label) in enumerate(zip(images.paths, images.labels or (), strict=True)):
            tar.add(str(path), f"{number:03}.png")
            (tmp_path / "label").write_text(images.classes[label])
            tar.add(tmp_path / "label", f"{number:03}.cls")
    folder, tarred = (
        json.loads(ran(capsys, "evaluate", source_run.file, place, "--json", "--device", "cpu"))
        for place in (target_labelled, tmp_path / "labelled.tar")
    )
    assert folder == tarred


def test_an_address(source_run: TrainRun, target_images: Path, tmp_path: Path, capsys: Any) -> None:
    fsspec = pytest.importorskip("fsspec")
    system = fsspec.filesystem("memory")
    system.put(str(target_images), f"/{tmp_path.name}", recursive=True)
    url = f"memory://{tmp_path.name}"
    assert ran(capsys, "predict", source_run.file, url) == ran(capsys, "predict", source_run.file, target_images)
    words = ["adapt", source_run.file, url, "--out", tmp_path / "run", *TENT, "--max-iters", 2, "--accept"]
    assert main([str(word) for word in words]) == 0
    start = json.loads((tmp_path / "run" / "events.jsonl").read_text().splitlines()[0])
    assert start["inputs"]["images"] == url
    system.store.clear()


@pytest.mark.parametrize(
    ("images", "code", "said"),
    [
        ("gone.tar", 3, "gone.tar does not exist. Give a folder of images, one image, a .tar archive"),
        ("text.tar", 3, "the archive is damaged after 0 of its files"),
        ("memory://nothing/here", 3, "memory://nothing/here does not exist, or holds nothing"),
        ("warp://x/y", 2, "warp://x/y is not an address that fsspec knows"),
        ("ftp://me:secret@host/x", 2, "holds a password"),
    ],
)
def test_bad_places_are_sentences(
    source_run: TrainRun,
    tmp_path: Path,
    capsys: Any,
    monkeypatch: pytest.MonkeyPatch,
    images: str,
    code: int,
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.tar").write_text("hello\n" * 200)
    for command in ("predict", "adapt"):
        assert main([command, str(source_run.file), images, *(["--out", "run"] if command == "adapt" else [])]) == code
        error = capsys.readouterr().err
        assert said in error and "Traceback" not in error and "secret" not in error
    assert not (tmp_path / "run" / "config.json").exists()
