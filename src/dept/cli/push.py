"""`dept push RUN hf-hub:USER/REPO`."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from dept.cli.command import Command, Positional
from dept.cli.parse import parse
from dept.cli.show import show


@dataclass(frozen=True)
class PushInput:
    """What to publish, and where."""

    run: Annotated[Path, Positional("RUN")]
    """run folder of `dept adapt`, `stream`, `train` or `uda`"""
    repo: Annotated[str, Positional("REPO")]
    """hf-hub:USER/REPO, which is created if there is none, or hf-hub:USER/REPO@BRANCH"""
    to: Path | None = None
    """write the folder there, to look at or to copy, and upload nothing"""
    private: bool = False
    """make a new repository private"""


COMMAND = Command(
    "push",
    "Publish the adapter or model of a run on the Hugging Face hub.\n\nUploads the file and a README.md with data, "
    "method, verdict, protocol and how to load it. Images, labels and paths stay here. Needs `hf auth login` once.",
    {"Arguments": PushInput},
)


def run(argv: list[str]) -> None:
    """Publish, or write the folder that would be published; print how others load it."""
    (given,) = parse(COMMAND, argv)
    from dept.runs.words import flag
    from dept.share.publish import publish

    place = publish(given.run, given.repo, to=given.to, private=given.private or None)
    if given.to is not None:
        files = ", ".join(sorted(file.name for file in given.to.iterdir()))
        again = shlex.join(["dept", "push", str(given.run), given.repo])
        show(f"Written: {given.to} ({files}). Nothing was uploaded.\nNext:  {again}")
        return
    kind = "adapter" if (given.run / "adapter.safetensors").is_file() else "model"
    words = ["MODEL", "IMAGES", flag("adapter"), given.repo] if kind == "adapter" else [given.repo, "IMAGES"]
    show(f"Published: {place}\nNext:  {shlex.join(['dept', 'predict', *words])}")
