"""Turning argument lists into dataclasses with tyro, in one way for all commands."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import field, make_dataclass
from typing import TYPE_CHECKING, Any

import tyro

from dept.errors import UsageError

if TYPE_CHECKING:  # commands that need no torch must not wait for it
    from dept.methods.base import BaseConfig, Method

_STYLE = (tyro.conf.OmitArgPrefixes, tyro.conf.OmitSubcommandPrefixes)


def parse(prog: str, description: str, argv: list[str], **parts: Any) -> Any:
    """Parse `argv` into an object with one attribute per part.

    A part is a dataclass (its fields become flags) or an instance of one (which then gives the defaults).
    """
    fields = [
        (name, part, field()) if isinstance(part, type) else (name, type(part), field(default=part))
        for name, part in parts.items()
    ]
    command = make_dataclass("Command", fields)
    return tyro.cli(command, prog=f"dept {prog}", description=description, args=argv, config=_STYLE)


def peek(argv: list[str], flag: str, default: str | None) -> str | None:
    """The value of a flag that decides which other flags exist, read before the real parsing."""
    for position, text in enumerate(argv):
        if text == flag and position + 1 < len(argv):
            return argv[position + 1]
        if text.startswith(f"{flag}="):
            return text.split("=", 1)[1]
    return default


def choose(
    get: Callable[[str], type[Method]], argv: list[str], method: str, prefer: str | None = None
) -> tuple[type[Method], BaseConfig]:
    """The method of --method with the settings of --preset, both read ahead: they decide which other flags exist.

    Args:
        get: finds a method by its name.
        method: its name if the flag is not there.
        prefer: the preset, where the method has it, if the flag is not there.
    """
    try:
        kind = get(peek(argv, "--method", None) or method)
        preset = peek(argv, "--preset", prefer if prefer in kind.presets else None)
        return kind, kind.preset(preset) if preset else kind.Config()
    except ValueError as error:
        raise UsageError(str(error)) from error


def timm_options(text: str) -> dict[str, Any]:
    """The --timm keywords."""
    try:
        options = json.loads(text)
    except json.JSONDecodeError as error:
        raise UsageError(f"--timm must be JSON such as '{{\"img_size\": 128}}', found {text!r} ({error}).") from error
    if not isinstance(options, dict):
        raise UsageError(f"--timm must be a JSON object, found {text!r}.")
    return options
