"""Run folders of others: every damaged file is a sentence that names file and field."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from dept.errors import DataError
from dept.io import write_json
from dept.runs import read
from dept.runs.folder import RunFolder
from dept.runs.read import read_run
from dept.runs.seal import sealed
from dept.runs.train import TrainRun

SCORES = {"top1": 0.5, "n": 4, "ci95": [0.1, 0.9], "per_class": {"a": 0.5}}


def written(folder: Path, **files: Any) -> Path:
    for name, value in ({"config": {"protocol": {}}} | files).items():
        suffix = "jsonl" if name in ("events", "predictions") else "json"
        rows = value if isinstance(value, list) else [value]
        text = "".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows)
        (folder / f"{name}.{suffix}").write_text(text)
    return folder


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"result": {"before": SCORES | {"top1": "x"}}}, "result.json is damaged: before.top1 is 'x'; expected a"),
        ({"result": {"before": SCORES | {"ci95": [1]}}}, "before.ci95 has 1 items; expected 2"),
        ({"result": {"after": SCORES | {"per_class": {"a": 7}}}}, "after.per_class.'a' is 7; expected a number from 0"),
        ({"result": {"label_free": {}}}, "the entry label_free.changed is missing"),
        ({"result": {"images": 1.5}}, "images is 1.5; expected a whole number"),
        ({"result": {"images": True}}, "images is True; expected a number"),
        ({"result": '{"images": 1' + "0" * 400 + "}"}, "images is a huge number; expected a whole number"),
        ({"result": {"notes": "x"}}, "notes is 'x'; expected a list"),
        ({"result": '{"accuracy": NaN}'}, "accuracy is nan; expected a number from 0 to 1"),
        ({"result": '{"accuracy": 1e999}'}, "accuracy is inf"),
        ({"config": "[" * 100_000}, "config.json is damaged: it is nested too deeply"),
        ({"config": '{"x":' * 80 + "1" + "}" * 80}, "more than 64 levels"),
        ({"config": {"protocol": {"config": {"batch": "8"}}}}, "protocol.config.batch is '8'"),
        ({"config": {"inputs": {"images": 5}}}, "inputs.images is 5; expected a text"),
        ({"config": "[1]"}, "config.json is damaged: the whole is [1]; expected an object"),
        ({"events": [{"event": "step"}]}, "events.jsonl, line 1 is damaged: the entry step is missing"),
        ({"events": ["[]", "{}"]}, "events.jsonl, line 1 is damaged"),
        ({"events": [{"event": "step", "time": 1e300, "step": 1, "terms": {}}]}, "time is 1e[+]300"),
        ({"predictions": [{"path": "a", "label": "b"}]}, "predictions.jsonl, line 1 is damaged: the entry confidence"),
        ({"predictions": [{"path": "a", "label": "b", "confidence": float("nan")}]}, "confidence is nan"),
    ],
)  # fmt: skip
def test_a_damaged_field_is_named(files: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=words.replace("[1]", r"\[1\]")):
        read_run(written(tmp_path, **files))


def test_a_huge_file_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read, "MOST_BYTES", 1000)
    with pytest.raises(DataError, match=r"events.jsonl is damaged: it has 0 MB; expected at most"):
        read_run(written(tmp_path, events=[{"event": "note", "text": "x" * 2000}]))


def test_unknown_fields_and_a_half_written_line_are_fine(tmp_path: Path) -> None:
    folder = written(tmp_path, result={"images": 3, "new": [None]}, events=[{"event": "start", "time": 1}, '{"even'])
    run = read_run(folder)
    assert run.result["images"] == 3 and len(run.events) == 1


@pytest.mark.parametrize("name", ["config.json", "result.json", "events.jsonl"])
def test_a_changed_digit_is_found(name: str, source_run: TrainRun, tmp_path: Path) -> None:
    """A value that is wrong but possible passes every schema. The checksum finds it."""
    folder = Path(shutil.copytree(source_run.folder, tmp_path / "run"))
    assert read_run(folder).result == json.loads(json.dumps(source_run.result))
    text = (folder / name).read_text()
    field = re.search(r'"(seed|images|step)": (\d)', text)
    assert field is not None
    place = field.start(2)
    (folder / name).write_text(text[:place] + str((int(field[2]) + 1) % 10) + text[place + 1 :])
    with pytest.raises(DataError, match=f"{name}.* is damaged: its checksum does not fit what it holds"):
        read_run(folder)


def test_a_run_is_not_resumed_with_a_damaged_config(tmp_path: Path) -> None:
    for name in ("resume.safetensors", "config.json"):
        write_json(tmp_path / name, sealed({"protocol": {"seed": 3}}))
    file = tmp_path / "config.json"
    file.write_text(file.read_text().replace("3", "4", 1))
    folder = RunFolder(tmp_path, "adapter.safetensors", resume=True)
    with pytest.raises(DataError, match=r"config.json is damaged: its checksum does not fit"):
        folder.configure({"protocol": {"seed": 4}})
