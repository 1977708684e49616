"""What a run folder holds, read into plain dataclasses. No torch, no images: only the run's own files."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, Literal, cast

from dept.errors import DataError, UsageError
from dept.io import file_sha256
from dept.runs.record import Protocol, Result
from dept.runs.schema import CONFIG, EVENTS, FAILED, OTHER_EVENT, PREDICTED, RESULT, VERDICT, Fields, check, check_depth
from dept.runs.seal import unsealed

Kind = Literal["adapt", "uda", "train", "stream"]
REJECTED = "adapter.rejected.safetensors"
"""an adapter that counts as harmful"""
MOST_BYTES = 200_000_000
"""size of a file that is read; an event has about 200 bytes"""


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
    verdict: dict[str, Any] = field(default_factory=dict)
    """what labels said of the run (verdict.json), perhaps of an earlier adapter"""

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
        return self._file("adapter.safetensors") or self._file(REJECTED)

    @property
    def model(self) -> Path | None:
        """The model file, for runs that write a whole model."""
        return self._file("model.safetensors")

    @property
    def product_sha256(self) -> str:
        """Of the adapter or model that the run has written; empty if it has written none."""
        file = self.adapter or self.model
        return "" if file is None else file_sha256(file)

    @property
    def judged(self) -> dict[str, Any]:
        """The verdict, if it is about the adapter or model that is there now; else empty."""
        return self.verdict if self.verdict.get("products") == [self.product_sha256] else {}

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
    """Read a run folder; a UsageError if it is not one, a DataError if a file in it is broken."""
    path = Path(folder)
    if not path.is_dir():
        raise UsageError(f"{path} is not a folder. Give the folder of a run, or of a benchmark suite.")
    config, result = _json(path / "config.json", CONFIG), read_result(path / "result.json")
    events = _lines(path / "events.jsonl", lambda row: EVENTS.get(str(row.get("event")), OTHER_EVENT))
    verdict = read_verdict(path)
    if (path / "predictions.jsonl").is_file():
        lines = _lines(path / "predictions.jsonl", lambda row: PREDICTED if "label" in row else FAILED)
        return RunFiles(path, "stream", config, result, events, lines, verdict)
    if not config and not result:
        raise UsageError(
            f"{path} is not a run folder: it has neither config.json nor result.json, and no finished cells of a "
            "benchmark below it."
        )
    run = RunFiles(path, "adapt", config, result, events, verdict=verdict)
    if "held_out" in run.protocol:
        return replace(run, kind="train")
    return replace(run, kind="uda") if "source_images" in run.protocol else run


def read_result(file: Path) -> Result:
    """The result.json of a run, checked; empty if the file does not exist."""
    return cast(Result, _json(file, RESULT))


def read_verdict(folder: Path) -> dict[str, Any]:
    """What labels said of a run or a comparison (verdict.json); empty if nobody has judged it."""
    return _json(folder / "verdict.json", VERDICT)


def loss_curves(events: Sequence[dict[str, Any]]) -> list[Curve]:
    """One curve per loss term. Steps that were done again after a resume count once, as done last."""
    steps = {int(event["step"]): event["terms"] for event in events if event.get("event") == "step"}
    names = dict.fromkeys(name for terms in steps.values() for name in terms)
    curves = []
    for name in names:
        points = sorted((step, float(terms[name])) for step, terms in steps.items() if name in terms)
        curves.append(Curve(name, tuple(s for s, _ in points), tuple(v for _, v in points)))
    return curves


def score_curves(events: Sequence[dict[str, Any]], metric: Literal["top1", "mean_per_class"] = "top1") -> list[Curve]:
    """Accuracy over steps, one curve per read-out; held-out accuracy for training."""
    points: dict[str, dict[int, float]] = {}
    for event in events:
        if event.get("event") == "score":
            for name, value in event.get(metric, {}).items():  # older versions recorded top-1 only
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


def _json(file: Path, schema: Fields) -> dict[str, Any]:
    if not file.is_file():
        return {}
    with _readable(file):
        value: dict[str, Any] = json.loads(_text(file))
        check_depth(value)
        check(value, schema)
        return unsealed(value)


def _lines(file: Path, schema: Callable[[dict[str, Any]], Fields]) -> list[dict[str, Any]]:
    """JSON lines; the last one may be half written, because the run is still going or was killed."""
    if not file.is_file():
        return []
    with _readable(file):
        texts = _text(file).removesuffix("\n").split("\n")
    rows: list[dict[str, Any]] = []
    for number, text in enumerate(texts, 1):
        with _readable(file, f", line {number}"):
            try:
                value = json.loads(text)
            except ValueError:
                if number < len(texts):
                    raise
                break
            check_depth(value)
            check(value, schema(value) if isinstance(value, dict) else Fields())
            rows.append(unsealed(value))
    return rows


def _text(file: Path) -> str:
    size = file.stat().st_size
    if size > MOST_BYTES:
        raise ValueError(f"it has {size / 1e6:,.0f} MB; expected at most {MOST_BYTES / 1e6:.0f} MB")
    return file.read_text(encoding="utf-8")


@contextmanager
def _readable(file: Path, line: str = "") -> Iterator[None]:
    """Whatever is wrong with a file becomes a DataError that names it."""
    try:
        yield
    except RecursionError as error:
        raise DataError(f"{file}{line} is damaged: it is nested too deeply.") from error
    except (ValueError, OSError) as error:
        kind = " is not readable JSON" if isinstance(error, json.JSONDecodeError) else " is damaged"
        raise DataError(f"{file}{line}{kind}: {error}. Restore the file, or make the run again.") from error
