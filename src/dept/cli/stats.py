"""`dept stats MODEL SOURCE --out stats.safetensors`."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from dept.cli.parse import parse
from dept.cli.show import as_json, report_skipped
from dept.data.images import decodable, find_labelled
from dept.data.loader import Runtime, resolve_device
from dept.io import check_output
from dept.models.files import load_model
from dept.models.stats import compute_stats, is_stats, save_stats


@dataclass(frozen=True)
class Files:
    """Which model's features on which images."""

    model: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")]
    """model file that will be adapted"""
    source: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="SOURCE")]
    """labelled source images: one sub-folder per class (the model's names), or a list file"""
    out: Path = Path("stats.safetensors")
    """statistics file to write"""
    fisher_images: int = 2000
    """images that the Fisher weights (EATA) are computed on"""
    seed: int = 0
    """seed of the draw of those images"""
    json: bool = False
    """print the metadata as JSON"""
    batch: int = 64
    """images per forward"""
    device: str = "auto"
    """cpu, cuda, mps or auto"""
    workers: int = 0
    """processes that decode images"""


def run(argv: list[str]) -> int:
    """Compute and write the statistics."""
    files: Files = parse("stats", "Write the source statistics of a model (for CFA, EATA).", argv, files=Files).files
    check_output(files.out, files.model, files.source, keep=lambda file: not is_stats(file))
    model = load_model(files.model)
    images = decodable(find_labelled(files.source, model.classes))
    report_skipped(images)
    runtime = Runtime(resolve_device(files.device), files.workers, files.batch)
    tensors, meta = compute_stats(model, images, runtime, fisher_images=files.fisher_images, seed=files.seed)
    path = save_stats(tensors, meta, files.out)
    if files.json:
        print(as_json(meta))
        return 0
    empty = [name for name, count in zip(model.classes, tensors["class_counts"].tolist(), strict=True) if not count]
    print(f"Statistics of {len(images)} images: {path} ({path.stat().st_size / 1024:.0f} KiB)")
    if empty:
        print(f"{len(empty)} classes have no image and are left out of class means: {', '.join(empty[:5])}")
    model_file, stats_file = (shlex.quote(str(file)) for file in (files.model, path))
    print(f"Next:  dept adapt {model_file} IMAGES --method cfa --stats {stats_file} --out runs/site")
    return 0
