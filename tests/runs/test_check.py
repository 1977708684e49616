"""Which images of a run are asked about, what is written, and what is refused."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from dept.data.images import find_images
from dept.errors import DataError, UsageError
from dept.health.labels import Asked
from dept.inference import predict
from dept.io import write_json
from dept.models.files import load
from dept.runs.adapt import AdaptRun, adapt
from dept.runs.check import CheckOptions, check, read_check
from dept.runs.read import read_run
from dept.runs.seal import sealed, unsealed
from dept.runs.stream_run import stream_into
from dept.runs.train import TrainRun
from support import write_unlabelled

STRONG: dict[str, Any] = {"accept": True, "method": "tent", "lr": 3.0, "batch": 4, "max_iters": 2, "device": "cpu"}
CPU = CheckOptions(device="cpu")


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_unlabelled(tmp_path_factory.mktemp("data") / "site", 24, dim=0.6, noise=60)


@pytest.fixture(scope="module")
def whole(source_run: TrainRun, images: Path, tmp_path_factory: pytest.TempPathFactory) -> AdaptRun:
    return adapt(source_run.file, images, out=tmp_path_factory.mktemp("runs") / "site", **STRONG)


@pytest.fixture
def run(whole: AdaptRun, tmp_path: Path) -> Path:
    """A copy of the run, to write into."""
    return Path(shutil.copytree(whole.folder, tmp_path / "site"))


def labels(folder: Path) -> list[dict[str, str]]:
    with (folder / "labels.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_it_asks_about_the_images_whose_prediction_changed(run: Path, source_run: TrainRun, images: Path) -> None:
    made = check([run], CPU)
    before, after = (
        {one.path: one.label for one in predict(load(source_run.file, adapter=adapter), images, device="cpu")}
        for adapter in (None, run / "adapter.safetensors")
    )
    changed = {Asked(name, before[name], after[name]) for name in before if before[name] != after[name]}
    assert changed and set(made.questions.asked) == changed
    assert (made.images, made.disagreeing, made.folder) == (24, len(changed), run / "check")
    assert [row["image"] for row in labels(made.folder)] == [one.image for one in made.questions.asked]
    record, questions = read_check(made.folder)
    assert questions == made.questions and record["disagreeing"] == len(changed)
    html = (made.folder / "label.html").read_text()
    assert html.count("data:image/jpeg") == len(changed) and f"dept judge {run} labels.csv" in html
    assert len(json.loads((made.folder / "label_studio.json").read_text())) == len(changed)
    assert f"differ on {len(changed)} of 24 images" in str(made) and "All of them are to be labelled" in str(made)


def test_fewer_labels_and_more_later(run: Path) -> None:
    two = check([run], CheckOptions(labels=2, device="cpu"))
    assert len(two.questions.asked) == 2 and "2 of them, drawn at random, are" in str(two)
    rows = labels(two.folder)
    text = (two.folder / "labels.csv").read_text().replace(f"{rows[0]['after']},\n", f"{rows[0]['after']},after\n", 1)
    (two.folder / "labels.csv").write_text(text)
    more = check([run], CheckOptions(labels=4, device="cpu"))
    assert [one.right for one in more.questions.asked] == ["after", "", "", ""]
    assert [one.image for one in more.questions.asked[:2]] == [one.image for one in two.questions.asked]
    assert "are to be labelled (1 done)" in str(more)
    assert f"dept judge {run} {run / 'check' / 'labels.csv'}   (or the downloaded labels.csv)" in str(more)
    with pytest.raises(DataError, match=r"do not fit this check.*same seed as before\. \(.*has no image"):
        check([run], CheckOptions(labels=1, seed=5, device="cpu"))
    with pytest.raises(UsageError, match="`labels` must be at least 1"):
        CheckOptions(labels=0)


def test_no_change_is_no_question(source_run: TrainRun, images: Path, tmp_path: Path) -> None:
    adapt(source_run.file, images, out=tmp_path / "run", **{**STRONG, "lr": 0.0})
    made = check([tmp_path / "run"], CPU)
    assert str(made) == "The predictions before and after agree on all 24 images: the gain is 0."
    assert not (tmp_path / "run" / "check").exists()


def test_two_runs(run: Path, source_run: TrainRun, images: Path, tmp_path: Path) -> None:
    other = adapt(source_run.file, images, out=tmp_path / "other", **{**STRONG, "lr": 1.0, "seed": 1})
    made = check([run, other.folder], CPU)
    first, second = (
        [one.label for one in predict(load(source_run.file, adapter=folder / "adapter.safetensors"), images)]
        for folder in (run, other.folder)
    )
    assert made.disagreeing == sum(a != b for a, b in zip(first, second, strict=True))
    assert made.questions.words == ("first", "second", "neither") and made.folder == other.folder / "check-site"
    assert f"predictions of {run} (first) and of {other.folder} (second) differ on" in str(made)
    foreign = adapt(source_run.file, write_unlabelled(tmp_path / "b", 4, seed=3), out=tmp_path / "third", **STRONG)
    with pytest.raises(UsageError, match="adapted to different images"):
        check([run, foreign.folder], CPU)
    assert check([run, foreign.folder], CheckOptions(images=images, device="cpu")).images == 24
    with pytest.raises(UsageError, match="3 folders were given"):
        check([run, run, run], CPU)


def test_what_a_stream_predicted_is_what_it_is_asked_about(source_run: TrainRun, images: Path, tmp_path: Path) -> None:
    stream_into(source_run.file, images, out=tmp_path / "s", method="tent", lr=3.0, batch=4, device="cpu")
    made = check([tmp_path / "s"], CPU)
    rows = {row["path"]: row["label"] for row in read_run(tmp_path / "s").predictions}
    source = {str(images / p.path): p.label for p in predict(load(source_run.file), find_images(images), device="cpu")}
    assert {one.image: one.after for one in made.questions.asked} == {
        path: label for path, label in rows.items() if label != source[path]
    }


def test_a_run_and_a_stream_over_the_same_folder(run: Path, source_run: TrainRun, images: Path, tmp_path: Path) -> None:
    stream_into(source_run.file, images, out=tmp_path / "s", method="tent", lr=0.0, batch=4, device="cpu")
    made = check([run, tmp_path / "s"], CPU)  # the stream has learned nothing: its model is the source model
    alone = check([run], CPU)
    assert made.disagreeing == alone.disagreeing
    assert {one.image for one in made.questions.asked} == {one.image for one in alone.questions.asked}


def test_a_source_training_has_no_before(source_run: TrainRun) -> None:
    with pytest.raises(UsageError, match="is a source training"):
        check([source_run.folder], CPU)


def test_pictures_of_other_places_are_not_brought_into_the_page(run: Path, images: Path, tmp_path: Path) -> None:
    """A run folder from elsewhere names a folder of ours."""
    private = write_unlabelled(tmp_path / "private", 24, seed=8)
    (private / "img000.png").rename(private / "secret.png")
    lines = [unsealed(json.loads(line)) for line in (run / "events.jsonl").read_text().splitlines()]
    lines[0]["inputs"]["images"] = str(private)
    (run / "events.jsonl").write_text("".join(json.dumps(sealed(line)) + "\n" for line in lines))
    with pytest.raises(DataError, match="not the list of files that the run recorded"):
        check([run], CPU)
    assert not (run / "check").exists()
    assert check([run], CheckOptions(images=images, device="cpu")).images == 24


def test_a_damaged_record_is_a_sentence(run: Path) -> None:
    with pytest.raises(DataError, match="Run `dept check` first"):
        read_check(run / "check")
    check([run], CPU)
    file = run / "check" / "check.json"
    record = unsealed(json.loads(file.read_text()))
    for broken in ({**record, "images": "x"}, {**record, "asked": [{"image": 1}]}, {"images": 1}):
        write_json(file, sealed(broken))
        with pytest.raises(DataError, match=r"check.json is damaged: .* Run `dept check` again"):
            read_check(run / "check")
    write_json(file, {**sealed(record), "images": 7})
    with pytest.raises(DataError, match="its checksum does not fit"):
        read_check(run / "check")
