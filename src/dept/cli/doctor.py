"""`dept doctor MODEL IMAGES`."""

from __future__ import annotations

import shlex
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from dept.cli.command import Command, Positional
from dept.cli.parse import parse
from dept.cli.parts import Device, Json, ModelFile
from dept.cli.show import as_json, bold, show
from dept.errors import DataError, UsageError

if TYPE_CHECKING:
    from dept.health.doctor import Examined, Shift
    from dept.runs.rehearsal import Cost


@dataclass(frozen=True)
class DoctorInput(ModelFile):
    """The model, and the images it would be adapted to."""

    images: Annotated[Path, Positional("IMAGES")]
    """folder of unlabelled images (any nesting), or a list file"""
    limit: int = 500
    """images to look at, sampled"""
    seed: int = 0
    """seed of the sample"""
    measure: bool = True
    """make two steps to estimate time and memory"""


COMMAND = Command(
    "doctor",
    """Look at a model and its images before spending hours on them.

Unreadable, blank, grey or badly scaled images, near-duplicates, too few images. Swapped channels, negatives or another
normalisation, which are tried. Predictions that no sound model makes, and class shares unlike the source's. Then the
size of the shift, time and memory of an adaptation, and the command to run next. Exit code 3 means a problem was
found.""",
    {"Input": DoctorInput, "Output": Json, "Run": Device},
)


def run(argv: list[str]) -> int:
    """Examine; print what is suspicious, and what to do about it."""
    given, output, how = parse(COMMAND, argv)
    from dept.data.images import find_images
    from dept.data.loader import Runtime, resolve_device
    from dept.health.doctor import examine
    from dept.models.files import load_model
    from dept.runs.rehearsal import rehearse

    if given.limit < 1:
        raise UsageError(f"`limit` must be at least 1, found {given.limit}.")
    model, images = load_model(given.model), find_images(given.images)
    runtime = Runtime(resolve_device(how.device), how.workers)
    found = examine(model, images, runtime, most=given.limit, seed=given.seed)
    command = shlex.join(["dept", "adapt", str(given.model), str(given.images), "--out", "runs/site"])
    cost = None
    if given.measure:
        cost = rehearse(model, found.sampled, len(images), runtime, seconds_per_image=found.seconds_per_image)
    problem = any(one.level == "problem" for one in found.findings)
    if output.json:
        record: dict[str, Any] = {"images": found.images, "sampled": len(found.sampled), "problem": problem}
        record |= {"findings": [asdict(one) for one in found.findings], "passed": found.passed}
        record |= {"statistics": found.statistics, "shift": found.shift and asdict(found.shift)}
        record |= {"cost": cost and asdict(cost), "command": command}
        print(as_json(record))
    else:
        show(_text(found, cost, command, problem))
    return DataError.exit_code if problem else 0


def _text(found: Examined, cost: Cost | None, command: str, problem: bool) -> str:
    """What was looked at, what is suspicious, what is not, the cost, the command."""
    lines = [f"Looked at {len(found.sampled):,} of {found.images:,} images, and at what the model says of them."]
    for one in found.findings:
        lines += [f"{bold(one.level.capitalize())} ({one.check}): {one.found}", f"  {one.advice}"]
    lines += [f"Nothing suspicious about: {', '.join(found.passed) or 'none of it'}.", _shift(found.shift)]
    if cost is not None:
        memory = "" if cost.megabytes is None else f", {cost.megabytes / 1000:.1f} GB of memory"
        lines.append(f"{cost.method} would take about {_time(cost.seconds)} ({cost.steps:,} steps){memory}.")
    return "\n".join([*lines, f"{'Mend the problems first. Then' if problem else 'Next'}:  {command}"])


def _shift(found: Shift | None) -> str:
    """How far the images are from the source's, or how to find out."""
    if found is None:
        return "Size of the shift: not known. It takes 20 images and a card (`dept stats MODEL SOURCE --card`)."
    low, high = (100 * end for end in found.accuracy)
    return (
        f"Size of the shift: the mean feature is {found.moved:.2f} spreads away from the source's (by chance "
        f"{found.chance:.2f}). The model is right on {100 * found.source_accuracy:.1f} % of its source images and on "
        f"{low:.0f} to {high:.0f} % of these, a rough estimate without labels."
    )


def _time(seconds: float) -> str:
    """A duration as people say it."""
    for size, name in ((3600, "hours"), (60, "minutes")):
        if seconds >= 1.5 * size:
            return f"{seconds / size:.1f} {name}" if seconds < 10 * size else f"{seconds / size:.0f} {name}"
    return f"{max(1, round(seconds))} seconds"
