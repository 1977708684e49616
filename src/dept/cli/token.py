"""`dept token NAME --role ROLE --file FILE`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from dept.cli.command import Command, Positional
from dept.cli.parse import parse
from dept.cli.show import say


@dataclass(frozen=True)
class TokenInput:
    """Whose token, and what it allows."""

    name: Annotated[str, Positional("NAME")]
    """who or what gets the token; the history of a domain shows it"""
    file: Path
    """file of hashes to add it to; `dept serve` reads it as --token-file"""
    role: Literal["predict", "operate"] = "predict"
    """predict: predictions only; operate: also adapters, adaptation and the dashboard"""


COMMAND = Command(
    "token",
    """Make an access token for `dept serve`.

The token is printed once. The file holds only its hash. Remove a line to revoke a token, and restart the server.""",
    {"Input": TokenInput},
)


def run(argv: list[str]) -> None:
    """Print a new token."""
    (given,) = parse(COMMAND, argv)
    from dept.serve.tokens import new_token

    print(new_token(given.file, given.name, given.role))
    say(f"Added {given.name} ({given.role}) to {given.file}. The token is not stored anywhere: keep it.")
