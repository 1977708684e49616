"""What labels of a check say of a run, and what is refused before anything is written."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from dept.cli.main import main
from dept.errors import DataError
from dept.report.verdict import tiles, verdict
from dept.runs.adapt import AdaptRun, adapt
from dept.runs.check import CheckOptions, check, read_check
from dept.runs.judge import judge
from dept.runs.read import read_run
from dept.runs.seal import unsealed
from dept.runs.train import TrainRun
from support import write_unlabelled

STRONG: dict[str, Any] = {"accept": True, "method": "tent", "lr": 3.0, "batch": 8, "max_iters": 4, "device": "cpu"}
CPU = CheckOptions(device="cpu")


@pytest.fixture(scope="module")
def whole(source_run: TrainRun, tmp_path_factory: pytest.TempPathFactory) -> AdaptRun:
    images = write_unlabelled(tmp_path_factory.mktemp("data") / "site", 60, dim=0.6, noise=60)
    run = adapt(source_run.file, images, out=tmp_path_factory.mktemp("runs") / "site", **STRONG)
    assert check([run.folder], CPU).disagreeing >= 8
    return run


@pytest.fixture
def run(whole: AdaptRun, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole.folder, tmp_path / "site"))


def answered(run: Path, *words: str, start: int = 0) -> Path:
    """A file with these answers for the images of the check, in its order."""
    names = [row["image"] for row in json.loads((run / "check" / "check.json").read_text())["asked"]]
    rows = [f'"{name}",{word}' for name, word in zip(names[start:], words, strict=False)]
    file = run.parent / f"labels{start}.csv"
    file.write_text("image,right\n" + "\n".join(rows) + "\n")
    return file


def test_improved(run: Path) -> None:
    judged = judge([run], [answered(run, *["after"] * 6, "neither")])
    stored = unsealed(json.loads((run / "verdict.json").read_text()))
    differ = stored["disagreeing"]
    assert judged.verdict == stored["verdict"] == "improved" and stored["gain"] == pytest.approx(differ / 60 * 6 / 7)
    assert stored["ci95"][0] <= stored["gain"] <= stored["ci95"][1] and stored["p_value"] == 2 / 64
    assert len(stored["labels"]) == 7 and "Improved. Gain +" in str(judged) and f"dept report {run}" in str(judged)
    sentence, tone = verdict(read_run(run), None)
    assert sentence.startswith("Improved. Gain +") and tone == "good"
    assert tiles(read_run(run), None)[0].note == "by labels: improved"


def test_files_are_merged_and_replace_the_verdict(run: Path) -> None:
    first, second = answered(run, "after", "before", "after"), answered(run, *["before"] * 5, start=3)
    assert judge([run], [first]).verdict == "uncertain"
    judged = judge([run], [first, second])
    assert judged.result["right_before"] == 6 and judged.result["right_after"] == 2
    drawn = len(read_check(run / "check")[1].asked)
    assert f"{drawn - 8} of the {drawn} drawn images have no label yet" in str(judged)
    assert len(read_run(run).judged["labels"]) == 8
    assert sum(bool(one.right) for one in check([run], CPU).questions.asked) == 8  # they need not be given again


def test_more_labels_are_of_the_same_draw(run: Path) -> None:
    check([run], CheckOptions(labels=2, seed=3, stratified=True, device="cpu"))
    judged = judge([run], [answered(run, "after", "before")])
    assert str(judged).endswith(f"dept check {run} --labels 4 --seed 3 --stratified")
    more = check([run], CheckOptions(labels=4, seed=3, stratified=True, device="cpu"))
    assert [bool(one.right) for one in more.questions.asked] == [True, True, False, False]


def test_harmful_is_exit_4(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["judge", str(run), str(answered(run, *["before"] * 7))]) == 4
    said = capsys.readouterr().out
    assert said.startswith("Harmful. Gain -") and "Use the source model without this adapter." in said
    shutil.copyfile(run / "adapter.safetensors", run / "adapter.1.safetensors")
    assert main(["judge", str(run), str(answered(run, *["before"] * 7)), "--json"]) == 4
    assert json.loads(capsys.readouterr().out)["verdict"] == "harmful"
    assert f"or go back to the adapter before: dept undo {run}" in str(judge([run], [answered(run, *["before"] * 7)]))


def test_labels_speak_for_an_adapter_that_was_set_aside(run: Path) -> None:
    (run / "adapter.safetensors").rename(run / "adapter.rejected.safetensors")
    judged = judge([run], [answered(run, *["after"] * 7, "before")])
    assert f"set aside as harmful before. Use it: {run / 'adapter.rejected.safetensors'}" in str(judged)
    assert "after is right on 7, before on 1, neither on 0 (exact sign test, p = 0.07)" in str(judged)


@pytest.mark.parametrize("text", ["image,right\nx,after\n", "image,right\n", "right\nafter\n", "image,right\n{},no\n"])
def test_bad_tables_are_exit_3_and_nothing_is_written(text: str, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = check([run], CPU).questions.asked[0].image
    (run.parent / "bad.csv").write_text(text.format(name))
    assert main(["judge", str(run), str(run.parent / "bad.csv")]) == 3
    out, err = capsys.readouterr()
    assert err.startswith("dept: ") and "bad.csv" in err and not out and len(err.splitlines()) == 1
    assert not (run / "verdict.json").exists()


def test_contradicting_files(run: Path) -> None:
    one, two = answered(run, "after", "after"), answered(run, "after", start=1)
    assert judge([run], [one, two]).result["right_after"] == 2
    two.write_text(two.read_text().replace("after", "neither"))
    with pytest.raises(DataError, match="Keep one"):
        judge([run], [one, two])


def test_what_is_not_there(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    labels = str(answered(run, "after"))
    for words, code, said in (
        ([str(run)], 2, "at least one file of labels"),
        ([labels], 2, "Give the folder of one run"),
        ([str(run), "gone.csv"], 3, "gone.csv does not exist"),
        ([str(run / "check"), labels], 2, "is not a run folder"),
    ):
        assert main(["judge", *words]) == code and said in capsys.readouterr().err
    shutil.rmtree(run / "check")
    assert main(["judge", str(run), labels]) == 3 and "Run `dept check` first" in capsys.readouterr().err


def test_labels_of_another_adapter(run: Path, source_run: TrainRun, whole: AdaptRun) -> None:
    labels = answered(run, *["after"] * 6)
    judge([run], [labels])
    images = json.loads((run / "events.jsonl").read_text().splitlines()[0])["inputs"]["images"]
    other = adapt(source_run.file, images, out=run.parent / "other", **{**STRONG, "lr": 1.0})
    shutil.copyfile(other.adapter, run / "adapter.safetensors")
    with pytest.raises(DataError, match="has another adapter than when the images were drawn"):
        judge([run], [labels])
    assert not read_run(run).judged and not verdict(read_run(run), None)[0].startswith("Improved")


def test_two_runs(run: Path, source_run: TrainRun) -> None:
    images = json.loads((run / "events.jsonl").read_text().splitlines()[0])["inputs"]["images"]
    other = adapt(source_run.file, images, out=run.parent / "other", **{**STRONG, "lr": 0.0})
    made = check([run, other.folder], CPU)
    rows = "".join(f'"{one.image}",second\n' for one in made.questions.asked)
    (run.parent / "two.csv").write_text("image,right\n" + rows)
    judged = judge([run, other.folder], [run.parent / "two.csv"])
    assert judged.file == other.folder / "check-site" / "verdict.json" and not (other.folder / "verdict.json").exists()
    assert str(judged).startswith("The second run is better. Gain +") and f"Use {other.folder}." in str(judged)
