"""Turning argument lists into dataclasses with tyro, in one way for all commands."""

from __future__ import annotations

import io
import re
from contextlib import redirect_stderr
from dataclasses import field, fields, make_dataclass
from difflib import get_close_matches
from itertools import dropwhile, takewhile
from pkgutil import resolve_name
from typing import Annotated, Any, cast, get_type_hints

from dept.cli.command import REPEATABLE, Command, Positional, choose, flag_names
from dept.errors import UsageError


def parse(command: Command, argv: list[str]) -> tuple[Any, ...]:
    """One object for each part of the command, then the Config of its method if it has one.

    Prints the help page and exits if it is asked for. A wrong flag is refused before torch is imported.
    """
    if not {"-h", "--help", "--help-all"}.isdisjoint(argv):
        from dept.cli.help import page

        print(page(command, argv, everything="--help-all" in argv))
        raise SystemExit(0)
    _check_flags(command, argv)
    import tyro

    parts = [resolve_name(part) if isinstance(part, str) else part for part in command.parts.values()]
    typed: list[tuple[str, Any, Any]] = [(f"part{i}", _for_tyro(part), field()) for i, part in enumerate(parts)]
    if command.method:
        chosen = choose(command, argv)
        kind = resolve_name(chosen.place)
        config = kind.preset(chosen.preset) if chosen.preset else kind.Config()
        typed.append(("config", type(config), field(default=config)))
    style = (tyro.conf.OmitArgPrefixes, tyro.conf.OmitSubcommandPrefixes)
    arguments, printed = make_dataclass("Arguments", typed), io.StringIO()
    try:
        with redirect_stderr(printed):
            made: Any = tyro.cli(arguments, prog=f"dept {command.name}", args=argv, config=style)
    except SystemExit as stop:
        raise UsageError(f"{_sentence(printed.getvalue())} See `dept {command.name} --help`.") from stop
    return tuple(getattr(made, name) for name, *_ in typed)


def _sentence(printed: str) -> str:
    """What tyro prints in a box between its title and the next rule, as one sentence."""
    lines = [line[2:].rstrip("│ ") for line in printed.splitlines()[1:]]
    body = dropwhile(lambda line: not line.strip("─- "), lines)
    text = list(takewhile(lambda line: line.strip("─- "), body))
    if text and text[0].endswith(":"):  # arguments that are missing, the help of each indented below it
        text = [text[0], ", ".join(line.strip() for line in text[1:] if not line.startswith(" " * 8))]
    said = re.sub(r"^Error parsing \w+: ", "", " ".join(text)).rstrip(".")
    # tyro takes all positional arguments before the first flag or after the last, not around one
    said = re.sub(r"^Unrecognized options: ([^-].*)", r"Unexpected: \1. Files and folders come before flags", said)
    return said + "."


def _check_flags(command: Command, argv: list[str]) -> None:
    names = {name.replace("_", "-") for name in flag_names(command, argv)}
    known = [f"--{name}" for name in sorted(names)] + [f"--no-{name}" for name in sorted(names)]
    for word in argv:
        flag = word.split("=", 1)[0].replace("_", "-")
        if flag.startswith("--") and flag not in known:
            close = get_close_matches(flag, known, n=1)
            hint = f" Did you mean {close[0]}?" if close else f" `dept {command.name} --help-all` lists its flags."
            raise UsageError(f"`dept {command.name}` has no flag {flag}.{hint}")


def _for_tyro(part: type) -> type:
    """The dataclass with tyro's marks in place of ours, which exist so that help need not import tyro."""
    import tyro

    changed = []
    defaults = {one.name: one for one in fields(part)}
    for name, hint in get_type_hints(part, include_extras=True).items():
        for mark in getattr(hint, "__metadata__", ()):
            marks = [tyro.conf.UseAppendAction] if mark == REPEATABLE else []
            if isinstance(mark, Positional):
                marks = [tyro.conf.Positional, tyro.conf.arg(metavar=mark.metavar)]
            marked = cast(Any, Annotated)[hint.__origin__, *marks]
            changed.append((name, marked, field(default=defaults[name].default)))
    return make_dataclass(part.__name__, changed, bases=(part,), frozen=True) if changed else part
