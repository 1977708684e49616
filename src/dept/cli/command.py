"""What a command is: data that help, parsing and error messages are made from, without importing torch."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from dept import methods
from dept.errors import UsageError
from dept.methods.declared import Declared, attribute, fields


class Positional(NamedTuple):
    """Mark of an argument without a flag, as in `Annotated[Path, Positional("MODEL")]`."""

    metavar: str


REPEATABLE = "repeatable"
"""Mark of a flag that may be given several times, one value each."""


@dataclass(frozen=True)
class Command:
    """A command as data. A place is "module:Class", see `dept.methods.declared`."""

    name: str
    """as typed after `dept`"""
    about: str
    """what it does: one sentence, then details"""
    parts: Mapping[str, type | str]
    """heading -> dataclass whose fields are the flags, or its place if torch is imported with it"""
    common: tuple[str, ...] = ()
    """fields that `--help` shows; by default all"""
    setting: str = ""
    """where its methods run: offline, online, uda or train. The Config of the chosen one adds flags"""
    method: str = ""
    """default of --method, or the only method"""
    preset: str = ""
    """default of --preset, for methods that have it"""


class Chosen(NamedTuple):
    """The method of a command line."""

    place: str
    name: str
    preset: str | None


def choose(command: Command, argv: list[str]) -> Chosen:
    """The method and preset of a command line, read ahead: they decide which other flags exist, and their defaults."""
    try:
        place = methods.place(peek(argv, "--method") or command.method, command.setting)
    except ValueError as error:
        raise UsageError(str(error)) from error
    name, presets = attribute(place, "name"), attribute(place, "presets")
    preset = peek(argv, "--preset") or (command.preset if command.preset in presets else None)
    if preset is not None and preset not in presets:
        known = ", ".join(sorted(presets)) or "none"
        raise UsageError(f"Method {name!r} has no preset {preset!r}. Available presets: {known}.")
    return Chosen(place, name, preset)


def peek(argv: list[str], flag: str) -> str | None:
    """The value of a flag that is needed before the real parsing; a UsageError if it is given twice."""
    values = [after for word, after in pairwise(argv) if word == flag]
    values += [word.split("=", 1)[1] for word in argv if word.startswith(f"{flag}=")]
    if len(values) > 1:
        raise UsageError(f"{flag} is given {len(values)} times ({', '.join(values)}). Give it once.")
    return values[0] if values else None


def sections(command: Command, chosen: Chosen | None) -> dict[str, list[Declared]]:
    """Heading -> fields, with those of the chosen method last. Its preset sets the defaults."""
    found = {
        heading: fields(part if isinstance(part, str) else f"{part.__module__}:{part.__name__}")
        for heading, part in command.parts.items()
    }
    if chosen:
        changes = attribute(chosen.place, "presets").get(chosen.preset, {})
        heading = f"Settings of {chosen.name}" if command.setting != "train" else "Training"
        found[heading] = [
            one._replace(default=repr(changes[one.name])) if one.name in changes else one
            for one in fields(f"{chosen.place}.Config")
        ]
    return found


def flag_names(command: Command, argv: list[str]) -> set[str]:
    """Names of the fields that are flags of a command line."""
    chosen = choose(command, argv) if command.method else None
    return {one.name for part in sections(command, chosen).values() for one in part if not one.positional}


def with_flags(text: str, names: set[str]) -> str:
    """The text of library code, which names parameters, in the words of the command line.

    `name` becomes --name, `name=value` becomes --name value, and "name must ..." at the beginning --name must ....
    """

    def flag(match: re.Match[str]) -> str:
        name, value = match[1] or match[3], match[2]
        if name not in names:
            return match[0]
        dashed = name.replace("_", "-")
        if value in ("True", "False"):
            return f"--{dashed}" if value == "True" else f"--no-{dashed}"
        return f"--{dashed} {value.strip(chr(34) + chr(39))}" if value else f"--{dashed}"

    return re.sub(r"`([a-z_]+)(?:=([^`]+))?`|^([a-z_]+)(?= must )", flag, text)
