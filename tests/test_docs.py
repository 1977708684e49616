"""The README and the pages of docs/: every command is one that exists, links lead somewhere, the site builds.

`tests/test_doc_runs.py` runs the commands and snippets. Here every `dept` line is parsed by the real parser, in the
text too, where arguments are often left out.
"""

from __future__ import annotations

import ast
import importlib
import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import dept
from dept.bench import suites
from dept.cli.bench import COMMANDS as BENCH
from dept.cli.command import Command, flag_names
from dept.cli.main import COMMANDS
from dept.cli.parse import parse
from doc_pages import ALL, BLOCK, PAGES, ROOT, Block, commands, name_of

LINK = re.compile(r"\]\((?P<target>[^)\s]+)\)|<img src=\"(?P<image>[^\"]+)\"")
OTHERS = {"tritonserver", "uv", "curl"}
"""programs that are not ours: nothing about them is checked"""


# ---- every command is one that exists ----


def declared(argv: list[str]) -> tuple[Command | None, list[str]]:
    """What a command line names, and the words for it; nothing where there are no flags to name."""
    name, *rest = argv
    assert name in COMMANDS, f"there is no command {name}"
    module = f"dept.cli.{name}"
    if name == "bench":
        name, *rest = rest or ["list"]
        if name == "list":
            return None, []
        if name not in BENCH and not name.isupper():  # SUITE stands for any of them
            suites.module(name)
        module = f"dept.cli.bench_{name if name in BENCH else 'suite'}"
    return importlib.import_module(module).COMMAND, rest


def check_dept(argv: list[str]) -> None:
    """Parse a command line as `dept` would; raises what it would print."""
    command, rest = declared(argv)
    try:
        if command is not None:
            parse(command, rest)
    except SystemExit as stop:  # a help page
        assert stop.code == 0


def check_python(words: list[str]) -> None:
    assert (ROOT / words[0]).is_file() and words[0].endswith(".py"), f"there is no {words[0]}"


def check_make(words: list[str]) -> None:
    targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.M)
    assert set(words) <= set(targets), f"make has no target {words}"


def check_pip(words: list[str]) -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for found in re.findall(r"\[([\w,]+)\]", " ".join(words)):
        assert set(found.split(",")) <= set(extras), f"there is no extra {found}"


def check(words: list[str]) -> None:
    """Refuse a command that cannot work."""
    while re.fullmatch(r"[A-Z_]+=.*", words[0]):  # settings of the environment
        words = words[1:]
    program, rest = words[0], words[1:]
    if "-m" in rest and rest[rest.index("-m") + 1 :][:1] == ["dept"]:  # python -m dept, torchrun … -m dept
        program, rest = "dept", rest[rest.index("-m") + 2 :]
    known = {"dept": check_dept, "python": check_python, "make": check_make, "pip": check_pip}
    if program in known:
        known[program](rest)
    else:
        assert program in OTHERS, f"{program} is not known to this test"


@pytest.mark.parametrize("block", [one for one in ALL if one.kind == "bash"], ids=str)
def test_every_command_is_accepted(block: Block) -> None:
    for command in commands(block.text):
        check(command.words)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_commands_in_the_text_exist(page: Path) -> None:
    """`dept adapt --budget 5m` in a sentence: the command and its flags, as arguments are often left out there."""
    text = BLOCK.sub("", page.read_text(encoding="utf-8"))
    for found in re.findall(r"`dept ([^`…]+)`", re.sub(r"<!--.*?-->", "", text, flags=re.S)):
        argv = shlex.split(found.replace("\\|", "|").replace("\n", " "))
        if argv[0] == "COMMAND" or argv[0].startswith("-"):
            continue
        command, rest = declared(argv)
        flags = flag_names(command, rest) if command is not None else ()
        known = {f"--{name.replace('_', '-')}" for name in flags} | {"--help", "--help-all"}
        named = {word.split("=")[0] for word in argv if word.startswith("--")}
        assert {word if word in known else word.replace("--no-", "--", 1) for word in named} <= known, f"dept {found}"


def test_every_command_is_on_its_page() -> None:
    text = (ROOT / "docs/commands.md").read_text(encoding="utf-8")
    assert [name for name in COMMANDS if f"`dept {name}" not in text] == []


@pytest.mark.parametrize("block", [one for one in ALL if one.kind == "python"], ids=str)
def test_python_names_what_dept_has(block: Block) -> None:
    for node in ast.walk(ast.parse(block.text)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "dept":
            home = importlib.import_module(node.module or "")
            for alias in node.names:
                assert hasattr(home, alias.name) or importlib.import_module(f"{node.module}.{alias.name}")
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "dept":
            assert hasattr(dept, node.attr), f"dept.{node.attr}"


# ---- links and the site ----


def anchors(page: Path) -> set[str]:
    """What headings are called in links: on a forge and on the site."""
    text = BLOCK.sub("", page.read_text(encoding="utf-8"))
    titles = re.findall(r"^#+ (.*)$", text, re.M)
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    text = BLOCK.sub("", page.read_text(encoding="utf-8"))
    for found in LINK.finditer(text):
        target = found["target"] or found["image"]
        if target.startswith(("http://", "https://", "mailto:")):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), f"{target} is not there"
        if anchor and file.suffix == ".md":
            assert anchor in anchors(file), f"{target}: no such heading"


def test_the_readme_is_short() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 150
    assert "Apache-2.0. The adapter is yours." in "\n".join(text.splitlines()[:10])


def test_the_pages_of_methods_are_up_to_date() -> None:
    command = [sys.executable, "benchmarks/write_method_pages.py", "--check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_site_builds(tmp_path: Path) -> None:
    pytest.importorskip("material", reason="the extra docs is not installed")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", tmp_path / "site"],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "site" / "methods" / "dept_plus.html").read_text(encoding="utf-8")
    assert "DePT+" in page and not re.search(r'(src|href)="https?://[^"]*\.(js|css|woff2?)"', page)
