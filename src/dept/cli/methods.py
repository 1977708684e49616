"""`dept methods [NAME]`."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import Annotated

from dept import methods
from dept.cli.command import Command, Positional
from dept.cli.parse import parse
from dept.cli.show import bold, table
from dept.errors import UsageError
from dept.methods.declared import attribute, fields, module_docstring

GROUPS = {
    "Without source images (dept adapt, dept stream)": ("auto", *methods.TEST_TIME),
    "With labelled source images (dept uda)": ("uda",),
    "Source training (dept train)": ("train",),
}


@dataclass(frozen=True)
class MethodName:
    """The method to explain."""

    name: Annotated[str | None, Positional("[NAME]")] = None
    """a method to explain; without it, all are listed"""


COMMAND = Command("methods", "List the methods, or explain one.", {"Arguments": MethodName})


def run(argv: list[str]) -> None:
    """List the methods, or print the card and the settings of one. Both are read from source: torch is slow."""
    (given,) = parse(COMMAND, argv)
    if given.name is None:
        width = max(len(name) for name in methods.available()) + 2
        for heading, settings in GROUPS.items():
            names = sorted({name for setting in settings for name in methods.available(setting)})
            print("\n".join([bold(heading), *(f"  {name:<{width}}{methods.card(name).summary}" for name in names), ""]))
        print("`dept methods NAME` explains one.")
        return
    try:
        place = methods.place(given.name)
    except ValueError as error:
        raise UsageError(str(error)) from error
    print(module_docstring(place.split(":")[0]))
    rows = [[one.name, str(ast.literal_eval(one.default or "None"))] for one in fields(f"{place}.Config")]
    print("\n" + table(["setting", "default"], rows))
    for preset, changes in attribute(place, "presets").items():
        print(f"\npreset {preset}: " + (", ".join(f"{k}={v}" for k, v in changes.items()) or "the defaults"))
