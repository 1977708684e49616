"""The help page of a command, made from what it declares."""

from __future__ import annotations

import ast
import re
import shutil
import textwrap

from dept.cli.command import Chosen, Command, choose, sections, with_flags
from dept.cli.declared import Declared, attribute
from dept.cli.show import bold

COLUMN = 26
"""where the texts begin"""
TYPES = {"Path": "PATH", "int": "INT", "float": "FLOAT", "str": "TEXT"}


def page(command: Command, argv: list[str], *, everything: bool) -> str:
    """The page: the usual flags under plain headings, or every flag."""
    chosen = choose(command, argv) if command.method else None
    found = sections(command, chosen)
    names = {one.name for part in found.values() for one in part}
    total = sum(len(part) for part in found.values())
    width = min(shutil.get_terminal_size((100, 24)).columns, 110)
    blocks = [_usage(command, found), *(textwrap.fill(text, width) for text in command.about.split("\n\n"))]
    if chosen:
        blocks.append(textwrap.fill(_method(command, chosen), width))
    for heading, part in found.items():
        shown = [one for one in part if everything or _is_common(command, one)]
        if shown:
            blocks.append("\n".join([bold(heading), *(_lines(one, names, width) for one in shown)]))
    if command.common and not everything:
        blocks.append(f"`dept {command.name} --help-all` shows all {total} flags.")
    return "\n\n".join(blocks)


def _is_common(command: Command, one: Declared) -> bool:
    return not command.common or one.default is None or one.name in command.common


def _usage(command: Command, found: dict[str, list[Declared]]) -> str:
    every = [one for part in found.values() for one in part]
    words = [_left(one) for one in every if "Positional(" in one.annotation]
    words += [_left(one) for one in every if "Positional(" not in one.annotation and one.default is None]
    return " ".join(["usage: dept", command.name, *words, "[flags]"])


def _method(command: Command, chosen: Chosen) -> str:
    summary = attribute(chosen.place, "summary")
    others = " `dept methods` lists the others." if command.registry else ""
    return f"Method {chosen.name}: {with_flags(summary, set())}.{others}"


def _lines(one: Declared, names: set[str], width: int) -> str:
    """Flag and text side by side, or below each other where the flag is long."""
    left = f"  {_left(one)}"
    gap = left.ljust(COLUMN) if len(left) < COLUMN - 1 else f"{left}\n{' ' * COLUMN}"
    text = with_flags(one.text, names) + _default(one)
    return gap + textwrap.fill(text, max(width - COLUMN, 40)).replace("\n", "\n" + " " * COLUMN)


def _left(one: Declared) -> str:
    """`--flag TYPE`, or the name of a positional argument."""
    if positional := re.search(r"Positional\('(.*?)'\)", one.annotation):
        return positional[1]
    flag, kind = one.name.replace("_", "-"), one.annotation.removesuffix(" | None")
    if kind == "bool":
        return f"--[no-]{flag}" if one.default == "True" else f"--{flag}"
    if literal := re.fullmatch(r"Literal\[(.*)\]", kind):
        return f"--{flag} {{{literal[1].replace(chr(39), '').replace(' ', '')}}}"
    if several := re.search(r"tuple\[(\w+), (.*?)\]", kind):
        again = "" if "REPEATABLE" in kind else " …" if several[2] == "..." else f" {TYPES[several[2]]}"
        return f"--{flag} {TYPES[several[1]]}{again}"
    return f"--{flag} {TYPES[kind]}"


def _default(one: Declared) -> str:
    """The default in brackets, where it is a value that says something."""
    if one.default is None:
        return "" if "Positional(" in one.annotation else " (required)"
    source = re.sub(r"^Path\((.*)\)$", r"\1", one.default)
    value = ast.literal_eval(source)
    if value is None or isinstance(value, bool) or value in ((), "", "{}"):
        return ""
    text = " ".join(map(str, value)) if isinstance(value, tuple) else str(value)
    return f" (default: {text})"
