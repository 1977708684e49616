"""What stands below a table: footnotes, and the protocol in one paragraph. No number is printed without it.

Results whose protocol differs from the rest of their column carry a mark that a footnote explains (the fields are those
of `protocol.standings`). Only what does not differ from the rest of its setting takes part in the race for the best.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dept.bench.protocol import Standing, sentence, short, standings
from dept.bench.shift import Shift
from dept.bench.stored import Choice, Results, Run
from dept.bench.suite import Suite

MARKS = "†‡§¶‖※"
SIZES = {"tiny": "Ti", "small": "S", "base": "B", "large": "L"}
METRICS = {"top1": "top-1 accuracy", "mean_per_class": "mean per-class accuracy", "error": "top-1 error"}


@dataclass(frozen=True)
class Note:
    """A footnote; `mark` is empty where it explains no sign."""

    mark: str
    text: str


class Notes:
    """Footnotes; equal texts share a mark."""

    def __init__(self) -> None:
        self.marks: dict[str, str] = {}
        self.plain: list[str] = []

    def mark(self, text: str) -> str:
        """The mark of a footnote, the same for the same text."""
        number = len(self.marks)
        return self.marks.setdefault(text, MARKS[number % len(MARKS)] * (1 + number // len(MARKS)))

    def say(self, text: str) -> None:
        """Add a footnote without a mark."""
        if text not in self.plain:
            self.plain.append(text)

    def __iter__(self) -> Iterator[Note]:
        yield from (Note(mark, text) for text, mark in self.marks.items())
        yield from (Note("", text) for text in self.plain)


def marks_of(suite: Suite, shift: Shift, choices: Sequence[Choice], notes: Notes) -> list[tuple[str, bool]]:
    """For each row of a column its mark, and whether it may be ranked; notes what is left out of averages.

    Marked is what differs from the rest of the column; ranked is what does not differ from the rest of its setting.
    """
    kept = {n: choice.kept[0] for n, choice in enumerate(choices) if choice.kept}
    whole = _standings(kept, dict.fromkeys(kept, ""))
    own = _standings(kept, {n: suite.rows[n].task for n in kept})
    marks = []
    for n, (row, choice) in enumerate(zip(suite.rows, choices, strict=True)):
        marks.append(_mark(kept[n], whole[n], own[n], notes) if n in kept else ("", True))
        for seed, reason in choice.aside:
            notes.say(f"Not averaged: {row.label} on {shift}, seed {seed} ({reason}).")
    return marks


def _standings(kept: Mapping[int, Run], groups: Mapping[int, str]) -> dict[int, Standing]:
    """The standing of every result among those of its group."""
    found: dict[int, Standing] = {}
    for group in set(groups.values()):
        members = [n for n in kept if groups[n] == group]
        found |= zip(members, standings([kept[n].record for n in members]), strict=True)
    return found


def _mark(one: Run, standing: Standing, own: Standing, notes: Notes) -> tuple[str, bool]:
    if one.departures:  # what follows from a departure need not be said twice
        return notes.mark(f"not as the suite defines it: {sentence(one.departures)}"), False
    marks = ""
    if standing.apart:
        marks += notes.mark(f"comparable only with rows of the same mark: {sentence(standing.apart)}")
    if standing.noted:
        marks += notes.mark(f"note: {sentence(standing.noted)}")
    return marks, not own.apart


# -- the protocol ------------------------------------------------------------------------------------------


def protocol_line(results: Results) -> str:
    """Weights, preprocessing, images, subset, batch, steps, seeds, reset, metric, read-out, versions, device.

    Several values of a field, where results differ in it, are separated by " | ".
    """
    suite = results.suite
    kept = {shift: [run for choice in results.column(shift) for run in choice.kept] for shift in suite.shifts}
    found = [run for column in kept.values() for run in column]
    records = [run.record for run in found]
    parts = [
        _backbone(results, records),
        _preprocessing(records),
        _images(kept),
        f"batch {_all(records, 'config.batch')}, steps {' | '.join(_lengths(records)) or 'none'}" if records else "",
        f"seeds {', '.join(map(str, sorted({run.seed for run in found} or suite.seeds)))}",
        f"reset per {_all(records, 'reset')}" if any("reset" in record for record in records) else "",
        f"metric: {METRICS.get(suite.metric, suite.metric)}, %",
        f"read-out: {_all(records, 'readout')}; evaluated on: {_all(records, 'evaluated_on')}" if records else "",
        _environment(records) if records else "no results yet",
    ]
    return "Protocol: " + "; ".join(part for part in parts if part) + "."


def summary(results: Results) -> str:
    """The protocol in a few words: network, size, length, seeds; empty without results."""
    runs = [run for choice in results.choices.values() for run in choice.kept]
    if not runs:
        return ""
    records = [run.record for run in runs]
    networks = dict.fromkeys(_network(record) for record in records)
    seeds = len({run.seed for run in runs})
    parts = [
        " or ".join(networks),
        f"{_all(records, 'preprocess.size')} px",
        " or ".join(f"{length} steps" if length.isdigit() else length for length in _lengths(records)),
        f"± over {seeds} seeds" if seeds > 1 else "one seed",
    ]
    return ", ".join(part for part in parts if part)


def _network(record: Mapping[str, Any]) -> str:
    """ViT-Ti/16 where it is timm's own; else the architecture by timm's name."""
    arch = str(record["arch"])
    own = {path for path in record if path.startswith("options.")} <= {"options.img_size"}
    found = re.match(r"vit_(tiny|small|base|large)_patch(\d+)_", arch)
    name = f"ViT-{SIZES[found[1]]}/{found[2]}" if found else arch
    return name if own else f"a variant of {name}"


def _backbone(results: Results, records: Sequence[Mapping[str, Any]]) -> str:
    """Names of the weights with their hashes: of the pretrained file where known, else of the model's backbone."""
    arch = _all(records, "arch") or " | ".join(dict.fromkeys(source.arch for source in results.suite.sources.values()))
    hashes = dict.fromkeys(str(protocol.get("weights_sha256", "")) for protocol in results.trainings.values())
    if hashes:
        return f"weights {arch}, sha256 {' | '.join(map(short, hashes))}"
    own = _all(records, "backbone_sha256")
    return f"weights {arch}" + (f", sha256 of the backbone {own}" if own else "")


def _preprocessing(records: Sequence[Mapping[str, Any]]) -> str:
    made: dict[str, None] = {}
    names = ("size", "resize", "rule", "interpolation", "mean", "std")
    for record in records:
        get = {name: record.get(f"preprocess.{name}") for name in names}
        if get["size"]:
            resize = f"resize {get['resize']} ({get['rule']}, {get['interpolation']})"
            rule = "images as they are" if get["rule"] == "none" else resize
            made[f"{rule}, crop {get['size']}, mean {_numbers(get['mean'])}, std {_numbers(get['std'])}"] = None
    return f"preprocessing: {' | '.join(made)}" if made else ""


def _numbers(values: Any) -> str:
    """One number where all channels have the same."""
    if isinstance(values, list | tuple) and len(set(values)) == 1:
        return f"{values[0]:g}"
    return str(values)


def _images(kept: Mapping[Shift, Sequence[Run]]) -> str:
    """Number of images and list hash per target, and how they were drawn."""
    listed: list[str] = []
    limits: dict[str, None] = {}
    for shift, found in kept.items():
        records = [one.record for one in found]
        for most in (record.get("most") for record in records):
            limits["all images" if most is None else f"at most {most} per domain, uniform, random.Random(0)"] = None
        if records:
            hashes = _all(records, "list_sha256")
            listed.append(f"{shift.target} {_all(records, 'images')}" + (f" (list {hashes})" if hashes else ""))
    return f"images: {' | '.join(limits)}: {', '.join(listed)}" if listed else ""


def _lengths(records: Sequence[Mapping[str, Any]]) -> list[str]:
    """How long the adaptations were, each length once."""
    return list(dict.fromkeys(_length(record) for record in records if record.get("method") != "source"))


def _length(record: Mapping[str, Any]) -> str:
    """How long a run was; a stream has one pass, whatever its config says of epochs."""
    if "reset" in record:
        return "one pass"
    epochs = record.get("config.epochs")
    return str(record.get("config.max_iters") or f"{epochs} epoch{'s' * (epochs != 1)}")


def _environment(records: Sequence[Mapping[str, Any]]) -> str:
    names = ("dept", "torch", "timm", "python", "device", "threads")
    *versions, device, threads = (f"{name} {_all(records, f'environment.{name}')}" for name in names)
    return f"{', '.join(versions)}; {device}, {threads}"


def _all(records: Sequence[Mapping[str, Any]], path: str) -> str:
    return " | ".join(dict.fromkeys(short(record[path]) for record in records if path in record))
