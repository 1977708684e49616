"""`dept check RUN` and `dept check RUN_A RUN_B`."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

from dept.cli.command import Command, Positional
from dept.cli.parse import parse
from dept.cli.parts import Json
from dept.cli.show import as_json, show


@dataclass(frozen=True)
class CheckInput:
    """What to compare."""

    runs: Annotated[tuple[Path, ...], Positional("RUN…")]
    """folder of a run (before against after), or of two runs (first against second)"""


COMMAND = Command(
    "check",
    """Draw images to label, to find out whether adaptation helped.

The models before and after are run on the images of the run. Up to 30 images on which they disagree are drawn at
random. A page to label them with two keys, a CSV table and Label Studio tasks are written to RUN/check. `dept judge`
turns the labels into a verdict. No labels are needed before, and nothing is assumed about the classes.""",
    {"Input": CheckInput, "Output": Json, "Draw": "dept.runs.check:CheckOptions"},
)


def run(argv: list[str]) -> None:
    """Draw the images; print where to label them."""
    given, output, options = parse(COMMAND, argv)
    from dept.runs.check import check

    made = check(given.runs, options)
    if output.json:
        asked = [asdict(one) for one in made.questions.asked]
        print(as_json({"images": made.images, "disagreeing": made.disagreeing, "folder": made.folder, "asked": asked}))
    else:
        show(str(made))
