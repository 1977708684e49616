"""The command line that repeats a run, from what its files recorded."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import asdict, fields
from typing import Any

from dept import methods
from dept.methods.base import BaseConfig
from dept.methods.multi_source import MultiSourceTraining
from dept.runs.adapt import AdaptOptions
from dept.runs.read import RunFiles
from dept.runs.record import shown
from dept.runs.train import TrainOptions
from dept.runs.uda import UDAOptions

PLACES = {
    "adapt": ("model", "images"),
    "stream": ("model", "images"),
    "uda": ("model", "source", "images"),
    "train": ("source",),
}
"""what a command is given by path, in its order"""


def reproduce(run: RunFiles) -> tuple[str, list[str]]:
    """The command, with a flag for every setting that is not the default, and what it cannot say."""
    if not run.config:
        return "", ["The run does not record its settings."]
    protocol, options = run.protocol, run.config.get("options", {})
    notes: list[str] = []
    words = ["dept", run.kind, *_places(run, notes), "--out", "RUN"]
    if run.kind != "train":
        words += ["--method", run.method]
    else:
        words += [*_architecture(protocol), *_union(protocol)]
        notes.append("--weights FILE or timm's own weights, whichever the run started from, is not recorded.")
    if "score" in run.inputs:
        words += ["--score", shown(run.inputs["score"])]
    elif protocol.get("evaluated_on") == "scored images":
        notes.append("The run was scored on labelled images; name them with --score.")
    words += list(_flags(options, _default_options(run)))
    defaults = _default_config(run, float(options.get("ratio", 1.0)), notes)
    words += list(_flags(protocol.get("config", {}), defaults))
    return " ".join(_word(word) for word in words), notes


def _places(run: RunFiles, notes: list[str]) -> list[str]:
    if run.sources:
        return [shown(place) for place in run.sources]
    names = PLACES[run.kind]
    absent = [name for name in names if name not in run.inputs]
    if absent:
        words = " and ".join(name.upper() for name in absent)
        notes.append(f"Put your paths in the place of {words}: the run does not record them.")
    return [shown(run.inputs[name]) if name in run.inputs else name.upper() for name in names]


def _architecture(protocol: Mapping[str, Any]) -> list[str]:
    words = ["--arch", str(protocol.get("arch")), "--stages", str(protocol.get("stages"))]
    words += ["--prompts", str(protocol.get("prompts"))]
    return [*words, "--timm", json.dumps(protocol["options"])] if protocol.get("options") else words


def _union(protocol: Mapping[str, Any]) -> list[str]:
    """Several sources without prompts of their own were asked for so."""
    several, own = "domains" in protocol, "domain_prompts" in protocol.get("config", {})
    return ["--domain-prompts", "0"] if several and not own and protocol.get("stages") else []


def _default_options(run: RunFiles) -> dict[str, Any]:
    if run.kind == "stream":
        return dict.fromkeys(run.config.get("options", {}))  # which has only what is not the default
    return asdict({"train": TrainOptions, "uda": UDAOptions, "adapt": AdaptOptions}[run.kind]())


def _default_config(run: RunFiles, ratio: float, notes: list[str]) -> dict[str, Any]:
    """The defaults that the recorded settings are compared with."""
    try:
        if run.kind == "train":
            return asdict(MultiSourceTraining.Config())
        kind = methods.get(run.method)
    except ValueError:
        notes.append(f"This version has no method {run.method!r}; its settings are in the protocol below.")
        return dict(run.protocol.get("config", {}))
    online = run.kind == "stream" and "online" in kind.presets
    defaults: BaseConfig = kind.preset("online") if online else kind.Config()
    # `adapt` divides epochs by the ratio itself: what it made of the defaults needs no flag.
    if ratio < 1:
        defaults = kind.scaled(defaults, ratio)
        notes.append("With --ratio, epochs are recorded after the division; divide any --epochs above accordingly.")
    return {field.name: getattr(defaults, field.name) for field in fields(defaults)}


def _flags(values: Mapping[str, Any], defaults: Mapping[str, Any]) -> Iterator[str]:
    """Flags as tyro reads them, for values that differ from the defaults."""
    for name, value in values.items():
        plain = json.loads(json.dumps(defaults.get(name), default=str))
        if name not in defaults or value == plain:
            continue
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            yield f"--{flag}" if value else f"--no-{flag}"
        elif isinstance(value, list):
            yield from (f"--{flag}", *map(str, value))
        else:
            yield from (f"--{flag}", str(value))


def _word(word: str) -> str:
    return shlex.quote(word)
