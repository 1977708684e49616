"""What a page is made of. Everything but `Figure.svg` and `Picture.uri` is plain text; the template escapes it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Tone = Literal["", "good", "bad", "unsure"]


@dataclass(frozen=True)
class Tile:
    """One number with its name."""

    name: str
    value: str
    note: str = ""
    tone: Tone = ""


@dataclass(frozen=True)
class Figure:
    """A chart with what to see in it."""

    svg: str
    title: str
    caption: str = ""
    legend: bool = False
    """explain the colours of before and after"""


@dataclass(frozen=True)
class Picture:
    """A small image."""

    uri: str
    alt: str
    caption: str
    tone: Tone = ""
    mark: str = ""
    """a sign that says what the tone says, for those who do not see the colour"""


@dataclass(frozen=True)
class Gallery:
    """Small images under a heading."""

    title: str
    pictures: list[Picture]
    maps: bool = False
    """one image and maps over it: kept in rows of four on a phone"""


@dataclass(frozen=True)
class Cell:
    """An entry of a table: main text, a second line and a third, a mark that a footnote explains."""

    text: str
    note: str = ""
    mark: str = ""
    tone: Tone = ""
    extra: str = ""
    best: bool = False


@dataclass(frozen=True)
class Table:
    """A table; the first column names the rows."""

    header: list[str]
    rows: list[list[Cell]]
    footnotes: tuple[str, ...] = ()
    wide: bool = False
    """many columns of short numbers: their names are turned"""


@dataclass(frozen=True)
class Section:
    """A part of the page; `missing` says why there is nothing to show."""

    key: str
    title: str
    lead: str = ""
    figures: tuple[Figure, ...] = ()
    galleries: tuple[Gallery, ...] = ()
    tiles: tuple[Tile, ...] = ()
    table: Table | None = None
    missing: str = ""


@dataclass(frozen=True)
class Fold:
    """Text that is there when asked for."""

    title: str
    text: str


@dataclass(frozen=True)
class Page:
    """A whole report."""

    title: str
    subtitle: str
    verdict: str
    tone: Tone
    sections: tuple[Section, ...]
    remarks: tuple[str, ...] = ()
    tiles: tuple[Tile, ...] = ()
    command: str = ""
    command_notes: tuple[str, ...] = ()
    folds: tuple[Fold, ...] = ()
