"""The README and the pages of docs/: every snippet runs or at least parses, links lead somewhere, the site builds.

A fenced block of bash or Python is run on the pages of `RUN`, in one folder per page with tiny models and images. What
cannot be run has `<!-- not run: REASON -->` above it (or `<!-- run by tests/… -->`). Every `dept` line is parsed by the
real parser all the same, on every page, and in the text too.
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
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import dept
from dept import methods
from dept.bench import suites
from dept.cli.bench import COMMANDS as BENCH
from dept.cli.command import flag_names
from dept.cli.main import COMMANDS, main
from dept.cli.parse import parse
from dept.runs.train import TrainRun
from foreign_models import config_of, folder, vit_tensors
from support import CLASSES, TIMM, write_labelled, write_unlabelled

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", *sorted((ROOT / "docs").rglob("*.md"))]
RUN = ("README.md", "docs/index.md", "docs/settings.md", "docs/add_a_method.md")
MOST_MARKED = 12
BLOCK = re.compile(r"(?:<!-- (?P<mark>(?:not )?run\b[^>]*?) -->\n)?^```(?P<kind>\w*)\n(?P<text>.*?)^```", re.M | re.S)
LINK = re.compile(r"\]\((?P<target>[^)\s]+)\)|<img src=\"(?P<image>[^\"]+)\"")
OTHERS = {"tritonserver", "uv", "curl", "find", "docker", "cd", "ls", "cat"}
"""programs that are not ours: nothing about them is checked"""


class Block(NamedTuple):
    """A fenced block."""

    page: Path
    line: int
    kind: str
    text: str
    mark: str

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    return [
        Block(page, text.count("\n", 0, found.start("text")), found["kind"], found["text"], found["mark"] or "")
        for found in BLOCK.finditer(text)
    ]


ALL = [block for page in PAGES for block in blocks(page)]


def commands(block: Block) -> Iterator[list[str]]:
    """The commands of a bash block as words, without comments and redirections."""
    for line in block.text.replace("\\\n", " ").splitlines():
        for part in line.split(" | "):
            words = shlex.split(part, comments=True)
            if ">" in words:
                words = words[: words.index(">")]
            if words:
                yield words


# ---- every command is one that exists ----


def check_dept(argv: list[str]) -> None:
    """Parse a command line as `dept` would; raises what it would print."""
    name, *rest = argv
    assert name in COMMANDS, f"there is no command {name}"
    module = f"dept.cli.{name}"
    if name == "bench":
        name, *rest = rest
        if name == "list":
            return
        if name not in BENCH:
            suites.module(name)
        module = f"dept.cli.bench_{name if name in BENCH else 'suite'}"
    try:
        parse(importlib.import_module(module).COMMAND, rest)
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
    for words in commands(block):
        check(words)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_commands_in_the_text_exist(page: Path) -> None:
    """`dept adapt --budget 5m` in a sentence: the command and its flags, as arguments are often left out there."""
    text = BLOCK.sub("", page.read_text(encoding="utf-8"))
    for found in re.findall(r"`dept ([^`…]+)`", re.sub(r"<!--.*?-->", "", text, flags=re.S)):
        argv = shlex.split(found.replace("\\|", "|").replace("\n", " "))
        if argv[0] in ("COMMAND", "bench") or argv[0].startswith("-"):
            continue
        assert argv[0] in COMMANDS, f"dept {found}"
        command = importlib.import_module(f"dept.cli.{argv[0]}").COMMAND
        known = {f"--{name.replace('_', '-')}" for name in flag_names(command, argv[1:])} | {"--help", "--help-all"}
        named = {word.split("=")[0] for word in argv if word.startswith("--")}
        assert {word if word in known else word.replace("--no-", "--", 1) for word in named} <= known, f"dept {found}"


def test_every_command_is_on_its_page() -> None:
    text = (ROOT / "docs/commands.md").read_text(encoding="utf-8")
    assert [name for name in COMMANDS if f"`dept {name}" not in text] == []


# ---- what can be run is run ----


@pytest.mark.parametrize("block", [one for one in ALL if one.kind == "python"], ids=str)
def test_python_names_what_dept_has(block: Block) -> None:
    for node in ast.walk(ast.parse(block.text)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "dept":
            home = importlib.import_module(node.module or "")
            for alias in node.names:
                assert hasattr(home, alias.name) or importlib.import_module(f"{node.module}.{alias.name}")
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "dept":
            assert hasattr(dept, node.attr), f"dept.{node.attr}"


def test_what_is_not_run_says_why() -> None:
    others = {block.mark.removeprefix("run by ") for block in ALL if block.mark.startswith("run by ")}
    assert [name for name in others if not (ROOT / name).is_file()] == []
    marked = [block for block in ALL if block.mark.startswith("not run")]
    assert [str(block) for block in marked if not re.match("not run: .{10,}", block.mark)] == []
    assert len(marked) <= MOST_MARKED, "run more of these, or raise the number:\n" + "\n".join(map(str, marked))
    silent = [block for block in ALL if not block.kind]
    unmarked = [one for one in ALL if one.kind == "python" and not one.mark and _name(one.page) not in RUN]
    assert [*map(str, silent), *map(str, unmarked)] == [], "name the language; mark Python that no test runs"


def _name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@cache
def _tiny() -> Any:
    create = importlib.import_module("dept.models.model").create_model

    def tiny(arch: str, classes: Any, *, pretrained: bool, **options: Any) -> dept.Model:
        assert pretrained or options.get("weights")
        kept = {name: value for name, value in options.items() if name in ("stages", "prompts", "seed")}
        return create(arch.split(".")[0], classes, **{**kept, "stages": 2, "prompts": 3}, **TIMM)

    return tiny


@pytest.fixture
def place(tmp_path: Path, source_run: TrainRun, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with what the pages speak of, and short runs: defaults are long enough to learn something."""
    for name in ("photos", "photo", "art", "labelled"):
        write_labelled(tmp_path / name, 12 if name == "photos" else 4)
        for ours, theirs in zip(CLASSES, ("bus", "car", "truck"), strict=True):
            (tmp_path / name / ours).rename(tmp_path / name / theirs)
    write_unlabelled(tmp_path / "new_site", 36)
    monkeypatch.setattr("foreign_models.LAYERS", 4)  # as many as prompts have stages
    named = config_of("vit", num_hidden_layers=4, id2label={"0": "bus", "1": "car", "2": "truck"})
    folder(tmp_path / "my_vit", vit_tensors(), named)
    for room in ("train", "auto"):
        monkeypatch.setattr(f"dept.runs.{room}.LEAST_STEPS", 1)
    for name in methods.available("offline"):
        monkeypatch.setattr(methods.get(name), "enough_steps", 1)
    monkeypatch.setattr("dept.models.model.create_model", _tiny())
    monkeypatch.setattr("dept.methods._OWN", {})  # a page registers a method of its own
    monkeypatch.chdir(tmp_path)
    return tmp_path


def shortened(argv: list[str]) -> list[str]:
    """The command with three steps, if it asks for a number of steps."""
    before = ["", *argv]
    return ["3" if flag == "--max-iters" else word for flag, word in zip(before, argv, strict=False)]


@pytest.mark.parametrize("name", RUN)
def test_the_page_runs(name: str, place: Path) -> None:
    """All blocks of a page in their order, as a reader would."""
    names: dict[str, Any] = {}
    shown = blocks(ROOT / name)
    if not any("--out model.safetensors" in block.text for block in shown):
        assert main(["convert", "my_vit/", "--out", "model.safetensors"]) == 0
    for block in shown:
        if block.mark or block.kind not in ("bash", "python"):
            continue
        if block.kind == "python":
            exec(compile(block.text, str(block), "exec"), names)
        else:
            for words in commands(block):
                if words[0] == "dept":
                    assert main(shortened(words[1:])) == 0, f"{block}: {shlex.join(words)}"


def test_the_commands_of_reproduce_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the committed results."""
    monkeypatch.chdir(ROOT)
    for block in blocks(ROOT / "docs/reproduce.md"):
        for words in () if block.mark else commands(block):
            if words[0] == "dept" and "--help" not in words:
                argv = [str(tmp_path) if word == "DATA" else word for word in words[1:]]
                assert main(argv) == 0, f"{block}: {shlex.join(words)}"


# ---- links and the site ----


def anchors(page: Path) -> set[str]:
    """What headings are called in links: on a forge and on the site."""
    text = BLOCK.sub("", page.read_text(encoding="utf-8"))
    titles = re.findall(r"^#+ (.*)$", text, re.M)
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=_name)
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
