"""`dept fleet MODEL SITES --out RUNS`."""

from __future__ import annotations

import shlex
import time
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from dept.cli.adapt import AdaptChoice
from dept.cli.command import Command, Positional, flag_names, with_flags
from dept.cli.parse import parse
from dept.cli.parts import ModelFile
from dept.cli.show import as_json, say, show
from dept.errors import DataError, Interrupted

if TYPE_CHECKING:
    from dept.runs.site_job import Finish


@dataclass(frozen=True)
class FleetInput(ModelFile):
    """The model, and the sites it is adapted to."""

    sites: Annotated[Path, Positional("SITES")]
    """folder with a sub-folder of images per site, or a CSV file with the columns site, images, method, prior"""


@dataclass(frozen=True)
class FleetOutput:
    """Where the runs go."""

    out: Path
    """folder to write: a run folder per site, and report.html over all"""
    overwrite: bool = False
    """adapt sites again that were adapted with another model or other settings (the adapters of now are kept)"""
    report: bool = True
    """write a page for every site too (needs dept[report])"""
    json: bool = False
    """print the summary as JSON"""


COMMAND = Command(
    "fleet",
    """Adapt a model to many sites.

Each site gets an adapter, a verdict and a report in a folder of its own, and report.html lists which sites improved,
which were rejected and which need labels. Sites that are finished are skipped, so the same command continues a fleet
that was interrupted. A site that fails is listed and does not stop the others.

Exit codes: 0 if every site was adapted or rejected, 3 if one failed.""",
    {
        "Input": FleetInput,
        "Output": FleetOutput,
        "Runner": "dept.runs.runners.options:RunnerOptions",
        "Method": AdaptChoice,
        "Run": "dept.runs.adapt:AdaptOptions",
    },
    common=("overwrite", "report", "json", "runner", "jobs", "address", "cpus", "gpus", "method", "preset", "seed",
            "device", "prior", "budget", "lr", "batch", "epochs", "max_iters"),
    setting="offline",
    method="auto",
)  # fmt: skip


class SiteLines:
    """A listener of a fleet: a line per site, with the time that is left."""

    def __init__(self, names: set[str]) -> None:
        self.names = names
        """of the flags that errors may speak of"""
        self.seen = self.fresh = 0
        self.start = time.monotonic()

    def __call__(self, event: dict[str, Any]) -> None:
        self.seen += 1
        self.fresh += not event["stored"]
        # The sites to come are expected to take as long as those before, and none of them to be finished.
        minutes = (time.monotonic() - self.start) / max(1, self.fresh) * (event["total"] - self.seen) / 60
        left = f"  (about {minutes:.0f} min left)" if self.fresh and minutes > 0.5 else ""
        error = f"FAILED. {with_flags(event['error'], self.names)}" if event["error"] else ""
        words = error or ("finished before" if event["stored"] else "adapted")
        say(f"[{self.seen}/{event['total']}] {event['site']}: {words}{left}")


def run(argv: list[str]) -> int:
    """Adapt to all sites; print what became of them."""
    given, output, runner, choice, options, config = parse(COMMAND, argv)
    from dept.runs.fleet import fleet

    names, then = flag_names(COMMAND, argv), _site_report() if output.report else None
    try:
        summary = fleet(
            given.model,
            given.sites,
            out=output.out,
            method=choice.method,
            preset=choice.preset,
            config=config,
            options=options,
            runner=runner,
            then=then,
            overwrite=output.overwrite,
            listener=SiteLines(names),
        )
    except (KeyboardInterrupt, Interrupted):
        command = shlex.join(["dept", "fleet", *argv])
        say(f"\nStopped. What is finished is kept, and the rest is saved. To continue:\n  {command}")
        return Interrupted.exit_code
    if output.json:
        print(as_json(summary.record()))
    else:
        show(with_flags(str(summary), names))
    if then:
        from dept.report.page import write_report

        say(f"Report: {write_report(output.out)[0]}")
    return DataError.exit_code if summary.of("failed") else 0


def _site_report() -> Finish | None:
    """What writes the page of a site; None without the templates' engine."""
    if not find_spec("jinja2"):
        say("Note: no reports are written, because jinja2 is missing: pip install 'dept[report]'")
        return None
    from dept.report.fleet_page import write_site_report

    return write_site_report
