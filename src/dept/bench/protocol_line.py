"""The protocol of a table in one paragraph: no number is printed without it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dept.bench.found import Found, chosen, trainings
from dept.bench.protocol import short
from dept.bench.suite import Suite

METRICS = {"top1": "top-1 accuracy", "mean_per_class": "mean of the accuracies per class", "error": "top-1 error"}


def protocol_line(suite: Suite, cells: Sequence[Mapping[str, Any]]) -> str:
    """Weights, preprocessing, images, subset, batch, steps, seeds, reset, metric, read-out, versions, device.

    Several values of a field, where results differ in it, are separated by " | ".
    """
    kept = {
        shift: [one for row in suite.rows for one in chosen(suite, row, shift, cells).kept] for shift in suite.shifts
    }
    found = [one for column in kept.values() for one in column]
    records = [one.record for one in found]
    parts = [
        _backbone(suite, records, trainings(cells)),
        _preprocessing(records),
        _images(kept),
        f"batch {_all(records, 'config.batch')}, steps {_steps(records)}" if records else "",
        f"seeds {', '.join(map(str, sorted({one.seed for one in found} or suite.seeds)))}",
        f"reset per {_all(records, 'reset')}" if any("reset" in record for record in records) else "",
        f"metric: {METRICS.get(suite.metric, suite.metric)}, %",
        f"read-out: {_all(records, 'readout')}; evaluated on: {_all(records, 'evaluated_on')}" if records else "",
        _environment(records) if records else "no results yet",
    ]
    return "Protocol: " + "; ".join(part for part in parts if part) + "."


def _backbone(suite: Suite, records: Sequence[Mapping[str, Any]], known: Mapping[str, Mapping[str, Any]]) -> str:
    """Names of the weights with their hashes: of the pretrained file where known, else of the model's backbone."""
    arch = _all(records, "arch") or " | ".join(dict.fromkeys(source.arch for source in suite.sources.values()))
    hashes = dict.fromkeys(str(protocol.get("weights_sha256", "")) for protocol in known.values())
    if hashes:
        return f"weights {arch}, sha256 {' | '.join(map(short, hashes))}"
    own = _all(records, "backbone_sha256")
    return f"weights {arch}" + (f", sha256 of the backbone {own}" if own else "")


def _preprocessing(records: Sequence[Mapping[str, Any]]) -> str:
    made = dict.fromkeys(_fed(record) for record in records if "preprocess.size" in record)
    return f"preprocessing: {' | '.join(made)}" if made else ""


def _fed(record: Mapping[str, Any]) -> str:
    get = {
        name: record.get(f"preprocess.{name}") for name in ("size", "resize", "rule", "interpolation", "mean", "std")
    }
    rule = (
        "images as they are"
        if get["rule"] == "none"
        else f"resize {get['resize']} ({get['rule']}, {get['interpolation']})"
    )
    return f"{rule}, crop {get['size']}, mean {_numbers(get['mean'])}, std {_numbers(get['std'])}"


def _numbers(values: Any) -> str:
    """One number where all channels have the same."""
    if isinstance(values, list | tuple) and len(set(values)) == 1:
        return f"{values[0]:g}"
    return str(values)


def _images(kept: Mapping[str, Sequence[Found]]) -> str:
    """Number of images and list hash per target, and how they were drawn."""
    listed: list[str] = []
    limits: dict[int | None, None] = {}
    for shift, found in kept.items():
        records = [one.record for one in found]
        limits |= dict.fromkeys(record.get("most") for record in records)
        if records:
            hashes = _all(records, "list_sha256")
            listed.append(
                f"{shift.split('->')[-1]} {_all(records, 'images')}" + (f" (list {hashes})" if hashes else "")
            )
    return f"images: {' | '.join(map(_drawn, limits))}: {', '.join(listed)}" if listed else ""


def _drawn(most: int | None) -> str:
    return "all images" if most is None else f"at most {most} per domain, uniform, random.Random(0)"


def _steps(records: Sequence[Mapping[str, Any]]) -> str:
    made = dict.fromkeys(_length(record) for record in records if record.get("method") != "source")
    return " | ".join(made) or "none"


def _length(record: Mapping[str, Any]) -> str:
    """How long a run was; a stream has one pass, whatever its config says of epochs."""
    if "reset" in record:
        return "one pass"
    return str(record.get("config.max_iters") or f"{record.get('config.epochs')} epochs")


def _environment(records: Sequence[Mapping[str, Any]]) -> str:
    versions = ", ".join(
        f"{name} {_all(records, f'environment.{name}')}" for name in ("dept", "torch", "timm", "python")
    )
    return f"{versions}; device {_all(records, 'environment.device')}, threads {_all(records, 'environment.threads')}"


def _all(records: Sequence[Mapping[str, Any]], path: str) -> str:
    return " | ".join(dict.fromkeys(short(record[path]) for record in records if path in record))
