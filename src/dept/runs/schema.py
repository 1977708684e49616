"""What the files of a run folder must hold where they are used. A run folder may come from anyone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

DEPTH = 64
"""levels of nested lists and objects; our own files have about five"""


@dataclass(frozen=True)
class Number:
    """A finite number in a range."""

    low: float = -1e100  # far from overflow, so that differences and sums stay finite
    high: float = 1e100
    whole: bool = False


@dataclass(frozen=True)
class Items:
    """A list whose items are alike."""

    each: Any
    count: int | None = None


@dataclass(frozen=True)
class Mapped:
    """An object with any names, whose values are alike."""

    values: Any
    most: int = 100_000


@dataclass(frozen=True)
class Fields:
    """An object. Fields that are not known are not used, so they may be anything."""

    known: Mapping[str, Any] = field(default_factory=dict)
    required: tuple[str, ...] = ()


def check(value: Any, schema: Any, where: str = "") -> None:
    """Raise a ValueError that names the field, what it holds and what is expected."""
    kind: Any = {Number: (int, float), Items: list, Mapped: dict, Fields: dict}.get(type(schema), schema)
    if not isinstance(value, kind) or isinstance(value, bool):
        raise ValueError(f"{where or 'the whole'} is {_short(value)}; expected {_NAMES[type(schema), schema is str]}")
    if isinstance(schema, Number):
        _check_number(value, schema, where)
    elif isinstance(schema, Items):
        if schema.count not in (None, len(value)):
            raise ValueError(f"{where} has {len(value)} items; expected {schema.count}")
        for number, item in enumerate(value):
            check(item, schema.each, f"{where}[{number}]")
    elif isinstance(schema, Mapped):
        if len(value) > schema.most:
            raise ValueError(f"{where} has {len(value)} entries; expected at most {schema.most}")
        for name, item in value.items():
            check(item, schema.values, f"{where}.{_short(name)}")
    elif isinstance(schema, Fields):
        before = f"{where}." if where else ""
        absent = [name for name in schema.required if name not in value]
        if absent:
            raise ValueError(f"the entry {before}{absent[0]} is missing")
        for name, inner in schema.known.items():
            if name in value:
                check(value[name], inner, f"{before}{name}")


def check_depth(value: Any, left: int = DEPTH) -> None:
    """Refuse what is nested so deeply that code which walks it would fail."""
    if not left:
        raise ValueError(f"it is nested more than {DEPTH} levels deep")
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        check_depth(inner, left - 1)


def _check_number(value: float, schema: Number, where: str) -> None:
    # NaN is in no range. A mean of float32 shares may be 1 and a rounding error.
    inside = schema.low - 1e-6 <= value <= schema.high + 1e-6
    if not inside or (schema.whole and value != int(value)):
        kind = "a whole number" if schema.whole else "a number"
        raise ValueError(f"{where} is {_short(value)}; expected {kind} from {schema.low:g} to {schema.high:g}")


def _short(value: Any) -> str:
    text = repr(value) if not isinstance(value, int) or abs(value) < 10**18 else "a huge number"
    return text if len(text) <= 60 else f"{text[:59]}…"


_NAMES = {
    (Number, False): "a number",
    (Items, False): "a list",
    (Mapped, False): "an object",
    (Fields, False): "an object",
    (type, True): "a text",
}

COUNT = Number(0, 1e15, whole=True)
SHARE = Number(0, 1)
INPUTS = Fields(dict.fromkeys(("model", "images", "score", "score_sha256", "source"), str) | {"sources": Items(str)})
PROTOCOL = Fields(
    dict.fromkeys(("arch", "method", "list_sha256", "evaluated_on"), str)
    | dict.fromkeys(("stages", "prompts", "images", "held_out", "source_images"), COUNT)
    | {"options": Fields(), "domains": Fields(), "seed": Number(0, 2**62, whole=True)}
    | {"config": Fields({"batch": COUNT, "held_out": SHARE})}
)
CONFIG = Fields({"protocol": PROTOCOL, "options": Fields({"ratio": Number(1e-6, 1)}), "inputs": INPUTS})

_SCORES = Fields(
    {"top1": SHARE, "n": COUNT, "ci95": Items(SHARE, 2), "per_class": Mapped(SHARE)},
    required=("top1", "n", "ci95", "per_class"),
)
_CONFIDENCE = Fields(
    {"confidence": SHARE, "entropy": Number(), "effective_classes": Number(), "shares": Items(SHARE)},
    required=("confidence", "entropy", "effective_classes"),
)
_LABEL_FREE = Fields(
    {"changed": SHARE, "before": _CONFIDENCE, "after": _CONFIDENCE}, required=("changed", "before", "after")
)
_EXPECTED = Fields(
    dict.fromkeys(("gain", "low", "high"), Number(-1, 1)) | dict.fromkeys(("verdict", "shares"), str),
    required=("gain", "low", "high", "verdict", "shares"),
)
_CANDIDATE = Fields({"name": str, "distance": SHARE, "changed": SHARE}, required=("name", "distance", "changed"))
_AUTO = Fields({"kept": str, "why": str, "candidates": Items(_CANDIDATE)}, required=("kept", "why", "candidates"))
_GUARD = Fields(
    dict.fromkeys(("updates", "not_learned_from", "alarms"), COUNT) | {"learning_rate": Number(0, 1), "state": str},
    required=("updates", "not_learned_from", "alarms", "learning_rate", "state"),
)
RESULT = Fields(
    dict.fromkeys(("images", "tunable_model", "tunable_total", "adapter_bytes", "held_out", "epochs", "sampled"), COUNT)
    | {"method": str, "notes": Items(str), "skipped": Items(list), "environment": Fields(), "protocol": PROTOCOL}
    | {"label_free": _LABEL_FREE, "before": _SCORES, "after": _SCORES, "accuracy": SHARE}
    | {"expected": _EXPECTED, "auto": _AUTO, "guard": _GUARD}
    | {"best_epoch": Number(-1, 1e15, whole=True)}
)

VERDICT = Fields(
    {"verdict": str, "gain": Number(-1, 1), "ci95": Items(Number(-1, 1), 2), "p_value": SHARE, "images": COUNT}
    | dict.fromkeys(("disagreeing", "right_after", "right_before", "neither"), COUNT)
    | {"labels": Mapped(str), "products": Items(str)},
    required=("verdict", "gain", "ci95", "p_value", "images", "disagreeing", "right_after", "right_before", "neither",
              "labels", "products"),
)  # fmt: skip

_EVENT = {"event": str, "time": Number(0, 1e10), "total": COUNT, "inputs": INPUTS}
EVENTS = {
    "step": Fields(_EVENT | {"step": COUNT, "terms": Mapped(Number(), 64)}, required=("step", "time", "terms")),
    "score": Fields(
        _EVENT | {"step": COUNT, "top1": Mapped(SHARE, 64), "mean_per_class": Mapped(SHARE, 64)},
        required=("step", "top1"),
    ),
    "held_out": Fields(_EVENT | {"step": COUNT, "accuracy": SHARE}, required=("step", "accuracy")),
    "start": Fields(_EVENT, required=("time",)),
    "end": Fields(_EVENT, required=("time",)),
}
OTHER_EVENT = Fields(_EVENT, required=("event",))
PREDICTED = Fields({"path": str, "label": str, "confidence": SHARE}, required=("path", "label", "confidence"))
FAILED = Fields({"path": str}, required=("path",))
