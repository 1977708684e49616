"""A small HTML checker: every element is closed in order, and nothing is fetched."""

from __future__ import annotations

import re
from collections.abc import Collection
from html.parser import HTMLParser
from typing import Any

VOID = {"meta", "img", "br", "link", "input"}
FETCHING = {"src", "href", "xlink:href", "action", "data", "poster", "srcset"}


class _Checker(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.ids: list[str] = []
        self.loads: list[str] = []
        self.tags: list[str] = []
        self.problems: list[str] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self._attributes(attrs)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self._attributes(attrs)

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open[-1] != tag:
            self.problems.append(f"</{tag}> closes {self.open[-1:]} at {self.getpos()}")
        else:
            self.open.pop()

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.text.append(data)

    def _attributes(self, attrs: list[tuple[str, str | None]]) -> None:
        self.ids += [value or "" for name, value in attrs if name == "id"]
        self.loads += [value or "" for name, value in attrs if name in FETCHING]
        self.problems += [f"handler {name}" for name, _ in attrs if name.startswith("on")]


def checked(html: str, *, files: Collection[str] = ()) -> Any:
    """Parse the page. Fails unless it is well-formed, without scripts, fetches nothing and leads to these files."""
    parser = _Checker()
    parser.feed(html)
    parser.close()
    assert parser.problems == [] and parser.open == []
    assert "script" not in parser.tags and "link" not in parser.tags and "iframe" not in parser.tags
    assert all(load.startswith(("#", "data:image/jpeg;base64,")) or load in files for load in parser.loads)
    assert not re.search(r"https?://|@import|url\(", html)
    assert len(parser.ids) == len(set(parser.ids))
    return parser
