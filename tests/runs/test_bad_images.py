"""Large sets: bad files are found as they come and replaced; what is known of files is not found out twice."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import dept.data.images as images_module
import dept.runs.bad_images as bad_images
import dept.runs.job as job
from dept.cli.main import main
from dept.data.images import find_images, find_labelled, list_hash
from dept.data.index import FileIndex
from dept.data.loader import Runtime, TestPasses, Views, batches, decode_or_next, ordered_keys
from dept.errors import DataError, Interrupted
from dept.io import read_tensors, write_tensors
from dept.runs.adapt import adapt
from dept.runs.bad_images import replaces, unchecked
from dept.runs.file_index import FILE, read_index, write_index
from dept.runs.train import TrainRun, train
from dept.runs.uda import adapt_with_source
from support import PROJECTION, StopAfter, events, same_bits, tiny_model, write_labelled, write_unlabelled

TENT: dict[str, Any] = {"method": "tent", "batch": 4, "max_iters": 4, "device": "cpu"}
DEPT: dict[str, Any] = {"method": "dept", "batch": 4, "epochs": 2, "device": "cpu", **PROJECTION}
BAD = ("day1/cam b/img002.png", "img008.png")


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """Ten images, two of which do not decode."""
    folder = write_unlabelled(tmp_path / "site", 10, dim=0.6, noise=40)
    for name in BAD:
        (folder / name).write_bytes(b"no image")
    return folder


def mended(site: Path, name: str = "mended") -> Path:
    """The same folder, in which each bad file is a copy of the next good one."""
    names = find_images(site).names()
    copy = shutil.copytree(site, site.parent / name)
    for bad in BAD:
        after = [*names[names.index(bad) + 1 :], *names]
        shutil.copyfile(site / next(name for name in after if name not in BAD), copy / bad)
    return copy


def adapter(file: Path) -> dict[str, torch.Tensor]:
    return read_tensors(file, "adapter")[0]


@pytest.mark.parametrize("settings", [TENT, DEPT], ids=["tent", "dept"])
def test_a_bad_image_is_replaced_by_the_next_one(
    source_run: TrainRun, site: Path, tmp_path: Path, settings: dict[str, Any]
) -> None:
    """The run is the one on a folder with copies in place of the bad files, whatever the number of workers."""
    expected = adapt(source_run.file, mended(site), out=tmp_path / "expected", **settings)
    for workers in (0, 2):
        run = adapt(
            source_run.file, site, out=tmp_path / f"run{workers}", bad_images="replace", workers=workers, **settings
        )
        assert same_bits(adapter(run.adapter), adapter(expected.adapter))
        assert run.result["images"] == 10 and run.result["protocol"]["list_sha256"] == list_hash(find_images(site))
        assert sorted(path for path, _ in run.result["skipped"]) == sorted(str(site / name) for name in BAD)
        assert any("not decoded before the first step" in note for note in run.result["notes"])
        said = " ".join(event["text"] for event in events(run.folder) if event["event"] == "note")
        assert all(said.count(f"{site / name} (UnidentifiedImageError") == 1 for name in BAD)


def test_large_sets_are_not_decoded_first(
    source_run: TrainRun, site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not replaces("auto", bad_images.MANY - 1) and replaces("auto", bad_images.MANY)
    assert not replaces("leave-out", 10**7) and replaces("replace", 1)
    usual = adapt(source_run.file, site, out=tmp_path / "usual", **TENT)
    assert usual.result["images"] == 8 and "sampled" not in usual.result and not usual.result["notes"][1:]
    monkeypatch.setattr(bad_images, "MANY", 5)
    monkeypatch.setattr(job, "MOST_READ", 4)
    run = adapt(source_run.file, site, out=tmp_path / "run", **TENT)
    seen = len(run.before)
    assert run.result["images"] == 10 and run.result["sampled"] == seen <= 4 == TENT["max_iters"]
    assert run.result["protocol"]["evaluated_on"] == f"a sample of {seen} target images (transductive)"
    scored = adapt(source_run.file, site, out=tmp_path / "scored", score_on=write_labelled(tmp_path / "l", 2), **TENT)
    assert len(scored.before) == 6 and scored.result["protocol"]["evaluated_on"] == "scored images"
    forced = adapt(source_run.file, site, out=tmp_path / "forced", bad_images="leave-out", **TENT)
    assert same_bits(adapter(forced.adapter), adapter(usual.adapter)) and forced.result["images"] == 8


def test_a_share_is_drawn_without_decoding(
    source_run: TrainRun, site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(images_module, "decode_problem", None)  # nobody calls it
    run = adapt(source_run.file, site, out=tmp_path / "run", bad_images="replace", ratio=0.5, **TENT)
    assert run.result["images"] == 5


def test_labels_stay_right(tmp_path: Path) -> None:
    """In a labelled set, the next image of the same class takes the place."""
    root = write_labelled(tmp_path / "l", 3)
    (root / "blue" / "2.png").write_bytes(b"")
    (root / "red" / "2.png").write_bytes(b"")
    images = unchecked(find_labelled(root))
    views = Views(tiny_model().card.preprocess)
    shown = torch.cat([made[0] for _, made in batches(images, "t", views, ordered_keys(9, 4))])
    assert torch.equal(shown[2], shown[0]) and torch.equal(shown[8], shown[6]) and len(shown) == 9
    assert {place.parent.name for place in images.replaced or ()} == {"blue", "red"}
    decode_or_next(images, 2, 3)
    for name in ("0.png", "1.png"):
        (root / "blue" / name).write_bytes(b"")
    with pytest.raises(DataError, match=r"blue/0.png does not decode .* neither does any image that could take its"):
        list(TestPasses(unchecked(find_labelled(root)), views, Runtime(workers=1))())


def test_training_and_uda_replace_too(source_run: TrainRun, site: Path, tmp_path: Path) -> None:
    root = write_labelled(tmp_path / "l", 5)
    (root / "blue" / "1.png").write_bytes(b"")
    settings = {"epochs": 1, "batch": 4, "device": "cpu", "bad_images": "replace"}
    trained = train(tiny_model().train(), root, out=tmp_path / "train", **settings, **PROJECTION)
    assert trained.result["images"] + trained.result["held_out"] == 15
    assert [path for path, _ in trained.result["skipped"]] == [str(root / "blue" / "1.png")]
    uda = adapt_with_source(
        source_run.file, root, site, out=tmp_path / "uda", method="erm", batch=4, max_iters=3, device="cpu",
        bad_images="replace",
    )  # fmt: skip
    assert uda.result["images"] == 10 and uda.result["source_images"] == 15


# ---- the index beside a run ----


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Files that are decoded only to find out whether they can be, and first passes."""
    done: list[str] = []
    real, first = images_module.decode_problem, job.FirstPass

    def noted(path: Path, channels: int = 3) -> str | None:
        done.append(path.name)
        return real(path, channels)

    class Counted(first):  # type: ignore[misc, valid-type]
        def __iter__(self) -> Any:
            done.append("first pass")
            return super().__iter__()

    monkeypatch.setattr(images_module, "decode_problem", noted)
    monkeypatch.setattr(job, "FirstPass", Counted)
    return done


def interrupted(source_run: TrainRun, images: Path, out: Path, **settings: Any) -> None:
    with pytest.MonkeyPatch.context() as patch, pytest.raises(Interrupted):
        patch.setattr("dept.runs.folder.stop_signal", StopAfter(2))
        adapt(source_run.file, images, out=out, **settings)


def test_a_resumed_run_does_not_read_everything_again(
    source_run: TrainRun, site: Path, tmp_path: Path, decoded: list[str]
) -> None:
    whole = adapt(source_run.file, site, out=tmp_path / "whole", **DEPT)
    interrupted(source_run, site, tmp_path / "run", **DEPT)
    assert (tmp_path / "run" / "start.safetensors").exists()
    decoded.clear()
    resumed = adapt(source_run.file, site, out=tmp_path / "run", resume=True, **DEPT)
    assert decoded == []
    assert same_bits(adapter(resumed.adapter), adapter(whole.adapter)) and resumed.result["skipped"]
    assert torch.equal(resumed.before, whole.before) and torch.equal(resumed.after, whole.after)
    assert {path.name for path in resumed.folder.iterdir()} == {path.name for path in whole.folder.iterdir()}
    assert not (tmp_path / "run" / "start.safetensors").exists()


def test_changed_and_missing_knowledge_is_made_again(
    source_run: TrainRun, site: Path, tmp_path: Path, decoded: list[str]
) -> None:
    whole = adapt(source_run.file, site, out=tmp_path / "whole", **DEPT)
    for number, spoil in enumerate((
        lambda run: (run / "start.safetensors").unlink(),
        lambda run: (run / FILE).write_bytes(b"damaged"),
        lambda run: (run / FILE).unlink(),
        lambda run: (site / "img000.png").touch(),
    )):  # fmt: skip
        run = tmp_path / f"run{number}"
        interrupted(source_run, site, run, **DEPT)
        spoil(run)
        decoded.clear()
        resumed = adapt(source_run.file, site, out=run, resume=True, **DEPT)
        assert decoded == ["first pass"] and same_bits(adapter(resumed.adapter), adapter(whole.adapter))


def test_a_second_run_decodes_only_what_is_new(tmp_path: Path, decoded: list[str]) -> None:
    root = write_labelled(tmp_path / "l", 4)
    (root / "red" / "0.png").write_bytes(b"")
    settings = {"out": tmp_path / "run", "epochs": 1, "batch": 4, "device": "cpu", **PROJECTION}
    first = train(tiny_model().train(), root, **settings)
    assert len(decoded) == 12
    decoded.clear()
    again = train(tiny_model().train(), root, overwrite=True, **settings)
    assert decoded == [] and again.result["skipped"] == first.result["skipped"]
    assert again.result["accuracy"] == first.result["accuracy"]
    shutil.copyfile(root / "red" / "1.png", root / "red" / "0.png")
    mended = train(tiny_model().train(), root, overwrite=True, **settings)
    assert decoded == ["0.png"] and mended.result["skipped"] == []


def test_the_index_survives_the_disk(site: Path, tmp_path: Path) -> None:
    images, index = find_images(site), FileIndex()
    images_module.decodable(images, index=index)
    images_module.decodable(images, index=index, channels=1)
    write_index(tmp_path, index)
    seen = read_index(tmp_path).look(images.places, 3)
    assert seen.known.all() and len(seen.problems) == 2 and read_index(tmp_path).look(images.places, 1).known.all()
    assert not read_index(tmp_path / "nowhere").earlier
    tensors, meta = read_tensors(tmp_path / FILE, "images")
    for name, broken in (("0.ends", -tensors["0.ends"]), ("0.states", tensors["0.states"][:3])):
        write_tensors(tmp_path / FILE, tensors | {name: broken}, {"kind": "images", "tables": meta["tables"]})
        assert not read_index(tmp_path).earlier, name


def test_from_the_command_line(source_run: TrainRun, site: Path, tmp_path: Path, capsys: Any) -> None:
    words = ["adapt", str(source_run.file), str(site), "--out", str(tmp_path / "run"), "--device", "cpu"]
    words += ["--method", "tent", "--batch", "4", "--max-iters", "3", "--bad-images"]
    assert main([*words, "replace", "--accept"]) == 0
    said = capsys.readouterr()
    assert "Replaced by the next image that decodes" in said.err and BAD[1] in said.err
    assert "`--bad-images leave-out` finds all" in said.out + said.err
    with pytest.raises(SystemExit) as stop:
        raise SystemExit(main([*words, "maybe"]))
    assert stop.value.code == 2
