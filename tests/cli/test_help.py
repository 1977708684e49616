"""Help pages: complete, plain, and made without torch. What they read from source is what the classes declare."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from importlib import import_module
from pkgutil import resolve_name as load
from typing import Any

import pytest

from dept import methods
from dept.bench import suites
from dept.cli.bench import COMMANDS as BENCH
from dept.cli.command import Command, choose, flag_names, peek, with_flags
from dept.cli.help import page
from dept.cli.main import COMMANDS, main
from dept.cli.parse import parse
from dept.errors import UsageError
from dept.methods.declared import attribute, fields, module_docstring

METHODS = [methods.place(name) for name in methods.available()]
TEST_TIME = sorted({name for setting in methods.TEST_TIME for name in methods.available(setting)})
METHODS += ["dept.methods.source_training:SourceTraining", "dept.methods.multi_source:MultiSourceTraining"]
MODULES = [f"dept.cli.{name}" for name in COMMANDS if name != "bench"]
MODULES += [f"dept.cli.bench_{name}" for name in [*BENCH, "suite"] if name != "list"]
DECLARED: dict[str, Command] = {module: import_module(module).COMMAND for module in MODULES}
PARTS = sorted(
    {
        part if isinstance(part, str) else f"{part.__module__}:{part.__name__}"
        for command in DECLARED.values()
        for part in command.parts.values()
    }
)


def pages() -> list[list[str]]:
    """Every command line that prints a help page."""
    words = [[name] for name in COMMANDS] + [["bench", name] for name in BENCH if name != "list"]
    words += [["bench", name] for name in suites.available()]
    words += [["stream" if methods.card(m).relabels else "adapt", "--method", m] for m in TEST_TIME]
    words += [["uda", "--method", name] for name in methods.available("uda")]
    return [[*line, flag] for line in words for flag in ("--help", "--help-all")]


# ---- no torch ----


def python(code: str, **environment: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, env=os.environ | environment, timeout=120)


def test_no_page_imports_torch() -> None:
    lines = [*pages(), ["bench"], ["--help"], ["methods"], ["methods", "shot"], ["methods", "cdan"]]
    code = f"""
import sys
from dept.cli.main import main
for argv in {lines!r}:
    try:
        code = main(argv)
    except SystemExit as stop:
        code = stop.code
    assert code == 0, argv
    heavy = [m for m in ("torch", "timm", "numpy", "PIL", "torchvision", "scipy") if m in sys.modules]
    assert not heavy, (argv, heavy)
    assert "tyro" not in sys.modules or argv[0] == "methods", argv
"""
    done = python(code)
    assert done.returncode == 0, done.stderr.decode()


def test_a_wrong_flag_is_refused_without_torch() -> None:
    code = """
import sys
from dept.cli.main import main
codes = [main(["adapt", "m", "i", "--lern-rate", "1"]), main(["adapt", "m", "i", "--method", "nope"])]
print(codes, "torch" in sys.modules)
"""
    assert python(code).stdout.decode().strip() == "[2, 2] False"


@pytest.mark.parametrize("argv", [["--help"], ["adapt", "--help-all"], ["methods"], ["adpat…"]])
def test_pages_in_ascii(argv: list[str]) -> None:
    code = f"from dept.cli.main import main; main({argv!r})"
    done = python(code, PYTHONIOENCODING="ascii")
    assert done.returncode == 0, done.stderr
    (done.stdout + done.stderr).decode("ascii")


# ---- what the source says is what Python sees ----


def same(place: str) -> None:
    """The fields read from source are those of the imported dataclass."""
    module, _, path = place.partition(":")
    kind: Any = import_module(module)
    for name in path.split("."):
        kind = getattr(kind, name)
    real, read = dataclasses.fields(kind), fields(place)
    assert [one.name for one in read] == [one.name for one in real]
    for ours, theirs in zip(read, real, strict=True):
        assert ours.text, f"{place}.{ours.name} has no docstring"
        names = {base.__module__: vars(sys.modules[base.__module__]) for base in kind.__mro__}
        scope = {name: value for module in reversed(list(names.values())) for name, value in module.items()}
        default = dataclasses.MISSING if ours.default is None else eval(ours.default, scope)
        assert default == theirs.default, f"{place}.{ours.name}"


@pytest.mark.parametrize("place", METHODS)
def test_methods_are_read_as_they_are(place: str) -> None:
    kind = load(place)
    same(f"{place}.Config")
    assert (attribute(place, "name"), attribute(place, "summary")) == (kind.name, kind.summary)
    assert attribute(place, "presets") == kind.presets
    assert module_docstring(kind.__module__) == sys.modules[kind.__module__].__doc__.strip()


@pytest.mark.parametrize("place", PARTS)
def test_parts_are_read_as_they_are(place: str) -> None:
    same(place)


def test_literal_aliases_are_read_as_choices() -> None:
    kinds = {one.name: one.annotation for one in fields("dept.methods.dept:DePT.Config")}
    assert kinds["reduction"].startswith("Literal[")


def test_unknown_classes_and_attributes() -> None:
    for place in ("dept.methods.dept:Nope", "dept.methods.dept:DePT.Nope"):
        with pytest.raises(LookupError, match="Nope"):
            fields(place)


# ---- what is on the page ----


@pytest.mark.parametrize("module", MODULES)
def test_common_flags_exist_and_are_few(module: str) -> None:
    command = DECLARED[module]
    words = ["--method", "dept"] if command.method == "auto" else []  # flags of a method come with it
    assert set(command.common) <= flag_names(command, []) | flag_names(command, words)
    short = page(command, [], everything=False)
    assert short.count("\n  --") <= 18 and f"usage: dept {command.name}" in short
    everything = page(command, [], everything=True)
    for name in flag_names(command, []):
        assert f"--{name.replace('_', '-')}" in everything or f"--[no-]{name.replace('_', '-')}" in everything
    assert ("--help-all" in short) == bool(command.common)


def text_of(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    with pytest.raises(SystemExit) as stop:
        main(list(words))
    assert stop.value.code == 0
    return capsys.readouterr().out


def test_adapt(capsys: pytest.CaptureFixture[str]) -> None:
    short = text_of(capsys, "adapt", "--help")
    headings = [line for line in short.splitlines() if line and not line.startswith((" ", "usage", "`", "Method auto"))]
    assert [h for h in headings if h[0].isupper() and "." not in h and len(h) < 20] == [
        "Input", "Output", "Method", "Run", "Settings of auto",
    ]  # fmt: skip
    assert "--out PATH" in short and "(required)" in short and "--w-cls" not in short
    every = text_of(capsys, "adapt", "--method=dept", "--help-all")
    assert "--w-cls FLOAT" in every and "β₁" in every and "--[no-]bank" in every and "--clip-by {stage,tensor}" in every
    tent = text_of(capsys, "adapt", "--method", "tent", "--help-all")
    assert "--view" in tent and "--w-cls" not in tent and "entropy minimisation" in tent


def test_a_preset_changes_the_defaults(capsys: pytest.CaptureFixture[str]) -> None:
    assert "(default: sum)" in text_of(capsys, "adapt", "--method=dept", "--preset=paper", "--help-all")
    assert "(default: sum)" not in text_of(capsys, "adapt", "--method=dept", "--help-all")
    stream = text_of(capsys, "stream", "--help-all")  # its own default is the preset `online`
    assert "--bank " in stream and "--[no-]bank" not in stream


def test_width(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "72")
    assert max(map(len, text_of(capsys, "adapt", "--method=dept", "--help-all").splitlines())) <= 72
    assert "\033" not in text_of(capsys, "adapt", "--help")


def test_suites_are_explained(capsys: pytest.CaptureFixture[str]) -> None:
    assert "trained on PACS photos" in text_of(capsys, "bench", "pacs-mini", "--help")
    assert main(["bench", "nope", "--help"]) == 2


# ---- method and preset, read ahead ----


def test_peek() -> None:
    assert peek(["--method", "tent"], "--method") == "tent"
    assert peek(["a", "--method=tent"], "--method") == "tent"
    assert peek(["--methods", "x"], "--method") is None and peek(["--method"], "--method") is None


@pytest.mark.parametrize("flag", ["--method", "--preset"])
def test_a_repeated_choice_is_refused(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["stream", "m", "i", "--out", "o", flag, "tent", f"{flag}=shot"]) == 2
    assert capsys.readouterr().err == f"dept: {flag} is given 2 times (tent, shot). Give it once.\n"


def test_choices_that_do_not_exist() -> None:
    command = DECLARED["dept.cli.adapt"]
    with pytest.raises(UsageError, match=r"no method 'nope'\. Choose from"):
        choose(command, ["--method", "nope"])
    with pytest.raises(UsageError, match=r"no preset 'x'\. Available presets: official, online, paper"):
        parse(command, ["--method", "dept", "--preset", "x"])


# ---- parameters become flags ----


def test_parameters_become_flags() -> None:
    names = {"batch", "max_iters", "subset", "resume", "pretrained", "method", "stages", "prompts"}
    for text, expected in (
        ("batch must be at least 1, found 0.", "--batch must be at least 1, found 0."),
        ("max_iters must be at least 0.", "--max-iters must be at least 0."),
        ("`stages` and `prompts` must be 1.", "--stages and --prompts must be 1."),
        ("`subset=stratified` needs labels.", "--subset stratified needs labels."),
        ('Try `method="tent"`.', "Try --method tent."),
        ("Use `resume=True` to continue, or `pretrained=False`.", "Use --resume to continue, or --no-pretrained."),
        ("Use `dept convert`, `other`, `lr=1`.", "Use `dept convert`, `other`, `lr=1`."),
        ("The batch must be large.", "The batch must be large."),
    ):  # fmt: skip
        assert with_flags(text, names) == expected


def test_flags_of_subcommands_too(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def refuse(*words: Any) -> int:
        raise UsageError("`max_iters` must be at least 0, and `lr` is unknown.")

    monkeypatch.setattr("dept.cli.bench_suite.run", refuse)
    assert main(["bench", "pacs-mini"]) == 2
    assert capsys.readouterr().err == "dept: --max-iters must be at least 0, and `lr` is unknown.\n"


def test_files_after_a_flag_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["judge", "run", "--json", "labels.csv"]) == 2
    assert "Unexpected: labels.csv. Files and folders come before flags. See" in capsys.readouterr().err
