"""The examples that pass runs on to other tools, with stand-ins for those tools; and example 10 as it is."""

from __future__ import annotations

import runpy
import sys
import types
from pathlib import Path
from typing import Any

import pytest

import dept
from dept.runs import auto
from dept.runs.train import TrainRun

EXAMPLES = Path(__file__).parent.parent / "examples"


class Tool(types.ModuleType):
    """Stands in for a module: notes the name and arguments of every call."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *given, **named: self.calls.append((name, given, named))


def run_example(name: str, monkeypatch: pytest.MonkeyPatch, *words: object, as_main: bool = True) -> dict[str, Any]:
    monkeypatch.setattr(sys, "argv", [name, *map(str, words)])
    return runpy.run_path(str(EXAMPLES / name), run_name="__main__" if as_main else "example")


@pytest.mark.parametrize(
    ("tool", "begins", "logs", "ends"),
    [
        ("wandb", "init", "log", "finish"),
        ("trackio", "init", "log", "finish"),
        ("mlflow", "start_run", "log_metrics", "end_run"),
    ],
)
def test_trackers_hear_every_step(
    tool: str, begins: str, logs: str, ends: str,
    source_run: TrainRun, target_images: Path, target_labelled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    module = Tool(tool)
    monkeypatch.setitem(sys.modules, tool, module)
    monkeypatch.setattr(auto, "LEAST_STEPS", 3)
    monkeypatch.setattr(auto, "EPOCHS", 1)
    made = run_example(f"trackers/to_{tool}.py", monkeypatch, source_run.file, target_images, tmp_path / "run")
    names = [name for name, _, _ in module.calls]
    assert names.count(begins) == names.count(ends) >= 2 and names[0] == begins and names[-1] == ends
    steps = [(given[0], named["step"]) for name, given, named in module.calls if name == logs]
    assert any(len(numbers) > 1 for numbers, _ in steps) and {step for _, step in steps} >= {0, 1, 2}
    # A listener also hears accuracies, where there are labels to score on.
    module.calls.clear()
    settings = {"method": "neo", "accept": True, "score_on": target_labelled, "device": "cpu"}
    dept.adapt(source_run.file, target_images, out=tmp_path / "scored", listener=made["listener"], **settings)
    assert any("accuracy/student" in given[0] for name, given, _ in module.calls if name == logs)


def test_a_model_for_mlflow(
    source_run: TrainRun, target_images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package, pyfunc = Tool("mlflow"), Tool("mlflow.pyfunc")
    pyfunc.PythonModel = object  # type: ignore[attr-defined]
    package.pyfunc = pyfunc  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "mlflow", package)
    monkeypatch.setitem(sys.modules, "mlflow.pyfunc", pyfunc)
    settings = {"method": "neo", "accept": True, "device": "cpu"}
    adapter = dept.adapt(source_run.file, target_images, out=tmp_path / "run", **settings).adapter
    run_example("trackers/mlflow_pyfunc.py", monkeypatch, source_run.file, adapter, tmp_path / "packed")
    ((name, given, named),) = pyfunc.calls
    assert name == "save_model" and given == (str(tmp_path / "packed"),)
    model, context = named["python_model"], types.SimpleNamespace(artifacts=named["artifacts"])
    model.load_context(context)
    paths = sorted(map(str, target_images.rglob("*.png")))
    said = model.predict(context, {"path": paths})
    expected = dept.Classifier.load(source_run.file, adapter=adapter).predict(paths)
    assert [row["label"] for row in said] == list(expected) and all(0 < row["confidence"] <= 1 for row in said)


def test_bring_a_hugging_face_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = EXAMPLES / "10_bring_a_hugging_face_model.py"
    assert len(file.read_text().splitlines()) < 60
    run_example(file.name, monkeypatch, tmp_path)
    out, err = capsys.readouterr()
    assert "from a transformers vit checkpoint" in err and "Accuracy" in out
    # The folder holds the embedded model without its prompts, to the last digit.
    source, converted = dept.load(dept.bench.suites.digits.EMBEDDED), dept.load(tmp_path / "model.safetensors")
    assert converted.classes == source.classes and converted.card.preprocess == source.card.preprocess
    ours, theirs = (model.backbone.state_dict() for model in (source, converted))
    assert all((ours[name] == theirs[name]).all() for name in ours)
