"""Access tokens: a file of hashes with a role and a name each. A token itself is stored nowhere."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast, get_args

from dept.errors import DataError, UsageError
from dept.io import write_atomic

Role = Literal["predict", "operate"]
"""predict: predictions only. operate: everything"""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.@-]{0,63}")
_HASH = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Caller:
    """Who sends a request."""

    name: str
    role: Role


LOCAL = Caller("local", "operate")
"""everybody, on a server without tokens"""


@dataclass(frozen=True)
class Tokens:
    """The callers that a server knows, by the sha256 of their token."""

    known: Sequence[tuple[str, Caller]]

    def caller(self, token: str) -> Caller | None:
        """Whose token this is. Every hash is compared, in constant time: how long it takes tells nothing."""
        given = _hashed(token)
        found = None
        for digest, caller in self.known:
            if hmac.compare_digest(digest, given):
                found = caller
        return found


def read_tokens(file: Path) -> Tokens:
    """The tokens of a file: lines `ROLE NAME SHA256`; empty lines and comments (#) are passed over."""
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{file} cannot be read as a file of tokens ({error}). Make one with `dept token`.") from error
    known = []
    for number, line in enumerate(lines, 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        # The line itself is not quoted: it may hold a token that somebody has put there by mistake.
        if (
            len(words) != 3
            or words[0] not in get_args(Role)
            or not _NAME.fullmatch(words[1])
            or not _HASH.fullmatch(words[2])
        ):
            raise DataError(f"{file}, line {number}: expected ROLE NAME SHA256 with role predict or operate.")
        known.append((words[2], Caller(words[1], cast(Role, words[0]))))
    if not known:
        raise DataError(f"{file} holds no token. Make one with `dept token`.")
    return Tokens(known)


def new_token(file: Path, name: str, role: Role) -> str:
    """Make a token and add its hash to a file; the token is returned, and cannot be found out again."""
    if not _NAME.fullmatch(name):
        raise UsageError(f"`name` must be up to 64 letters, digits and _.@-, found {name[:80]!r}.")
    held = read_tokens(file).known if file.exists() and file.stat().st_size else []
    if any(caller.name == name for _, caller in held):
        raise UsageError(f"{file} already has a token for {name}. Remove its line first, or choose another `name`.")
    token = secrets.token_urlsafe(32)
    before = file.read_text(encoding="utf-8") if file.exists() else ""
    start = before if before.endswith("\n") or not before else before + "\n"
    write_atomic(file, f"{start}{role} {name} {_hashed(token)}\n".encode())
    file.chmod(0o600)
    return token


def _hashed(token: str) -> str:
    """A token has 256 random bits, so a plain hash cannot be searched."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()
