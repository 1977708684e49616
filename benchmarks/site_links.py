"""A hook of mkdocs: links from docs/ to files outside it, which a forge can follow, become plain text on the site."""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import Any

LINK = re.compile(r"\[(?P<text>[^\]]*)\]\((?P<target>\.\./[^)\s]*)\)")


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Called by mkdocs for every page."""
    depth = len(PurePosixPath(page.file.src_uri).parts) - 1

    def plain(match: re.Match[str]) -> str:
        climbs = match["target"].split("/").count("..")
        return match["text"] if climbs > depth else match[0]

    return LINK.sub(plain, markdown)
