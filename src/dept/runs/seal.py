"""A checksum in every JSON object of a run folder. It finds damage, not an attacker."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

NAME = "sha256"


def sealed(value: Mapping[str, Any]) -> dict[str, Any]:
    """The object with a checksum over the rest of it."""
    return {**value, NAME: _checksum(value)}


def unsealed(value: Mapping[str, Any]) -> dict[str, Any]:
    """Inverse of `sealed`; a ValueError if the object has changed since. Without a checksum nothing is known."""
    plain = {name: inner for name, inner in value.items() if name != NAME}
    if NAME in value and value[NAME] != _checksum(plain):
        raise ValueError("its checksum does not fit what it holds")
    return plain


def _checksum(value: Mapping[str, Any]) -> str:
    as_read = json.loads(json.dumps(value, default=str))  # tuples are lists by then, and all keys are texts
    return hashlib.sha256(json.dumps(as_read, sort_keys=True).encode()).hexdigest()
