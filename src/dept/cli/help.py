"""The help page of a command, made from what it declares."""

from __future__ import annotations

import ast
import re
import shutil
import textwrap

from dept.cli.command import Command, choose, sections, with_flags
from dept.cli.show import bold
from dept.methods.declared import Declared, attribute

COLUMN = 26
"""where the texts begin"""
TYPES = {"Path": "PATH", "int": "INT", "float": "FLOAT", "str": "TEXT"}


def page(command: Command, argv: list[str], *, everything: bool) -> str:
    """The page: the usual flags under plain headings, or every flag."""
    chosen = choose(command, argv) if command.method else None
    found = sections(command, chosen)
    every = [one for part in found.values() for one in part]
    names = {one.name for one in every if not one.positional}
    width = min(shutil.get_terminal_size((100, 24)).columns, 110)
    words = [_left(one) for one in every if one.positional]
    words += [_left(one) for one in every if one.default is None and not one.positional]
    blocks = [" ".join(["usage: dept", command.name, *words, "[flags]"])]
    blocks += [_wrapped(text, width) for text in command.about.split("\n\n")]
    if chosen and command.setting != "train":
        summary = with_flags(attribute(chosen.place, "summary"), names)
        blocks.append(_wrapped(f"Method {chosen.name}: {summary}. `dept methods` lists the others.", width))
    usual = names if everything or not command.common else command.common
    for heading, part in found.items():
        shown = [one for one in part if one.name in usual or one.default is None or one.positional]
        if shown:
            shown.sort(key=lambda one: not one.positional)
            blocks.append("\n".join([bold(heading), *(_lines(one, names, width) for one in shown)]))
    if command.common and not everything:
        blocks.append(f"`dept {command.name} --help-all` shows all {len(names)} flags.")
    return "\n\n".join(blocks)


def _wrapped(text: str, width: int) -> str:
    return textwrap.fill(text, width, break_on_hyphens=False)


def _lines(one: Declared, names: set[str], width: int) -> str:
    """Flag and text side by side, or below each other where the flag is long; then a default that says something."""
    left = f"  {_left(one)}"
    gap = left.ljust(COLUMN) if len(left) < COLUMN - 1 else f"{left}\n{' ' * COLUMN}"
    text = with_flags(one.text, names)
    if one.default is None:
        text += "" if one.positional else " (required)"
    else:
        value = ast.literal_eval(re.sub(r"^Path\((.*)\)$", r"\1", one.default))
        if value is not None and not isinstance(value, bool) and value not in ((), "", "{}"):
            text += f" (default: {' '.join(map(str, value)) if isinstance(value, tuple) else value})"
    return gap + _wrapped(text, max(width - COLUMN, 40)).replace("\n", "\n" + " " * COLUMN)


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
    return f"--{flag} {TYPES.get(kind, 'TEXT')}"
