"""The fenced blocks of the README and of docs/, and the commands in them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"(?:<!-- (?P<mark>run by [^>]*?) -->\n)?^```(?P<kind>\w*)\n(?P<text>.*?)^```", re.M | re.S)


class Block(NamedTuple):
    """A fenced block."""

    page: Path
    line: int
    kind: str
    text: str
    mark: str

    def __str__(self) -> str:
        return f"{name_of(self.page)}:{self.line}"


class Command(NamedTuple):
    """A command of a bash block: its words, and the file that its output goes to."""

    words: list[str]
    output: str = ""


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def blocks(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    return [
        Block(page, text.count("\n", 0, found.start("text")), found["kind"], found["text"], found["mark"] or "")
        for found in BLOCK.finditer(text)
    ]


ALL = [block for page in PAGES for block in blocks(page)]


def commands(text: str) -> Iterator[Command]:
    """The commands of a bash block, without comments."""
    for line in text.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        if ">" in words:
            at = words.index(">")
            yield Command(words[:at], words[at + 1])
        elif words:
            yield Command(words)
