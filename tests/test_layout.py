"""The house: every module has a room, rooms only look down, and nothing outside the command line speaks of flags."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

import pytest

import dept

ROOT = Path(dept.__file__).parent
LAYERS = (
    ("errors", "_version"),
    ("core", "data", "io", "metrics"),
    ("methods", "models"),
    ("health",),
    ("runs",),
    ("inference",),
    ("bench", "export", "serve", "share"),
    ("report",),
    ("demo",),
    ("cli",),
)
"""A room may import itself and the rooms of earlier lines; rooms of one line do not know each other."""
WITHIN = {"data": ("core",), "io": ("core",), "metrics": ("core",)}
"""Exceptions inside a layer: rooms that need one beside them."""


@lru_cache
def parsed(file: Path) -> ast.Module:
    return ast.parse(file.read_text())


def modules() -> list[Path]:
    return sorted(ROOT.rglob("*.py"))


def room(file: Path) -> str:
    """The top folder that a file belongs to, or its own name."""
    return file.relative_to(ROOT).parts[0].removesuffix(".py")


def package_of(file: Path) -> str:
    return ".".join(["dept", *file.parent.relative_to(ROOT).parts])


def imported(file: Path) -> Iterator[str]:
    """Absolute names of everything of dept that a file imports, lazily too, but not for type checking only."""
    tree = parsed(file)
    skipped = {
        id(child)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for child in ast.walk(node)
    }
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package_of(file).rsplit(".", node.level - 1)[0] + "." if node.level else ""
            yield from (f"{base}{node.module or ''}".rstrip(".") + f".{alias.name}" for alias in node.names)


def allowed(name: str) -> set[str]:
    """Rooms that a room may import."""
    level = next(number for number, layer in enumerate(LAYERS) if name in layer)
    below = {other for layer in LAYERS[:level] for other in layer}
    return below | {name} | set(WITHIN.get(name, ()))


@pytest.mark.parametrize("name", [name for layer in LAYERS for name in layer])
def test_rooms_only_look_down(name: str) -> None:
    files = [file for file in modules() if room(file) == name]
    assert files
    offences = [
        f"{file.relative_to(ROOT)} imports {target}"
        for file in files
        for target in imported(file)
        if target.startswith("dept.") and target.split(".")[1] not in allowed(name)
    ]
    assert offences == []


def test_every_module_has_a_room() -> None:
    known = {name for layer in LAYERS for name in layer} | {"__init__", "__main__"}
    assert {room(file) for file in modules()} <= known
    assert len(list(ROOT.glob("*.py"))) <= 8


def test_only_the_command_line_prints() -> None:
    for file in modules():
        if room(file) in ("cli", "demo"):
            continue
        calls = [n for n in ast.walk(parsed(file)) if isinstance(n, ast.Call)]
        assert not [c.lineno for c in calls if isinstance(c.func, ast.Name) and c.func.id == "print"], file


def test_only_core_touches_the_insides_of_timm() -> None:
    for file in modules():
        names = [name for name in imported(file) if name.startswith("timm.models")]
        attributes = {node.attr for node in ast.walk(parsed(file)) if isinstance(node, ast.Attribute)}
        names += attributes & {"blocks", "patch_embed", "attn", "global_pool", "num_prefix_tokens", "_pos_embed"}
        assert not names or room(file) == "core", f"{file}: {names}"
