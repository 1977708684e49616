"""The command line that repeats a run, from what its files recorded."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

from dept import methods
from dept.methods.base import BaseConfig
from dept.methods.multi_source import MultiSourceTraining
from dept.runs.adapt import AdaptOptions
from dept.runs.read import RunFiles
from dept.runs.record import Protocol, shown
from dept.runs.train import TrainOptions
from dept.runs.uda import UDAOptions
from dept.runs.words import flag

PLACES = {
    "adapt": ("model", "images"),
    "stream": ("model", "images"),
    "uda": ("model", "source", "images"),
    "train": ("source",),
}
"""what a command is given by path, in its order"""


def reproduce(run: RunFiles) -> tuple[str, list[str]]:
    """The command, with a flag for every setting that is not the default, and notes on what it leaves open."""
    if not run.config:
        return "", ["The run does not record its settings."]
    protocol, options = run.protocol, run.config.get("options", {})
    notes: list[str] = []
    words = ["dept", run.kind, *_places(run, notes), flag("out"), "RUN"]
    if run.kind != "train":
        words += [flag("method"), run.method]
    else:
        words += _architecture(protocol)
        notes.append("The run does not record where its initial weights came from: a file, or timm's own.")
    if "score" in run.inputs:
        words += [flag("score"), shown(run.inputs["score"])]
    elif protocol.get("evaluated_on") == "scored images":
        notes.append("The run was scored on labelled images. It does not record where they are: add them as `score`.")
    if run.kind == "stream":
        words += _flags(options, dict.fromkeys(options))  # a stream records only what is not the default
    else:
        kind = {"train": TrainOptions, "uda": UDAOptions, "adapt": AdaptOptions}[run.kind]
        words += _flags(options, asdict(kind()))
    defaults = _default_config(run, float(options.get("ratio", 1.0)), notes)
    words += _flags(protocol.get("config", {}), defaults)
    return shlex.join(words), notes


def _places(run: RunFiles, notes: list[str]) -> list[str]:
    """Paths of the inputs, or a placeholder in capitals for each one that was not recorded."""
    if run.sources:
        return [shown(place) for place in run.sources]
    names = PLACES[run.kind]
    absent = [name.upper() for name in names if name not in run.inputs]
    if absent:
        notes.append(f"The run does not record {' and '.join(absent)}: put your own paths there.")
    return [shown(run.inputs[name]) if name in run.inputs else name.upper() for name in names]


def _architecture(protocol: Protocol) -> list[str]:
    words = [word for name in ("arch", "stages", "prompts") for word in (flag(name), str(protocol.get(name)))]
    if protocol.get("options"):
        words += [flag("timm"), json.dumps(protocol["options"])]
    # Several sources get their own prompts by default. This run turned that off.
    if "domains" in protocol and "domain_prompts" not in protocol.get("config", {}) and protocol.get("stages"):
        words += [flag("domain_prompts"), "0"]
    return words


def _default_config(run: RunFiles, ratio: float, notes: list[str]) -> dict[str, Any]:
    """The defaults that the recorded settings are compared with."""
    try:
        if run.kind == "train":
            return asdict(MultiSourceTraining.Config())
        kind = methods.get(run.method)
    except ValueError:
        notes.append(f"This version has no method {run.method!r}. Its settings are in the protocol below.")
        return dict(run.protocol.get("config", {}))
    online = run.kind == "stream" and "online" in kind.presets
    defaults: BaseConfig = kind.preset("online") if online else kind.Config()
    # `adapt` itself divides epochs by the ratio, so its scaled defaults need no flag.
    if ratio < 1:
        defaults = kind.scaled(defaults, ratio)
        notes.append("Epochs and refresh intervals are recorded after division by the ratio. Multiply them by it.")
    return asdict(defaults)


def _flags(values: Mapping[str, Any], defaults: Mapping[str, Any]) -> Iterator[str]:
    """Flags for values that differ from the defaults."""
    for name, value in values.items():
        plain = json.loads(json.dumps(defaults.get(name), default=str))
        if name not in defaults or value == plain:
            continue
        if isinstance(value, bool):
            yield flag(name if value else f"no_{name}")
        else:
            yield from (flag(name), *map(str, value if isinstance(value, list) else [value]))
