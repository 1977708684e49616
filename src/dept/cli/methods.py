"""`dept methods [NAME]`."""

from __future__ import annotations

import inspect
import sys
from dataclasses import dataclass, fields
from typing import Annotated

import tyro

from dept import methods
from dept.cli.parse import parse
from dept.cli.show import table
from dept.errors import UsageError


@dataclass(frozen=True)
class Files:
    """Which method."""

    name: Annotated[str | None, tyro.conf.Positional] = None
    """a method to explain; without it, all are listed"""


GROUPS = {
    "Without source images (dept adapt, dept stream)": methods.TEST_TIME,
    "With labelled source images (dept uda)": ("uda",),
    "Source training (dept train)": ("train",),
}


def run(argv: list[str]) -> int:
    """List the methods, or print the card and the settings of one."""
    files: Files = parse("methods", "List the methods, or explain one.", argv, files=Files).files
    if files.name is None:
        print("\n\n".join(_group(heading, settings) for heading, settings in GROUPS.items()))
        return 0
    try:
        kind = methods.get(files.name)
    except ValueError as error:
        raise UsageError(str(error)) from error
    print(inspect.getdoc(sys.modules[kind.__module__]))
    print("\n" + table(["setting", "default"], [[f.name, str(f.default)] for f in fields(kind.Config)]))
    for preset, changes in kind.presets.items():
        print(f"\npreset {preset}: " + (", ".join(f"{k}={v}" for k, v in changes.items()) or "the defaults"))
    return 0


def _group(heading: str, settings: tuple[str, ...]) -> str:
    names = sorted({name for setting in settings for name in methods.available(setting)})
    width = max(len(name) for name in methods.available())
    return "\n".join([f"{heading}:", *(f"  {name:<{width}}  {methods.card(name).summary}" for name in names)])
