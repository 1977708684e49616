"""`dept stats MODEL SOURCE --out stats.safetensors`."""

from __future__ import annotations

import shlex
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated

from dept.cli.command import Command, Positional
from dept.cli.parse import parse
from dept.cli.parts import Inference, Json, ModelFile, SkippedFiles
from dept.cli.show import as_json, report_skipped, show, skipped_kept
from dept.errors import UsageError


@dataclass(frozen=True)
class StatsInput(ModelFile):
    """The model, and the source images."""

    source: Annotated[Path, Positional("SOURCE")]
    """labelled source images: one sub-folder per class (the model's names), or a list file"""
    fisher_images: int = 2000
    """images that the Fisher weights (EATA) are computed on"""
    seed: int = 0
    """seed that picks those images"""
    card: bool = False
    """also write class shares, accuracy and calibration into the model file, as `dept train` does; best from images
    that it was not trained on"""


@dataclass(frozen=True)
class StatsOutput(Json, SkippedFiles):
    """The statistics file."""

    out: Path = Path("stats.safetensors")
    """statistics file to write"""


COMMAND = Command(
    "stats",
    "Write the source statistics of a model (for CFA, EATA and TTT++), and its card (for the verdict).",
    {"Input": StatsInput, "Output": StatsOutput, "Run": Inference},
)


def run(argv: list[str]) -> None:
    """Compute and write the statistics."""
    given, output, how = parse(COMMAND, argv)
    from dept.data.images import decodable, find_labelled, label_shares
    from dept.data.loader import Runtime, resolve_device
    from dept.io import check_output, is_dept_file
    from dept.models.files import load_model, save_model
    from dept.models.stats import compute_stats, is_stats, save_stats
    from dept.runs.profile import measure_profile

    check_output(output.out, given.model, given.source, keep=lambda file: not is_stats(file))
    output.check_skipped(output.out, given.model, given.source)
    if given.card and not is_dept_file(given.model):
        raise UsageError(
            f"--card writes into a model file, which {given.model} is not. Convert it with `dept convert`."
        )
    model = load_model(given.model)
    with skipped_kept(output.skipped):
        images = decodable(find_labelled(given.source, model.classes), channels=model.card.preprocess.channels)
    report_skipped(images, output.skipped)
    runtime = Runtime(resolve_device(how.device), how.workers, how.batch)
    tensors, meta = compute_stats(model, images, runtime, fisher_images=given.fisher_images, seed=given.seed)
    path = save_stats(tensors, meta, output.out)
    empty = [name for name, count in zip(model.classes, tensors["class_counts"].tolist(), strict=True) if not count]
    if given.card:
        profile = measure_profile(model, images, runtime)
        # Images without some of the classes do not have the class shares of the source.
        prior = model.card.prior if empty else label_shares(images)
        model.card = replace(model.card, prior=prior, profile=profile)
        save_model(model, given.model)
    if output.json:
        print(as_json(meta | ({"profile": asdict(profile)} if given.card else {})))
        return
    show(f"Statistics of {len(images)} images: {path} ({path.stat().st_size / 1024:.0f} KiB)")
    if empty:
        show(f"{len(empty)} classes without images are left out of the class means: {', '.join(empty[:5])}")
    if given.card:
        shares = " Class shares were not written, because classes are missing." if empty else ""
        show(f"Card written to {given.model}: {100 * profile.accuracy:.1f} % right on {profile.images} images.{shares}")
    model_file, stats_file = (shlex.quote(str(file)) for file in (given.model, path))
    show(f"Next:  dept adapt {model_file} IMAGES --method cfa --stats {stats_file} --out runs/site")
