"""`dept bench SUITE …`: one file per suite, found in a static table."""

from __future__ import annotations

from importlib import import_module

from dept.errors import UsageError

SUITES = {
    "pacs-mini": ("dept.cli.bench_pacs", "PACS photo -> art_painting, cartoon, sketch with a ViT-Ti/16 at 128 px"),
    "cost": ("dept.cli.bench_cost", "time and memory of a step against full tuning, beside the FLOP bound"),
}


def run(argv: list[str]) -> int:
    """List the suites, or run one."""
    if not argv or argv[0] in ("list", "-h", "--help"):
        print("usage: dept bench SUITE …\n")
        print("\n".join(f"  {name:<12}{text}" for name, (_, text) in SUITES.items()))
        print("\n`dept bench SUITE --help` explains a suite.")
        return 0
    if argv[0] not in SUITES:
        raise UsageError(f"There is no suite {argv[0]!r}; `dept bench list` shows them.")
    code: int = import_module(SUITES[argv[0]][0]).run(argv[1:])
    return code
