"""The page of a benchmark suite: methods × shifts, gains with intervals, and marks where protocols differ."""

from __future__ import annotations

import json
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dept.bench.runner import read_cell
from dept.errors import DataError
from dept.report.blocks import Cell, Figure, Fold, Page, Section, Table, Tile, Tone
from dept.report.charts import signed
from dept.report.maps import GainRow, gains
from dept.uda_run import WITH_SOURCE

_METHOD_OWN = ("method", "views", "config", "seed")
_STEPS = ("batch", "epochs", "max_iters")


@dataclass(frozen=True)
class Entry:
    """Cells that differ by their seed only: one entry of the table. Numbers are percent and points."""

    name: str
    shift: str
    seeds: tuple[int, ...]
    top1: tuple[float, ...]
    mean_per_class: float | None
    gain: float
    interval: tuple[float, float] | None
    tunable: int
    seconds: float | None
    has_gain: bool
    """neither a source model itself, nor trained with source data, which begins with an untrained head"""
    protocol: Mapping[str, Any]
    """what must agree for two numbers to stand in one column"""


def cell_files(folder: Path) -> list[Path]:
    """Result files of a suite's cells; empty if the folder is something else."""
    if (folder / "config.json").exists() or (folder / "predictions.jsonl").exists():
        return []
    return sorted(folder.glob("*/result.json"))


def bench_page(folder: Path) -> Page:
    """The page of all finished cells below the folder."""
    cells = [read_cell(file) for file in cell_files(folder)]
    scored = [cell for cell in cells if "after" in cell["result"]]
    if not scored:
        raise DataError(f"The {len(cells)} cells in {folder} hold no scored adaptation (before and after).")
    entries = grouped(scored)
    suite = str(cells[0]["cell"].get("suite", folder.name))
    shifts = list(dict.fromkeys(entry.shift for entry in entries))
    sentence, tone = _verdict(entries)
    return Page(
        title=f"Benchmark {suite}",
        subtitle=f"{len(scored)} cells · {len({e.name for e in entries})} methods · {len(shifts)} shifts",
        verdict=sentence,
        tone=tone,
        sections=tuple(_sections(entries, shifts, cells)),
        tiles=(),
        folds=tuple(_folds(scored)),
    )


def grouped(cells: Sequence[dict[str, Any]]) -> list[Entry]:
    """Entries by shift, method and setting, in this order; seeds together."""
    groups: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for cell in cells:
        head = cell["cell"]
        key = (str(head.get("shift", "")), str(head.get("method", "")), str(head.get("setting", "")))
        groups.setdefault(key, []).append(cell)
    order = sorted(groups, key=lambda key: (key[0], key[2], key[1] != "source", key[1]))
    words = _told({key[2] for key in order})
    return [
        _entry(key, words[key[2]], sorted(groups[key], key=lambda cell: int(cell["cell"].get("seed", 0))))
        for key in order
    ]


def _told(settings: set[str]) -> dict[str, str]:
    """Settings without the words that all of them have: what all share tells no row from another."""
    split = {setting: setting.split() for setting in settings}
    shared = set.intersection(*(set(words) for words in split.values())) if len(settings) > 1 else set()
    return {setting: " ".join(word for word in words if word not in shared) for setting, words in split.items()}


def _entry(key: tuple[str, str, str], told: str, cells: Sequence[dict[str, Any]]) -> Entry:
    shift, method, _ = key
    results = [cell["result"] for cell in cells]
    gains_ = [100 * float(r.get("gain", r["after"]["top1"] - r["before"]["top1"])) for r in results]
    ends = [r["gain_ci95"] for r in results if r.get("gain_ci95")]
    known = len(ends) == len(results)
    interval = (100 * statistics.mean(e[0] for e in ends), 100 * statistics.mean(e[1] for e in ends)) if known else None
    means = [r["after"]["mean_per_class"] for r in results if "mean_per_class" in r["after"]]
    times = [float(r["seconds"]) for r in results if "seconds" in r]
    return Entry(
        name=f"{method}, {told}" if told else method,
        shift=shift.replace("->", " → "),
        seeds=tuple(int(cell["cell"].get("seed", 0)) for cell in cells),
        top1=tuple(100 * float(r["after"]["top1"]) for r in results),
        mean_per_class=100 * statistics.mean(means) if means else None,
        gain=statistics.mean(gains_),
        interval=interval,
        tunable=int(results[0].get("tunable_model", 0)),
        seconds=statistics.mean(times) if times else None,
        has_gain=method != "source" and results[0].get("protocol", {}).get("setting") != WITH_SOURCE,
        protocol=comparable(results[0]),
    )


def comparable(result: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a result's protocol that should be equal in one column, flat; the method's own settings are not."""
    protocol = result.get("protocol", {})
    same = {name: value for name, value in protocol.items() if name not in _METHOD_OWN}
    if result.get("tunable_total"):  # steps mean nothing to a method that makes none
        same |= {name: protocol["config"][name] for name in _STEPS if name in protocol.get("config", {})}
    environment = {k: v for k, v in result.get("environment", {}).items() if k != "threads"}
    return same | {f"version of {k}" if k != "device" else k: v for k, v in environment.items()}


def differences(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """Names of what both say and say differently."""
    return sorted(name for name in one.keys() & other.keys() if one[name] != other[name])


def odd_ones(column: Sequence[Entry]) -> dict[str, tuple[str, ...]]:
    """For entries of one shift: in what each differs from the commonest protocol of the column, if it does."""
    texts = [json.dumps(entry.protocol, sort_keys=True, default=str) for entry in column]
    common = Counter(texts).most_common(1)[0][0] if texts else ""
    reference = next((entry for entry, text in zip(column, texts, strict=True) if text == common), None)
    if reference is None:
        return {}
    found = {entry.name: tuple(differences(entry.protocol, reference.protocol)) for entry in column}
    return {name: odd for name, odd in found.items() if odd}


def _verdict(entries: Sequence[Entry]) -> tuple[str, Tone]:
    adapted = [entry for entry in entries if entry.has_gain]
    if not adapted:
        return f"{len(entries)} results and no adapted source model: there is no gain to tell of.", "unsure"
    best = max(adapted, key=lambda entry: entry.gain)
    sure = [entry for entry in adapted if entry.interval and entry.interval[0] > 0]
    worse = [entry for entry in adapted if entry.interval and entry.interval[1] < 0]
    unknown = sum(entry.interval is None for entry in adapted)
    tail = f" ({unknown} without interval)" if unknown else ""
    span = f", 95 % interval {signed(best.interval[0], 1)} to {signed(best.interval[1], 1)}" if best.interval else ""
    sentence = (
        f"Of {len(adapted)} adapted entries{tail}, {len(sure)} are clearly better than their source model and "
        f"{len(worse)} clearly worse. The largest gain is {signed(best.gain, 1)} points, "
        f"{best.name} on {best.shift}{span}."
    )
    return sentence, ""  # many methods have no common verdict


def _sections(entries: Sequence[Entry], shifts: Sequence[str], cells: Sequence[dict[str, Any]]) -> list[Section]:
    rows = [GainRow(e.shift, e.name, e.gain, *(e.interval or (None, None))) for e in entries if e.has_gain]
    lead = (
        "Top-1 accuracy in percent, mean ± standard deviation over seeds; below, the gain over the method's own source "
        "model in points with its paired 95 % interval (mean over seeds)."
    )
    if any(entry.protocol.get("setting") == WITH_SOURCE for entry in entries):
        lead += " What was trained with source data begins with an untrained head and has no such gain."
    sections = [Section("table", "Methods and shifts", lead, table=_table(entries, shifts))]
    if rows:
        words = "Whiskers are paired 95 % intervals; green is clearly better, red clearly worse, violet undecided."
        sections.append(Section("gains", "Gains", words, (Figure(gains(rows), "Gain over the source model"),)))
    trained = [cell for cell in cells if "accuracy" in cell["result"]]
    if trained:
        sections.append(Section("sources", "Source models", tiles=tuple(_source_tile(cell) for cell in trained)))
    return sections


def _table(entries: Sequence[Entry], shifts: Sequence[str]) -> Table:
    names = list(dict.fromkeys(entry.name for entry in entries))
    found = {(entry.name, entry.shift): entry for entry in entries}
    odd = {shift: odd_ones([entry for entry in entries if entry.shift == shift]) for shift in shifts}
    letters: dict[tuple[str, ...], str] = {(): ""}
    for ways in (way for column in odd.values() for way in column.values()):
        letters.setdefault(ways, chr(ord("a") + (len(letters) - 1) % 26))
    notes = [
        f"{letter}: another protocol than most of the column, in {', '.join(ways)}."
        for ways, letter in letters.items()
        if letter
    ]
    rows = []
    for name in names:
        own = next(entry for entry in entries if entry.name == name)
        line = [Cell(name, f"{own.tunable:,} tuned" if own.tunable else "nothing tuned")]
        line += [_number(found.get((name, shift)), letters[odd[shift].get(name, ())]) for shift in shifts]
        rows.append(line)
    return Table(["method", *shifts], rows, tuple(notes) or ("All protocols agree within each column.",))


def _number(entry: Entry | None, mark: str) -> Cell:
    if entry is None:
        return Cell("–")
    spread = f" ± {statistics.stdev(entry.top1):.1f}" if len(entry.top1) > 1 else ""
    count = f"{len(entry.seeds)} seed{'s' if len(entry.seeds) > 1 else ''}"
    extra = f", {entry.seconds:,.0f} s" if entry.seconds is not None else ""
    text = f"{statistics.mean(entry.top1):.1f}{spread}"
    if not entry.has_gain:
        return Cell(text, mark=mark, extra=f"{count}{extra}")
    span = f" [{signed(entry.interval[0], 1)}, {signed(entry.interval[1], 1)}]" if entry.interval else ""
    tone: Tone = ""
    if entry.interval is not None:
        tone = "good" if entry.interval[0] > 0 else "bad" if entry.interval[1] < 0 else ""
    return Cell(text, f"{signed(entry.gain, 1)}{span}", mark, tone, f"{count}{extra}")


def _source_tile(cell: Mapping[str, Any]) -> Tile:
    head, result = cell["cell"], cell["result"]
    name = f"{head.get('shift', '')}, {head.get('setting', '')}, seed {head.get('seed', 0)}"
    return Tile(name, f"{100 * result['accuracy']:.1f} %", "held-out source accuracy")


def _folds(cells: Sequence[Mapping[str, Any]]) -> list[Fold]:
    """The whole protocol of every cell."""
    made = []
    for cell in cells:
        head = cell["cell"]
        words = [str(head.get(name, "")).replace("->", " → ") for name in ("shift", "method", "setting")]
        value = {"cell": head, "protocol": cell["result"].get("protocol", {})}
        value["environment"] = cell["result"].get("environment", {})
        title = f"{', '.join(filter(None, words))}, seed {head.get('seed', 0)}"
        made.append(Fold(title, json.dumps(value, indent=2, sort_keys=True, default=str)))
    return made
