"""What a run folder holds, read into plain dataclasses. No torch, no images: only the run's own files."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, Literal, cast

from dept.errors import DataError, UsageError
from dept.runs.record import Protocol, Result

Kind = Literal["adapt", "uda", "train", "stream"]


@dataclass(frozen=True)
class RunFiles:
    """A run folder of `dept adapt`, `uda`, `train` or `stream`; what it does not have is empty."""

    folder: Path
    kind: Kind
    config: dict[str, Any] = field(default_factory=dict)
    result: Result = field(default_factory=lambda: cast(Result, {}))
    """empty until the run has finished"""
    events: list[dict[str, Any]] = field(default_factory=list)
    predictions: list[dict[str, Any]] = field(default_factory=list)
    """lines of a stream, in the order of arrival"""

    @property
    def protocol(self) -> Protocol:
        """Everything that the run's numbers depend on, as far as recorded."""
        return self.result.get("protocol") or self.config.get("protocol") or cast(Protocol, {})

    @property
    def method(self) -> str:
        """Name of the method, or of the command where there is none."""
        return str(self.result.get("method") or self.protocol.get("method") or self.kind)

    @property
    def inputs(self) -> dict[str, Any]:
        """Where model, images and scored images were when the run started, as far as it was told by path."""
        start = next((event for event in self.events if event.get("event") == "start"), {})
        found: dict[str, Any] = start.get("inputs") or self.config.get("inputs") or {}
        return found

    @property
    def sources(self) -> list[str]:
        """Where the labelled images of a training were, one place per domain, as far as it was told by path."""
        return list(self.inputs.get("sources", []))

    @property
    def adapter(self) -> Path | None:
        """The adapter file, if the run has written one (and not the one before it, which `overwrite` replaces)."""
        return self._file("adapter.safetensors")

    @property
    def model(self) -> Path | None:
        """The model file, for runs that write a whole model."""
        return self._file("model.safetensors")

    def _file(self, name: str) -> Path | None:
        written = bool(self.result) or self.kind == "stream"  # which saves its adapter on the way
        return self.folder / name if written and (self.folder / name).is_file() else None


@dataclass(frozen=True)
class Curve:
    """A value over the steps of a run."""

    name: str
    steps: tuple[int, ...]
    values: tuple[float, ...]


@dataclass(frozen=True)
class Cost:
    """What a run took; None where its files do not say."""

    tunable: int | None
    trained: int | None
    """with what is thrown away afterwards (projection heads)"""
    adapter_bytes: int | None
    steps: int | None
    seconds: float | None
    images_per_second: float | None


def read_run(folder: str | Path) -> RunFiles:
    """Read a run folder; a UsageError if it is none, a DataError if a file in it is broken."""
    path = Path(folder)
    if not path.is_dir():
        raise UsageError(f"{path} is not a folder. Give the folder of a run, or of a benchmark suite.")
    config, result = _json(path / "config.json"), cast(Result, _json(path / "result.json"))
    if (path / "predictions.jsonl").is_file():
        lines = _lines(path / "predictions.jsonl")
        return RunFiles(path, "stream", config, result, _lines(path / "events.jsonl"), lines)
    if not config and not result:
        raise UsageError(
            f"{path} is not a run folder: it has neither config.json nor result.json, and no finished cells of a "
            "benchmark below it."
        )
    run = RunFiles(path, "adapt", config, result, _lines(path / "events.jsonl"))
    if "held_out" in run.protocol:
        return RunFiles(path, "train", config, result, run.events)
    return RunFiles(path, "uda", config, result, run.events) if "source_images" in run.protocol else run


def loss_curves(events: Sequence[dict[str, Any]]) -> list[Curve]:
    """One curve per loss term. Steps that were done again after a resume count once, as done last."""
    steps = {int(event["step"]): event["terms"] for event in events if event.get("event") == "step"}
    names = dict.fromkeys(name for terms in steps.values() for name in terms)
    curves = []
    for name in names:
        points = sorted((step, float(terms[name])) for step, terms in steps.items() if name in terms)
        curves.append(Curve(name, tuple(s for s, _ in points), tuple(v for _, v in points)))
    return curves


def score_curves(events: Sequence[dict[str, Any]]) -> list[Curve]:
    """Accuracy over steps, one curve per read-out; held-out accuracy for training."""
    points: dict[str, dict[int, float]] = {}
    for event in events:
        if event.get("event") == "score":
            for name, value in event["top1"].items():
                points.setdefault(name.replace("_", ", "), {})[int(event["step"])] = float(value)
        elif event.get("event") == "held_out":
            points.setdefault("held-out source images", {})[int(event["step"])] = float(event["accuracy"])
    return [Curve(n, tuple(sorted(p)), tuple(p[s] for s in sorted(p))) for n, p in points.items()]


def cost(run: RunFiles) -> Cost:
    """Parameters, bytes and time of a run."""
    times = {int(event["step"]): float(event["time"]) for event in run.events if event.get("event") == "step"}
    ordered = [times[step] for step in sorted(times)]
    # The median leaves out the passes between epochs and the night between an interruption and its resume.
    gaps = [late - early for early, late in pairwise(ordered) if late > early]
    batch = run.protocol.get("config", {}).get("batch")
    ends = [float(event["time"]) for event in run.events if event.get("event") in ("start", "end")]
    size = run.adapter.stat().st_size if run.adapter else None
    return Cost(
        tunable=run.result.get("tunable_model"),
        trained=run.result.get("tunable_total"),
        adapter_bytes=run.result.get("adapter_bytes", size),
        steps=len(times) or None,
        seconds=ends[-1] - ends[0] if len(ends) > 1 else None,
        images_per_second=batch / median(gaps) if gaps and batch else None,
    )


def progress(events: Sequence[dict[str, Any]]) -> tuple[int, int]:
    """(steps done, steps planned), for a run that has no result yet."""
    steps = [event for event in events if event.get("event") == "step"]
    planned = next((int(e["total"]) for e in events if "total" in e), 0)
    return (max(int(e["step"]) for e in steps) + 1 if steps else 0), planned


def _json(file: Path) -> dict[str, Any]:
    if not file.is_file():
        return {}
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise DataError(f"{file} is not readable JSON ({error}).") from error
    if not isinstance(value, dict):
        raise DataError(f"{file} holds a {type(value).__name__}; a JSON object is expected.")
    return value


def _lines(file: Path) -> list[dict[str, Any]]:
    """JSON lines; the last one may be half written, because the run is still going or was killed."""
    if not file.is_file():
        return []
    try:
        texts = file.read_text(encoding="utf-8").splitlines()
    except (ValueError, OSError) as error:
        raise DataError(f"{file} is not readable text ({error}).") from error
    rows: list[dict[str, Any]] = []
    for number, text in enumerate(texts, 1):
        try:
            rows.append(dict(json.loads(text)))
        except (ValueError, TypeError) as error:
            if number < len(texts):
                raise DataError(f"{file}, line {number}: not a JSON object ({error}).") from error
    return rows
