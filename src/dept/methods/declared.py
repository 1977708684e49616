"""What a class declares, read from its source: help pages must not wait for torch to be imported.

A place is written "module:Class" or "module:Class.Inner", within the package `dept`.
"""

from __future__ import annotations

import ast
from functools import lru_cache
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple


class Declared(NamedTuple):
    """A field of a dataclass: annotation and default as they are written, and the docstring below it."""

    name: str
    annotation: str
    default: str | None
    text: str

    @property
    def positional(self) -> bool:
        """Whether it is an argument without a flag."""
        return "Positional(" in self.annotation


class _Found(NamedTuple):
    """A module, class or value, and the module that its names belong to."""

    module: str
    node: Any


def fields(place: str) -> list[Declared]:
    """The fields of a dataclass in the order of `dataclasses.fields`, those of its bases included."""
    found: dict[str, Declared] = {}
    for part in reversed(_lineage(_find(*place.split(":")))):  # a field declared again keeps its first position
        body = part.node.body
        for node, after in zip_longest(body, body[1:]):
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                default = None if node.value is None else ast.unparse(node.value)
                kind = node.annotation
                if isinstance(kind, ast.Attribute):  # an alias such as losses.Reduction
                    kind = _find(part.module, ast.unparse(kind)).node
                below = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
                text = " ".join(after.value.value.split()) if below else ""
                found[node.target.id] = Declared(node.target.id, ast.unparse(kind), default, text)
    return list(found.values())


def attribute(place: str, name: str) -> Any:
    """The value of a class attribute that is a literal."""
    module, path = place.split(":")
    return _literal(_find(module, f"{path}.{name}"))


def module_docstring(module: str) -> str:
    """The docstring of a module."""
    return ast.get_docstring(_module(module).node) or ""


@lru_cache
def _module(name: str) -> _Found:
    path = Path(__file__).parents[1].joinpath(*name.split(".")[1:])
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return _Found(name, ast.parse(file.read_text(encoding="utf-8")))


def _find(module: str, path: str) -> _Found:
    """What a dotted name means inside a module."""
    found = _module(module)
    for name in path.split("."):
        member = _member(found, name)
        if member is None:
            raise LookupError(f"There is no {path} in {module}.")
        # `Config = UDAConfig` means the class of that name.
        value = member.node
        found = _find(member.module, ast.unparse(value)) if isinstance(value, ast.Name | ast.Attribute) else member
    return found


def _member(scope: _Found, name: str) -> _Found | None:
    """What a name means in a module or class: defined, assigned or imported there, or inherited."""
    for node in scope.node.body:
        match node:
            case ast.ClassDef() if node.name == name:
                return _Found(scope.module, node)
            case ast.Assign(targets=[ast.Name(id=target)]) | ast.AnnAssign(target=ast.Name(id=target)):
                if target == name and node.value is not None:
                    return _Found(scope.module, node.value)
            case ast.ImportFrom(module=str(home)) if home.startswith("dept"):
                for alias in node.names:
                    if (alias.asname or alias.name) == name:
                        return _member(_module(home), alias.name) or _module(f"{home}.{alias.name}")
    inherited = (_member(base, name) for base in _lineage(scope)[1:])
    return next((member for member in inherited if member), None)


def _lineage(start: _Found) -> list[_Found]:
    """A class and its bases within dept, nearest first."""
    above = [start]
    for base in getattr(start.node, "bases", ()):
        path = ast.unparse(base)
        if _member(_module(start.module), path.split(".")[0]):  # not of another package
            above += _lineage(_find(start.module, path))
    return above


def _literal(found: _Found) -> Any:
    """The value of a literal in which names may stand for literals, and `|` may join two of them."""
    if isinstance(found.node, ast.Dict):
        pairs = zip(found.node.keys, found.node.values, strict=True)
        return {ast.literal_eval(key): _literal(_Found(found.module, value)) for key, value in pairs if key}
    if isinstance(found.node, ast.Name | ast.Attribute):
        return _literal(_find(found.module, ast.unparse(found.node)))
    if isinstance(found.node, ast.BinOp):
        return _literal(_Found(found.module, found.node.left)) | _literal(_Found(found.module, found.node.right))
    return ast.literal_eval(found.node)
