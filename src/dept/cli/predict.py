"""`dept predict MODEL IMAGES [--adapter A]`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from dept.cli.command import Command, Positional
from dept.cli.parse import parse
from dept.cli.parts import Inference, ModelFile, SkippedFiles
from dept.cli.show import report_skipped, say, skipped_kept
from dept.errors import UsageError

if TYPE_CHECKING:
    from dept.share.predictions import Predictions

KINDS = {".csv": "csv", ".jsonl": "jsonl", ".json": "jsonl"}
"""ending of a file -> its format"""


@dataclass(frozen=True)
class PredictInput(ModelFile):
    """The model, and the images to label."""

    images: Annotated[Path, Positional("IMAGES")]
    """folder (any nesting), .tar archives, one image, a list file, or an address such as s3://bucket/folder"""
    adapter: Path | None = None
    """adapter of the domain: a file, or hf-hub:USER/REPO"""
    both: bool = False
    """predict without and with the adapter: before and after side by side"""


@dataclass(frozen=True)
class PredictOutput(SkippedFiles):
    """How predictions are written."""

    out: Path | None = None
    """file to write (.csv, .jsonl or .json), or folder for the formats of other tools; without it, stdout"""
    format: Literal["csv", "jsonl", "fiftyone", "label-studio"] = "csv"
    """csv or jsonl on stdout; fiftyone (samples.json) and label-studio (tasks with predictions) need `out`"""
    topk: int = 5
    """classes per image"""
    features: bool = False
    """add the feature vector of every image (JSONL only)"""


COMMAND = Command("predict", "Label images.", {"Input": PredictInput, "Output": PredictOutput, "Run": Inference})


def run(argv: list[str]) -> None:
    """Label every image that decodes; list the others on stderr."""
    given, output, how = parse(COMMAND, argv)
    from dept.data.images import find_images
    from dept.inference import predict, predict_readable
    from dept.models.files import load
    from dept.share.predictions import ONLY, Predictions

    if given.both and given.adapter is None:
        raise UsageError("--both compares predictions without and with an adapter. Give it as --adapter.")
    inputs = [given.model, given.images, *([given.adapter] if given.adapter else [])]
    output.check_skipped(output.out, *inputs)  # refused before the work, not after it
    kind = checked_kind(output, inputs)
    if output.features and kind != "jsonl":
        say("Features are written to JSONL only: add --format jsonl, or --out FILE.jsonl.")
    places = {"before": None, "after": given.adapter} if given.both else {ONLY: given.adapter}
    models = {name: load(given.model, adapter=adapter) for name, adapter in places.items()}
    first = next(iter(models.values()))
    settings = {"topk": output.topk, "features": output.features}
    settings |= {"device": how.device, "workers": how.workers, "batch": how.batch}
    with skipped_kept(output.skipped):
        rows, images = predict_readable(first, find_images(given.images), **settings)
    report_skipped(images, output.skipped)
    others = {name: predict(model, images, **settings) for name, model in models.items() if model is not first}
    found = {next(iter(models)): rows} | others
    write(Predictions(images, first.classes, found), kind, output.out)


def checked_kind(output: PredictOutput, inputs: list[Path]) -> str:
    """The format; refused before any work if it cannot be written to `out`."""
    from dept.io import check_folder, check_output
    from dept.share.predictions import FOLDERS

    if output.format in FOLDERS:
        if output.out is None or output.out.suffix in KINDS:
            raise UsageError(f"--format {output.format} writes several files. Give their folder as --out.")
        check_folder(output.out)
        return output.format
    if output.out is None:
        return output.format
    check_output(output.out, *inputs)
    if output.out.suffix not in KINDS:
        raise UsageError(f"--out must end in .csv, .jsonl or .json, which decides the format; found {output.out}.")
    return KINDS[output.out.suffix]


def write(predictions: Predictions, kind: str, out: Path | None) -> None:
    """Print the predictions, or write them and say where they are."""
    from dept.io import write_atomic
    from dept.share.predictions import FOLDERS, TEXTS, changed

    if out is None:
        print(TEXTS[kind](predictions), end="")
        return
    if kind in FOLDERS:
        files = {out / name: text for name, text in FOLDERS[kind](predictions).items()}
    else:
        files = {out: TEXTS[kind](predictions)}
    for file, text in files.items():
        write_atomic(file, text.encode(errors="surrogateescape"))  # names as the file system has them
    differ = sum(changed(said) for _, said in predictions.rows())
    compared = f", {differ} of them changed by the adapter" if len(predictions.models) > 1 else ""
    say(f"{len(predictions.images)} predictions in {out}{compared}")
    if kind == "fiftyone":
        say(f"Next:  fiftyone.Dataset.from_dir({str(out)!r}, dataset_type=fiftyone.types.FiftyOneDataset)")
