"""What a page is made of. All text is plain and escaped by the template, except `Figure.svg` and `Picture.uri`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Tone = Literal["", "good", "bad", "unclear"]


@dataclass(frozen=True)
class Tile:
    """One number with its name."""

    name: str
    value: str
    note: str = ""
    tone: Tone = ""


@dataclass(frozen=True)
class Figure:
    """A chart with its caption."""

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
    """a sign with the meaning of the tone, for readers who do not see the colour"""


@dataclass(frozen=True)
class Gallery:
    """Small images under a heading."""

    title: str
    pictures: list[Picture]
    maps: bool = False
    """an image and its attention maps: kept in rows of four on a phone"""


@dataclass(frozen=True)
class TableCell:
    """An entry of a table: main text, a second line, a third line, and a mark that a footnote explains."""

    text: str
    note: str = ""
    mark: str = ""
    tone: Tone = ""
    extra: str = ""
    best: bool = False
    link: str = ""
    """address that the text leads to: a file beside the page"""


@dataclass(frozen=True)
class Table:
    """A table whose first column names the rows."""

    header: list[str]
    rows: list[list[TableCell]]
    footnotes: tuple[str, ...] = ()
    wide: bool = False
    """many columns of short numbers: headings are vertical"""
    prose: bool = False
    """the last column is text"""


@dataclass(frozen=True)
class Section:
    """A part of the page. `missing` says why there is nothing to show."""

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
    """Text that is collapsed until opened."""

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
