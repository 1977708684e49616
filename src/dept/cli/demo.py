"""`dept demo`: from rendered digits to real handwritten ones, with nothing to download."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from dept.bench.suites.digits import STAGES
from dept.cli.parse import parse
from dept.cli.show import ProgressBar, as_json, say, table
from dept.demo import Demo, Row, run_demo
from dept.errors import UsageError

_DESCRIPTION = """Try everything on embedded data.

A small ViT that was trained on digits rendered from fonts is scored on 1,797 real handwritten digits, adapted
to them without labels by Tent and by DePT, and scored again. About two minutes on two cores."""


@dataclass(frozen=True)
class Options:
    """What to run."""

    out: Path = Path("runs/demo")
    """folder for images, models and adapters; runs of an earlier demo in it are replaced"""
    train: bool = False
    """train the source model first instead of taking the embedded one (about ten minutes more)"""
    variants: str = "G"
    """S, G, D or several, separated by commas; S and D have no embedded source model and train theirs first"""
    seed: int = 0
    """seed of adaptation, and of training with --train"""
    json: bool = False
    """print the result as JSON"""
    limit: int = 0
    """use this many images only; 0 for all 1,797"""
    epochs: int = 0
    """passes of DePT over the images; 0 for the demo's own"""


def run(argv: list[str]) -> int:
    """Run the demo and print its table."""
    options: Options = parse("demo", _DESCRIPTION, argv, options=Options).options
    variants = _variants(options.variants)
    fresh = [v for v in variants if options.train or v != "G"]
    if fresh:
        say(f"Source models of {', '.join(fresh)} are trained first, about ten minutes each on one core.")
    demo = run_demo(
        options.out,
        variants=variants,
        retrain=options.train,
        seed=options.seed,
        limit=options.limit,
        listener=_Listener(),
        **({"epochs": options.epochs} if options.epochs else {}),
    )
    print(as_json(demo.as_dict()) if options.json else _text(demo))
    return 0


class _Listener:
    """A new progress bar for every run of the demo."""

    def __init__(self) -> None:
        self.bar = ProgressBar()

    def __call__(self, event: dict[str, object]) -> None:
        if event["event"] == "start":
            self.bar = ProgressBar()
        if event["event"] != "score":  # the table says it all
            self.bar(event)


def _variants(text: str) -> list[str]:
    names = [name.strip().upper() for name in text.split(",") if name.strip()]
    unknown = [name for name in names if name not in STAGES]
    if unknown or not names:
        raise UsageError(f"--variants takes {', '.join(STAGES)} or several of them, found {text!r}.")
    return list(dict.fromkeys(names))


def _text(demo: Demo) -> str:
    """The table, a sentence about it, and commands to go on with."""
    header = ["method", "before", "after", "tunable", "adapter", "seconds"]
    lines = ["Rendered digits -> real handwritten digits, accuracy without any label of the target:\n"]
    lines += [table(header, [_cells(row) for row in demo.rows]), ""]
    lines += [_sentence(row) for row in demo.rows if row.method.startswith("DePT")]
    lines += [f"Report: {file}" for file in demo.reports]
    lines.append(f"{demo.seconds:.0f} seconds in all.\n\nGo on with:")
    last = demo.rows[-1]
    model = demo.models[last.method.split("-")[1]]
    lines += [
        f"  dept predict {model} {demo.images} --adapter {last.adapter} --out {demo.images.parent}/labels.csv",
        f"  dept evaluate {model} {demo.images} --adapter {last.adapter}",
        f"  dept info {last.adapter}",
        f"  dept adapt {model} YOUR_DIGITS --out runs/site",
    ]
    return "\n".join(lines)


def _cells(row: Row) -> list[str]:
    if not row.adapter:
        return [row.method, f"{100 * row.before:.1f} %", "-", "-", "-", f"{row.seconds:.1f}"]
    size, tunable = f"{row.adapter_bytes / 1024:.0f} KiB", f"{row.tunable:,}"
    return [row.method, f"{100 * row.before:.1f} %", f"{100 * row.after:.1f} %", tunable, size, f"{row.seconds:.1f}"]


def _sentence(row: Row) -> str:
    """How many of the source model's errors are gone."""
    gone = (row.after - row.before) / (1 - row.before) if row.before < 1 else 0.0
    verb = f"removed {100 * gone:.0f} % of" if gone >= 0 else f"added {-100 * gone:.0f} % to"
    return f"{row.method} {verb} the source model's errors."
