"""`dept judge RUN labels.csv`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from dept.cli.command import Command, Positional
from dept.cli.parse import parse
from dept.cli.parts import Json
from dept.cli.show import as_json, show
from dept.errors import HARMFUL, DataError


@dataclass(frozen=True)
class JudgeInput:
    """The run, and the labels."""

    places: Annotated[tuple[Path, ...], Positional("RUN LABELS…")]
    """folder of the checked run (or of both runs), then one or more CSV files with labels"""


COMMAND = Command(
    "judge",
    """Judge a run by the labels of `dept check`.

Prints the gain in accuracy with its exact 95 % interval, and a verdict by the exact sign test at 10 %: improved,
uncertain or harmful. It is written to RUN/verdict.json and replaces an earlier one. Several files are merged. Exit code
4 means harmful.

A file of labels has the columns image and right (before, after or neither; first, second or neither for two runs), or
image and class (the true class). Rows without an answer are passed over.""",
    {"Input": JudgeInput, "Output": Json},
)


def run(argv: list[str]) -> int:
    """Judge; print the verdict."""
    given, output = parse(COMMAND, argv)
    from dept.runs.judge import judge

    absent = [place for place in given.places if not place.exists()]
    if absent:
        raise DataError(f"{absent[0]} does not exist. Give the folder of a run, and files of labels.")
    runs = [place for place in given.places if place.is_dir()]
    judged = judge(runs, [place for place in given.places if place not in runs])
    if output.json:
        print(as_json(judged.result))
    else:
        show(str(judged))
    return HARMFUL if judged.verdict == "harmful" else 0
