"""The embedded model and the demo command."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

pytest.importorskip("matplotlib")
pytest.importorskip("sklearn.datasets")

from html_checks import checked

import dept
from dept import demo
from dept.cli.main import main
from dept.data.digits import rendered_digits, write_digits
from dept.errors import UsageError
from dept.report.story import Told

FRESH_SEED = 12_345  # training used seed 0


def test_embedded_model_is_small_and_a_normal_file() -> None:
    assert demo.EMBEDDED.stat().st_size <= 3_000_000
    model = dept.load(demo.EMBEDDED)
    assert model.classes == tuple("0123456789")
    assert (model.stages, model.prompts_per_stage) == (4, demo.PROMPTS)
    assert len(model.projections) == 4
    assert model.card.augment == demo.AUGMENT
    assert model.card.augment.flip == 0 and model.card.augment.crop_scale[0] >= 0.6


def test_embedded_model_reads_fresh_rendered_digits(tmp_path: Path) -> None:
    write_digits(tmp_path, rendered_digits(300, seed=FRESH_SEED))
    assert dept.evaluate(dept.load(demo.EMBEDDED), tmp_path)["top1"] >= 0.95


def test_embedded_model_fits_the_code_that_makes_it() -> None:
    made, stored = demo.source_model("G"), dept.load(demo.EMBEDDED)
    assert made.card.options == stored.card.options
    assert made.card.preprocess == stored.card.preprocess
    shapes = {name: tensor.shape for name, tensor in stored.state_dict().items() if "projections" not in name}
    assert {name: tensor.shape for name, tensor in made.state_dict().items()} == shapes


def test_command_prints_a_table_and_next_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--out", str(tmp_path), "--limit", "64", "--epochs", "1"]) == 0
    text = capsys.readouterr().out
    for word in (
        "Source-G",
        "Tent-G, learning rate 0.5",
        "DePT-G",
        "without labels",
        "with 30 labels",
        "dept predict",
        "dept evaluate",
        "dept info",
    ):
        assert word in text
    report = tmp_path / "dept-G" / "report.html"
    assert f"Report: {report}" in text and "on 64 labelled images" in report.read_text()
    assert "The story" in checked(report.read_text()).text
    drawn = ElementTree.parse(tmp_path / "story-G.svg").getroot()
    assert drawn.tag == "{http://www.w3.org/2000/svg}svg" and "Without labels: " in drawn.attrib["aria-label"]
    commands = [line.split() for line in text.splitlines() if line.startswith("  dept ")]
    assert main(commands[1][1:]) == 0  # what is printed can be pasted


def test_json_and_second_run_in_the_same_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(2):
        assert main(["demo", "--out", str(tmp_path), "--limit", "32", "--epochs", "1", "--json"]) == 0
        result = json.loads(capsys.readouterr().out)
        assert [row["method"] for row in result["rows"]] == [
            "Source-G",
            "Tent-G",
            "Tent-G, learning rate 0.5",
            "DePT-G",
        ]
        assert Path(result["rows"][-1]["adapter"]).is_file()


def test_without_the_templates_engine_there_is_no_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "find_spec", lambda name: None)
    assert demo.run_demo(tmp_path, limit=20, epochs=1).reports == []


def test_unknown_variant_is_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--variants", "Q"]) == 2
    assert "'Q'" in capsys.readouterr().err
    with pytest.raises(UsageError, match="variant"):
        demo.source_model("Q")


def test_a_negative_limit_is_a_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--limit", "-5", "--out", str(tmp_path)]) == 2
    assert "--limit must be at least 0 (all images), found -5" in capsys.readouterr().err


def test_missing_extra_names_the_pip_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(UsageError, match=r"pip install 'dept\[report\]'"):
        demo.run_demo(tmp_path)


def test_other_variants_are_trained_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained = []

    def fake(out: Path, *, variant: str, seed: int, **_: object) -> Path:
        trained.append(variant)
        from dept.models.files import save_model

        model = demo.source_model(variant, seed=seed)
        return save_model(model, Path(out) / "model.safetensors")

    monkeypatch.setattr(demo, "train_source", fake)
    for _ in range(2):
        made = demo.run_demo(tmp_path, variants=["S"], limit=20, epochs=1, projection_hidden=8, projection_out=8)
        assert made.rows[-1].method == "DePT-S"
    assert trained == ["S"]


def test_a_wrong_setting_is_told_as_it_is() -> None:
    """What was said without labels, and what labels say, in words and colours."""
    before, after = ({"top1": value} for value in (0.68, 0.33))
    said = {"verdict": "harmful", "gain": -0.4, "low": -0.477, "high": -0.042, "shares": "uniform"}
    told = Told("Tent", {"before": before, "after": after, "expected": said})  # type: ignore[typeddict-item]
    assert (told.said.tone, round(told.truth), told.accuracies) == ("bad", -35, "68.0 → 33.0 %")
    assert str(told) == "Tent: accuracy 68.0 → 33.0 %, −35.0 points. Without labels: harmful, −47.7 to −4.2."
    judged = {"verdict": "harmful", "ci95": [-0.4, -0.3], "labels": {"a.png": "before", "b.png": "neither"}}
    assert str(replace(told, judged=judged)).endswith("With 2 labels: harmful, −40.0 to −30.0.")


def test_thirty_labels_judge_the_run(tmp_path: Path) -> None:
    """The names of the folders answer for a person, also where an earlier demo has left its labels."""
    for epochs in (1, 2):
        row = demo.run_demo(tmp_path, limit=200, epochs=epochs).rows[-1]
        judged = json.loads((tmp_path / "dept-G" / "verdict.json").read_text())
        assert row.judged == judged["verdict"] and 1 <= len(judged["labels"]) <= demo.LABELS
        before, after = sum(judged["labels"][one] == "before" for one in judged["labels"]), judged["right_after"]
        assert before == judged["right_before"] and f"with {before + after + judged['neither']} labels" in (
            (tmp_path / "story-G.svg").read_text()
        )
