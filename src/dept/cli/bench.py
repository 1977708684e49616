"""`dept bench list | datasets | diff | versus | verify | cost | SUITE …`."""

from __future__ import annotations

from importlib import import_module

from dept.bench import suites

COMMANDS = {
    "datasets": ("dept.cli.bench_datasets", "which data sets are complete"),
    "diff": ("dept.cli.bench_diff", "what differs between two results"),
    "versus": ("dept.cli.bench_versus", "is one row of a suite better than another, paired over images"),
    "verify": ("dept.cli.bench_verify", "re-run a small cell of each suite and compare"),
    "tsne": ("dept.cli.bench_tsne", "figure of the features before and after an adaptation"),
    "cost": ("dept.cli.bench_cost", "time and memory of a step against full tuning, beside the FLOP bound"),
}


def run(argv: list[str]) -> int:
    """List what there is, or run it."""
    if not argv or argv[0] in ("list", "-h", "--help"):
        return _list()
    name, rest = argv[0], argv[1:]
    if name in COMMANDS:
        code: int = import_module(COMMANDS[name][0]).run(rest)
        return code
    from dept.cli import bench_suite

    return bench_suite.run(name, rest)


def _list() -> int:
    print("usage: dept bench NAME …\n\nsuites (hours: one GPU, estimated)")
    from dept.bench.estimate import gpu_hours

    for name in suites.available():
        suite = suites.get(name)
        hours = gpu_hours(suite)
        print(f"  {name:<18}{f'{hours:.1f}' if hours >= 0.1 else '< 0.1':>7} h  {suite.title}")
    print("\ncommands")
    print("\n".join(f"  {name:<18}{text}" for name, (_, text) in COMMANDS.items()))
    print("\n`dept bench NAME --help` explains one.")
    return 0
