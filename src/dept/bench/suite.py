"""A suite is data: source models, rows (a method in a setting) and shifts. Their product is a list of cells."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from dept.bench.runner import Cell
from dept.bench.shift import Shift
from dept.errors import UsageError
from dept.io import file_sha256

TRAINING = "source-training"


@dataclass(frozen=True)
class Source:
    """A source model: a pretrained backbone, trained on the source domain unless `config` is None.

    `config` holds fields of `SourceTraining.Config`; `extra` enters the protocol (and so the cell's key) as it is:
    `resize` and `weak_resize` of the images, `timm` keywords, `most` images per domain.
    """

    arch: str
    stages: int = 0
    prompts: int = 0
    size: int = 224
    config: Mapping[str, Any] | None = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)
    home: str = ""
    """the suite that the model belongs to, if another one borrows it: it is trained once"""

    file: Path | None = None
    """the model itself, if it is given and not made"""

    per_seed: bool = False
    """whether every seed of an adaptation starts from a model of its own; otherwise all share that of seed 0"""

    def protocol(self, weights: str) -> dict[str, Any]:
        """Everything the model depends on; `weights` identifies the pretrained tensors."""
        if self.file is not None:
            return {"file": self.file.name, "sha256": file_sha256(self.file), "config": None}
        made = {"arch": self.arch, "weights_sha256": weights, "size": self.size, "stages": self.stages}
        return {**made, "prompts": self.prompts, "config": None if self.config is None else dict(self.config)} | dict(
            self.extra
        )


@dataclass(frozen=True)
class Row:
    """A line of a table: a method in a setting (offline, online, uda, ensemble) on one of the suite's source models.

    An ensemble runs the method offline from the model of each source domain and averages the predictions.

    `config` holds fields of the method's Config; `extra` is what else the run is told (ratio, stats, stream,
    augmentation).
    `paper` names the paper's row that this one is to be put beside.
    """

    label: str
    method: str
    source: str
    setting: str = "offline"
    tag: str = ""
    preset: str | None = None
    config: Mapping[str, Any] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)
    paper: str = ""
    home: str = ""
    """the suite that has the same row, if another one borrows it: it is run once"""

    @property
    def name(self) -> str:
        """What a cell calls the setting: source model and tag, then the kind (`Cell.kind` reads it back)."""
        return f"{self.source}{self.tag} {self.setting}"

    @property
    def task(self) -> str:
        """What its numbers compete in: an ensemble has all images at once, like any offline method."""
        return "offline" if self.setting == "ensemble" else self.setting

    @property
    def random(self) -> bool:
        """Whether seeds matter."""
        return self.method != "source"


@dataclass(frozen=True)
class Suite:
    """A table or figure: every row on every shift, for every seed."""

    name: str
    title: str
    data: str
    shifts: tuple[Shift, ...]
    sources: Mapping[str, Source]
    rows: tuple[Row, ...]
    seeds: tuple[int, ...] = (0,)
    most: int | None = None
    """limit of target images per domain, drawn uniformly"""
    metric: str = "top1"
    """headline: top1, mean_per_class or error"""
    paper: str = ""
    """table of the paper's numbers"""

    def row(self, label: str) -> Row:
        """The row with this label."""
        found = [row for row in self.rows if row.label == label]
        if not found:
            labels = "; ".join(row.label for row in self.rows)
            raise UsageError(f"{self.name} has no row {label!r}; choose from {labels}.")
        return found[0]

    def lend(self, *names: str) -> dict[str, Source]:
        """Source models of this suite (all unless named) for another one."""
        return {name: replace(self.sources[name], home=self.name) for name in names or self.sources}

    def source_cell(self, name: str, shift: Shift, weights: str, seed: int = 0) -> Cell:
        """The training of the source model that a run with this seed starts from, on the source side of a shift."""
        source = self.sources[name]
        own = seed if source.per_seed else 0
        return Cell(source.home or self.name, self.data, shift.training, TRAINING, name, own, source.protocol(weights))

    def repeats(self, row: Row) -> bool:
        """Whether a row is run for every seed: it is random itself, or its source model is another one each time."""
        return row.random or self.sources[row.source].per_seed

    def starts(self, row: Row, shift: Shift) -> list[Shift]:
        """Shifts whose source models a row starts from: of each source domain by itself for an ensemble."""
        return shift.single_sources() if row.setting == "ensemble" else [shift]

    def cell(self, row: Row, shift: Shift, seed: int, weights: str) -> Cell:
        """One number of the table."""
        sources = [self.source_cell(row.source, own, weights, seed) for own in self.starts(row, shift)]
        protocol = {
            "source": "+".join(source.key for source in sources),
            "most": self.most,
            "preset": row.preset,
            "config": dict(row.config),
            **row.extra,
        }
        return Cell(row.home or self.name, self.data, shift, row.method, row.name, seed, protocol)

    def cells(self, weights: str) -> list[Cell]:
        """Trainings first, then shift by shift all rows; the first seed of everything before the second."""
        trained = [
            self.source_cell(row.source, own, weights, seed)
            for seed in self.seeds
            for row in self.rows
            for shift in self.shifts
            for own in self.starts(row, shift)
            if self.sources[row.source].config is not None
        ]
        runs = [
            self.cell(row, shift, seed, weights)
            for seed in self.seeds
            for shift in self.shifts
            for row in self.rows
            if self.repeats(row) or seed == self.seeds[0]
        ]
        return list({cell.key: cell for cell in (*trained, *runs)}.values())

    def chosen(
        self,
        *,
        methods: Sequence[str] = (),
        shifts: Sequence[str] = (),
        seeds: Sequence[int] = (),
        max_iters: int = 0,
        limit: int = 0,
    ) -> Suite:
        """A smaller suite. `max_iters` and `limit` change the protocol, and with it the cells' keys.

        Args:
            methods: methods or labels of rows.
            shifts: shifts, or their targets.
        """
        rows = _matching("row or method", self.rows, methods, lambda row: (row.method, row.label))
        kept = _matching("shift", self.shifts, shifts, lambda shift: (str(shift), shift.target))
        if max_iters:
            rows = tuple(replace(row, config={**row.config, "max_iters": max_iters}) for row in rows)
        most = min(limit, self.most or limit) if limit else self.most
        return replace(self, rows=rows, shifts=kept, seeds=tuple(seeds) or self.seeds, most=most)


def _matching(what: str, items: tuple[Any, ...], wanted: Sequence[str], names: Any) -> tuple[Any, ...]:
    """The items that one of the wanted names belongs to; an unknown name is an error."""
    if not wanted:
        return items
    known = sorted({name for item in items for name in names(item)})
    for name in wanted:
        if name not in known:
            raise UsageError(f"The suite has no {what} {name!r}; choose from {'; '.join(known)}.")
    return tuple(item for item in items if set(names(item)) & set(wanted))
