"""`dept bench list | datasets | diff | versus | verify | pack | tsne | cost | SUITE …`."""

from __future__ import annotations

from importlib import import_module

from dept.bench import suites
from dept.methods.declared import module_docstring

COMMANDS = {
    "list": "suites with their estimated GPU hours",
    "datasets": "which data sets are complete",
    "diff": "what differs between two results",
    "versus": "is one row of a suite better than another, paired over images",
    "verify": "re-run a small cell of each suite and compare",
    "pack": "finished cells into one file per suite",
    "tsne": "figure of the features before and after an adaptation",
    "cost": "time and memory of a step against full tuning, next to the FLOP bound",
}


def run(argv: list[str]) -> int:
    """Print what there is, or run it."""
    if not argv or argv[0] in ("-h", "--help", "--help-all"):
        commands = [f"  {name:<18}{text}" for name, text in COMMANDS.items()]
        rows = [f"  {name:<18}{about(name).split('. ')[0].removesuffix('.')}" for name in suites.available()]
        print("\n".join(["usage: dept bench NAME …\n", "Commands", *commands, "\nSuites", *rows]))
        print("\n`dept bench NAME --help` explains one.")
        return 0
    name, rest = argv[0], argv[1:]
    if name == "list":
        from dept.bench.estimate import gpu_hours

        print("Suites (hours: one GPU, estimated)")
        for suite in map(suites.get, suites.available()):
            hours = gpu_hours(suite)
            print(f"  {suite.name:<18}{f'{hours:.1f}' if hours >= 0.1 else '< 0.1':>7} h  {suite.title}")
        return 0
    if name in COMMANDS:
        code: int | None = import_module(f"dept.cli.bench_{name}").run(rest)
        return code or 0
    from dept.cli import bench_suite

    return bench_suite.run(name, rest)


def about(name: str) -> str:
    """What a suite measures: the first paragraph of its file, without its name."""
    paragraph = module_docstring(suites.module(name)).split("\n\n")[0]
    return " ".join(paragraph.removeprefix(f"`{name}`: ").split())
