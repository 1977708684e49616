"""Flags that several commands share, as small dataclasses."""

from __future__ import annotations

import json as jsonlib
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self

from dept.cli.command import Positional
from dept.errors import UsageError

if TYPE_CHECKING:
    from dept.data.datasets.derived import Domains


@dataclass(frozen=True)
class ModelFile:
    """A model to work with."""

    model: Annotated[Path, Positional("MODEL")]
    """model file (from `dept train` or `dept convert`), or hf-hub:USER/REPO"""


@dataclass(frozen=True)
class MethodChoice:
    """Which method adapts."""

    method: str = "dept"
    """how to adapt; `dept methods` lists the methods"""
    preset: str | None = None
    """named settings of the method; `dept methods NAME` lists them"""


@dataclass(frozen=True)
class RunOutput:
    """Where a run goes and what happens to one that is there."""

    out: Path
    """run folder to write"""
    resume: bool = False
    """resume an interrupted run (bit-exact)"""
    overwrite: bool = False
    """replace a run that is already in the folder"""
    tensorboard: bool = False
    """also write the events to OUT/tensorboard (extra `tensorboard`)"""
    json: bool = False
    """print the result as JSON"""


@dataclass(frozen=True)
class Json:
    """Output for programs."""

    json: bool = False
    """print JSON"""


@dataclass(frozen=True)
class SkippedFiles:
    """Which files were left out."""

    skipped: Path | None = None
    """list to write of all files that could not be read: path, tab, reason"""

    def check_skipped(self, out: Path | None, *inputs: Path) -> None:
        """Refuse a list that cannot be written, or would replace an input or the result."""
        from dept.io import check_output

        if self.skipped is None:
            return
        check_output(self.skipped, *inputs, name="skipped")
        if out is not None and out.resolve() == self.skipped.resolve():
            raise UsageError(f"--skipped and --out are the same file, {out}. Choose another --skipped.")


@dataclass(frozen=True)
class Device:
    """Where models run."""

    device: str = "auto"
    """cpu, cuda, mps or auto"""
    workers: int = 0
    """processes that load images"""


@dataclass(frozen=True)
class Inference(Device):
    """How models run without training."""

    batch: int = 64
    """images per forward pass"""


@dataclass(frozen=True)
class TimmOptions:
    """How timm builds the architecture."""

    timm: str = "{}"
    """more keyword arguments for timm as JSON, e.g. '{"img_size": 128}'"""

    def options(self) -> dict[str, Any]:
        """The keyword arguments."""
        try:
            return {**jsonlib.loads(self.timm)}
        except (ValueError, TypeError) as error:
            example = '{"img_size": 128}'
            raise UsageError(f"--timm must be a JSON object such as '{example}', found {self.timm!r}.") from error


@dataclass(frozen=True)
class BenchInputs:
    """What benchmark cells are run from, and where results are."""

    data: Path | None = None
    """folder of the data sets (default: $DEPT_DATA)"""
    weights: Path | None = None
    """timm weights of the backbone (safetensors); by default timm downloads them"""
    results: Path = Path("benchmarks/results")
    """folder of results; finished cells in it are not run again"""
    work: Path = Path("runs")
    """folder for models and run folders"""

    def absolute(self) -> Self:
        """The same with whole paths, for workers that run in other folders."""
        paths = {name: value.absolute() for name, value in vars(self).items() if isinstance(value, Path)}
        return replace(self, **paths)

    def domains(self) -> Domains:
        """The data sets of the folder that is given, or of the environment."""
        from dept.data.datasets.derived import Domains

        root = self.data or (Path(os.environ["DEPT_DATA"]) if "DEPT_DATA" in os.environ else None)
        return Domains(root, self.work / "data")
