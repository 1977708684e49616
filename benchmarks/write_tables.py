"""Write the tables in README.md and docs/ from the committed results: `python benchmarks/write_tables.py`.

A table stands between its command, `<!-- dept bench … -->` or `<!-- python benchmarks/SCRIPT.py … -->`, and
`<!-- end -->`; that of all methods, on their page, after `<!-- dept methods -->`. With --check nothing is written, and
the exit code is 1 if a table is not what its command prints.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import re
import runpy
import shlex
import sys
from pathlib import Path

from dept import methods
from dept.cli.bench import run

ROOT = Path(__file__).parents[1]
BLOCK = re.compile(r"<!-- (?P<command>(dept bench|dept methods|python benchmarks/).*?) -->\n.*?<!-- end -->", re.DOTALL)


def table(match: re.Match[str]) -> str:
    """The block with its table printed anew."""
    program, *words = shlex.split(match["command"])
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        if program == "python":
            sys.argv = words
            with contextlib.chdir(ROOT):  # where the paths of the command begin
                runpy.run_path(words[0], run_name="__main__")
        elif words[0] == "methods":
            print(method_table())
        else:
            form = [] if "--format" in words else ["--format", "markdown"]
            run([*words[1:], *form, "--results", str(ROOT / "benchmarks" / "results")])
    return f"<!-- {match['command']} -->\n{printed.getvalue().strip()}\n<!-- end -->"


def method_table() -> str:
    """All methods that adapt, and the settings each is meant for."""
    columns = {"offline": "offline", "online": "online", "uda": "with source"}
    lines = [f"| method | what it does | {' | '.join(columns.values())} |", "|---|---|:-:|:-:|:-:|"]
    for name in sorted(methods.available(), key=lambda name: (methods.card(name).settings[0] == "uda", name)):
        card = methods.card(name)
        settings = {"offline" if setting == "auto" else setting for setting in card.settings}
        if settings & set(columns):
            marks = " | ".join("✓" if setting in settings else "" for setting in columns)
            page = methods.place(name).split(":")[0].rsplit(".", 1)[1]
            lines.append(f"| [{card.title}]({page}.md) (`{name}`) | {card.summary} | {marks} |")
    return "\n".join(lines)


def main(argv: list[str]) -> int:
    """Update every page; returns 1 if --check finds a stale one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing, only tell what is stale")
    check = parser.parse_args(argv).check
    stale = []
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))):
        old = page.read_text()
        new = BLOCK.sub(table, old)
        if new != old:
            stale.append(page.relative_to(ROOT))
            if not check:
                page.write_text(new)
    for page in stale:
        print(f"{page}: {'stale; run python benchmarks/write_tables.py' if check else 'written'}")
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
