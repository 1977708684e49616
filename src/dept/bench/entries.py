"""A table as data: what is in it, before anyone decides how it looks. Numbers are percent, as they are printed."""

from __future__ import annotations

from dataclasses import dataclass

MEAN = "mean"
"""name of the last column, where there are several"""


@dataclass(frozen=True)
class Entry:
    """One number: mean and standard deviation over seeds, beside the gain over the row's own source model.

    What was trained with source data has no such model: its gain is over ERM.
    """

    mean: float | None = None
    sd: float | None = None
    seeds: int = 0
    gain: float | None = None
    interval: tuple[float, float] | None = None
    """95 % of the gain, paired bootstrap over images; ends averaged over seeds"""
    per_class: float | None = None
    """mean of the accuracies per class, beside a headline of top-1: classes may be unbalanced"""
    paper: float | None = None
    """what the paper prints"""
    mark: str = ""
    """signs that footnotes explain: another protocol than the rest of the column"""
    best: bool = False
    second: bool = False
    seconds: float | None = None
    changed: float | None = None
    """share of predictions that adaptation changed"""


@dataclass(frozen=True)
class Line:
    """A row of the table."""

    label: str
    method: str
    setting: str
    entries: tuple[Entry, ...]
    tunable: int | None = None
    """parameters in the adapter"""
    seconds: float | None = None
    """of one run, the source training not counted"""
    changed: float | None = None


@dataclass(frozen=True)
class Note:
    """A footnote; `mark` is empty where it explains no sign."""

    mark: str
    text: str


@dataclass(frozen=True)
class Table:
    """A table with its footnotes and its protocol."""

    suite: str
    title: str
    metric: str
    columns: tuple[str, ...]
    lines: tuple[Line, ...]
    notes: tuple[Note, ...] = ()
    protocol: str = ""
    citation: str = ""
    """of the paper, where its numbers stand beside ours"""

    @property
    def lower_is_better(self) -> bool:
        """Whether the headline is an error."""
        return self.metric == "error"
