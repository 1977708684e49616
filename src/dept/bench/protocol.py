"""What two results must share to stand in one column, and preprocessing that fits the model's own config.

Compared are paths such as "preprocess.mean". A field that one of two results does not state (it was written by an older
version) is shown by `dept bench diff`, but is no reason for a mark.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from statistics import mode
from typing import Any

import timm

from dept.data.views import Preprocess
from dept.errors import UsageError
from dept.runs.record import Result

Difference = tuple[str, Any, Any]

MISSING = "(not stated)"
# A column's results must agree in these fields, among those that share what comes first. Left out are fields that the
# definition of a row changes on purpose: the method's own settings, the prompts, the share of the images, the stream.
SCORED = ("scored", "evaluated_on")
ADAPTED = ("images", "list_sha256", "subset", "most", "reset", "augment.*")
FED = ("weights_sha256", "preprocess.*", "options.*", "forced*")
TRAINED = ("backbone_sha256",)
# Marked too, but no reason to keep a result out of the race for the best of its column.
NOTED = ("readout", "views_made_on", "amp")
RAN = ("environment.dept", "environment.torch", "environment.timm", "environment.device")
# The seeds of a row must share everything but these.
SEED = ("seed", "environment.*")
# Nor these, where every seed has a source model of its own.
SOURCE = ("source", "backbone_sha256*", "stats_sha256")


def flat(nested: Any, path: str = "") -> dict[str, Any]:
    """Paths and values of nested mappings; lists are values. `{"a": {"b": 1}}` gives `{"a.b": 1}`."""
    if not isinstance(nested, Mapping) or not nested:
        return {path: nested} if path else {}
    found: dict[str, Any] = {}
    for name, value in nested.items():
        found |= flat(value, f"{path}.{name}" if path else str(name))
    return found


def differences(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[Difference]:
    """(path, value in a, value in b) of all that differs, sorted by path; `MISSING` where one has no such field."""
    one, two = flat(a), flat(b)
    paths = sorted(one.keys() | two.keys())
    pairs = [(path, one.get(path, MISSING), two.get(path, MISSING)) for path in paths]
    return [pair for pair in pairs if _plain(pair[1]) != _plain(pair[2])]


def record(result: Result, asked: Mapping[str, Any], trainings: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """All that a stored result says about how it came about, flattened.

    Args:
        asked: the protocol of its cell.
        trainings: protocols of the stored source trainings by their key; they tell the pretrained weights.
    """
    source = trainings.get(asked.get("source", ""), {})
    given = {"weights_sha256": source["weights_sha256"]} if "weights_sha256" in source else {}
    found = flat(given | dict(result.get("protocol", {}))) | flat({"environment": result.get("environment", {})})
    found |= {name: value for name, value in flat(asked).items() if name not in found and "." not in name}
    if "after" in result:
        found["scored"] = result["after"].get("n")
    if found.get("setting") == "online":
        found.pop("list_sha256", None)  # the order of arrival, which follows the seed
    return found


def conflicts(
    a: Mapping[str, Any], b: Mapping[str, Any], *, fields: Sequence[str] = ("*",), but: Sequence[str] = ()
) -> list[Difference]:
    """Fields of two records that both state, and state differently; `fields` and `but` are patterns of paths."""
    return [
        (path, a[path], b[path])
        for path in sorted(a.keys() & b.keys())
        if _any(path, fields) and not _any(path, but) and _plain(a[path]) != _plain(b[path])
    ]


@dataclass(frozen=True)
class Standing:
    """How a result stands in its column: what keeps it from being compared, and what is only noted."""

    apart: tuple[Difference, ...] = ()
    noted: tuple[Difference, ...] = ()


def standings(records: Sequence[Mapping[str, Any]]) -> list[Standing]:
    """For each record of a column, where it departs from what most of those it is comparable with say."""
    apart = [
        _departures(records, fields, keys)
        for fields, keys in (
            (SCORED, [""] * len(records)),
            (ADAPTED, [_task(record) for record in records]),
            (FED, [str(record.get("arch")) for record in records]),
            (TRAINED, [str(record.get("source", number)) for number, record in enumerate(records)]),
        )
    ]
    noted = [
        _departures(records, NOTED, [_task(record) for record in records]),
        _departures(records, RAN, [""] * len(records)),
    ]
    return [
        Standing(tuple(d for part in apart for d in part[n]), tuple(d for part in noted for d in part[n]))
        for n in range(len(records))
    ]


def _departures(
    records: Sequence[Mapping[str, Any]], fields: Sequence[str], keys: Sequence[str]
) -> list[list[Difference]]:
    """Per record, the fields whose value is not the usual one among the records with the same key."""
    paths = sorted({path for record in records for path in record if _any(path, fields)})
    found: list[list[Difference]] = [[] for _ in records]
    for key in dict.fromkeys(keys):
        members = [number for number, own in enumerate(keys) if own == key]
        for path in paths:
            stating = [number for number in members if path in records[number]]
            if not stating:
                continue
            texts = [repr(_plain(records[number][path])) for number in stating]
            usual = records[stating[texts.index(mode(texts))]][path]  # the first of several
            for number in stating:
                if _plain(records[number][path]) != _plain(usual):
                    found[number].append((path, records[number][path], usual))
    return found


def _task(record: Mapping[str, Any]) -> str:
    """Setting, share of the images and stream: what a row may choose."""
    stream = {path: value for path, value in sorted(record.items()) if path.split(".")[0] == "stream"}
    return repr((record.get("setting"), record.get("ratio", 1.0), stream))


def sentence(found: Sequence[Difference]) -> str:
    """Differences for people: "images 100 instead of 1000"."""
    parts = []
    for path, ours, theirs in found:
        instead = "" if theirs == MISSING else f" instead of {short(theirs)}"
        parts.append(f"{path} {'not set' if ours == MISSING else short(ours)}{instead}")
    return "; ".join(parts)


def short(value: Any) -> str:
    """A value on little space; hashes by their first digits."""
    text = str(value)
    if len(text) == 64 and all(c in "0123456789abcdef" for c in text):
        return text[:12]
    return text if len(text) <= 60 else text[:57] + "…"


def check_preprocess(arch: str, used: Preprocess, *, force: bool) -> list[str]:
    """Refuse what contradicts the config that the pretrained weights come with; marks for the protocol if forced.

    The normalisation must be the model's own, and the crop must fit into the resized image. Size, resize rule and
    interpolation may be a suite's choice (a ViT is run at 128 px with its position embedding resampled; the authors
    resize bilinearly): they are in the protocol, and results that differ in them are marked by tables.
    An architecture that timm has no config for is not checked.
    """
    found = []
    own = timm.get_pretrained_cfg(arch)
    for name in ("mean", "std") if own is not None else ():
        expected, ours = getattr(own, name), getattr(used, name)
        if len(expected) != used.channels:  # a model that was given another number of channels has their mean
            expected = (sum(expected) / len(expected),) * used.channels
        if any(abs(e - o) > 1e-3 for e, o in zip(expected, ours, strict=True)):
            found.append(f"{name} {_numbers(ours)} instead of {_numbers(expected)}")
    if used.rule != "none" and used.resize < used.size:
        found.append(f"images resized to {used.resize} px are too small for a crop of {used.size} px")
    if found and not force:
        raise UsageError(
            f"The preprocessing contradicts the config of {arch}: {'; '.join(found)}. Its numbers would not be "
            "those of this model: use the model's own preprocessing, or force it, which marks the result."
        )
    return [f"forced: {text}" for text in found]


def _numbers(values: Sequence[float]) -> str:
    return "(" + ", ".join(f"{value:g}" for value in values) + ")"


def _any(path: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(path, pattern) for pattern in patterns)


def _plain(value: Any) -> Any:
    """Tuples as lists, as JSON stores them."""
    return [_plain(v) for v in value] if isinstance(value, tuple | list) else value
