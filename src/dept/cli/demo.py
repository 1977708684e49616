"""`dept demo`: from rendered digits to real handwritten ones, with nothing to download."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dept.cli.command import Command
from dept.cli.parse import parse
from dept.cli.parts import Json
from dept.cli.show import ProgressBar, as_json, say, table
from dept.errors import UsageError

if TYPE_CHECKING:
    from dept.demo import Demo


@dataclass(frozen=True)
class DemoOptions(Json):
    """What to run."""

    out: Path = Path("runs/demo")
    """folder for images, models and adapters; runs of an earlier demo in it are replaced"""
    train: bool = False
    """train the source model first instead of using the embedded one (about ten minutes more)"""
    variants: str = "G"
    """S, G, D or several, separated by commas; S and D have no embedded source model and train theirs first"""
    seed: int = 0
    """seed of adaptation, and of training with --train"""
    limit: int = 0
    """use at most N images; 0 for all 1,797"""
    epochs: int = 0
    """epochs of DePT; 0 for the demo's own"""


COMMAND = Command(
    "demo",
    """Try everything on embedded data.

A small ViT trained on digits rendered from fonts meets 1,797 real handwritten ones. It is adapted to them without
labels by Tent and by DePT, and scored before and after. 30 labels judge DePT's run, and a run with a wrong setting is
caught. The report tells the story. Less than three minutes on two cores.""",
    {"Options": DemoOptions},
)


def run(argv: list[str]) -> None:
    """Run the demo and print its table."""
    (given,) = parse(COMMAND, argv)
    from dept.bench.suites.digits import STAGES
    from dept.demo import run_demo

    variants = list(dict.fromkeys(name.strip().upper() for name in given.variants.split(",") if name.strip()))
    if not variants or not set(variants) <= set(STAGES):
        raise UsageError(f"--variants takes {', '.join(STAGES)} or several of them, found {given.variants!r}.")
    fresh = [v for v in variants if given.train or v != "G"]
    if fresh:
        say(f"Source models of {', '.join(fresh)} are trained first, about ten minutes each on one core.")
    settings = {"epochs": given.epochs} if given.epochs else {}
    bar = ProgressBar()
    demo = run_demo(
        given.out,
        variants=variants,
        retrain=given.train,
        seed=given.seed,
        limit=given.limit,
        listener=lambda event: None if event["event"] == "score" else bar(event),  # the table shows the scores
        **settings,
    )
    print(as_json(asdict(demo)) if given.json else _text(demo))


def _text(demo: Demo) -> str:
    """The table, a sentence about it, and the next commands."""
    header = ["method", "before", "after", "without labels", "with 30 labels", "tuned", "adapter", "seconds"]
    lines = ["Rendered digits -> real handwritten digits: accuracy, and the verdict without labels and with 30:\n"]
    rows = []
    for row in demo.rows:
        size = [f"{row.tunable:,}", f"{row.adapter_bytes / 1024:.0f} KiB", f"{row.seconds:.1f}"]
        cells = [f"{100 * row.after:.1f} %", row.verdict, row.judged or "-", *size] if row.adapter else ["-"] * 6
        rows.append([row.method, f"{100 * row.before:.1f} %", *cells])
    lines += [table(header, rows), ""]
    for row in demo.rows:
        if row.method.startswith("DePT"):
            gone = (row.after - row.before) / (1 - row.before) if row.before < 1 else 0.0
            verb = f"removed {100 * gone:.0f} % of" if gone >= 0 else f"added {-100 * gone:.0f} % to"
            lines.append(f"{row.method} {verb} the source model's errors.")
        elif row.verdict == "harmful":
            lines.append(f"{row.method} was judged harmful without labels, and its adapter was set aside.")
    lines += [f"Report: {file}" for file in demo.reports]
    last = demo.rows[-1]
    model = demo.models[last.method.split("-")[1]]
    lines += [
        f"{demo.seconds:.0f} seconds in total.\n\nNext:",
        f"  dept predict {model} {demo.images} --adapter {last.adapter} --out {demo.images.parent}/labels.csv",
        f"  dept evaluate {model} {demo.images} --adapter {last.adapter}",
        f"  dept info {last.adapter}",
        f"  dept adapt {model} YOUR_DIGITS --out runs/site",
    ]
    return "\n".join(lines)
