"""Dependency direction: core <- methods <- engine <- {bench, report, cli}; data knows no method."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

import pytest

import dept

ROOT = Path(dept.__file__).parent
PEOPLE = ("dept.cli", "dept.bench", "dept.report", "dept.serve")


@lru_cache
def parsed(file: Path) -> ast.Module:
    return ast.parse(file.read_text())


def modules() -> list[Path]:
    return sorted(ROOT.rglob("*.py"))


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


def offences(folder: str, allowed: tuple[str, ...]) -> list[str]:
    files = sorted((ROOT / folder).rglob("*.py")) if (ROOT / folder).is_dir() else [ROOT / folder]
    assert files
    return [
        f"{file.relative_to(ROOT)} imports {name}"
        for file in files
        for name in imported(file)
        if name.split(".")[0] == "dept" and not name.startswith(allowed)
    ]


def test_core_imports_only_core() -> None:
    assert offences("core", ("dept.core",)) == []


def test_methods_import_only_core_and_methods() -> None:
    assert offences("methods", ("dept.core", "dept.methods")) == []


def test_data_imports_only_data_and_errors() -> None:
    assert offences("data", ("dept.data", "dept.errors")) == []


def test_the_engine_imports_core_methods_data_and_errors() -> None:
    assert offences("engine.py", ("dept.core", "dept.methods", "dept.data", "dept.errors")) == []


def room(file: Path) -> str:
    """The top folder that a file belongs to."""
    return file.relative_to(ROOT).parts[0]


@pytest.mark.parametrize("file", [f for f in modules() if room(f) not in ("cli", "bench", "report", "serve")],
                         ids=lambda f: str(f.relative_to(ROOT)))  # fmt: skip
def test_the_library_does_not_know_its_users(file: Path) -> None:
    if file.name == "__main__.py" or file.name == "demo.py":
        return
    assert [name for name in imported(file) if name.startswith(PEOPLE)] == []


def test_only_the_command_line_prints() -> None:
    for file in modules():
        if file.parent.name == "cli" or "demo" in file.name:
            continue
        calls = [n for n in ast.walk(parsed(file)) if isinstance(n, ast.Call)]
        assert not [c.lineno for c in calls if isinstance(c.func, ast.Name) and c.func.id == "print"], file


def test_only_vit_touches_the_insides_of_timm() -> None:
    for file in modules():
        names = [name for name in imported(file) if name.startswith("timm.models")]
        assert not names or file == ROOT / "core" / "vit.py", f"{file}: {names}"
