"""The `pacs-mini` protocol: ViT-Ti/16 at 128 px, trained on PACS photos, adapted to the three other domains.

Fixed once: resize 146, crop 128; source 90/10 split, 8 epochs; target = at most 1,000 images per domain drawn by
`random.Random(0)`, adapted to and evaluated on (transductive); 20 prompts per stage; batch 32, 300 steps.
Read-out: student, direct, last iterate.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dept import methods
from dept.adapting import AdaptRun, adapt
from dept.bench.runner import Cell
from dept.data.folder import ImageSet, find_labelled
from dept.data.subsets import sample
from dept.errors import DataError
from dept.files import load_model
from dept.metrics import paired_interval
from dept.models import create_model
from dept.training import SourceTraining, train

SUITE = "pacs-mini"
ARCH = "vit_tiny_patch16_224.augreg_in21k_ft_in1k"
CLASSES = ("dog", "elephant", "giraffe", "guitar", "horse", "house", "person")
DOMAINS = ("photo", "art_painting", "cartoon", "sketch")
TARGETS = DOMAINS[1:]
STAGES = {"plain": 0, "S": 1, "G": 4, "D": 12}
SIZE, PROMPTS, MOST, BATCH, STEPS = 128, 20, 1000, 32, 300
# AugReg ViT-Ti fine-tunes well at twice the authors' ViT-B rate with a quarter of their batch.
TRAINING: dict[str, Any] = {"lr": 1e-3, "epochs": 8, "batch": BATCH}


@dataclass(frozen=True)
class Suite:
    """Where the images and weights are, and where models and run folders go."""

    data: Path
    weights: Path
    work: Path
    size: int = SIZE
    prompts: int = PROMPTS
    device: str = "auto"
    workers: int = 0

    def run(self, cell: Cell) -> dict[str, Any]:
        """Run one cell: a source training or an adaptation."""
        return self._train(cell) if cell.method == "source-training" else self._adapt(cell)

    # -- cells ---------------------------------------------------------------------------------------------

    def source_cell(self, variant: str) -> Cell:
        """Training of the source model with a number of stages: plain, S, G or D."""
        protocol = {
            "arch": ARCH,
            "weights_sha256": file_hash(self.weights),
            "size": self.size,
            "stages": STAGES[variant],
            "prompts": self.prompts if STAGES[variant] else 0,
            "config": TRAINING,
        }
        return Cell(SUITE, "pacs", "photo", "source-training", variant, 0, protocol)

    def adapt_cell(
        self, variant: str, target: str, method: str, seed: int, *, preset: str | None = None, **settings: Any
    ) -> Cell:
        """Adaptation of one source model to one domain."""
        protocol = {
            "source": self.source_cell(variant).key,
            "most": MOST,
            "preset": preset,
            "config": {"batch": BATCH, "max_iters": STEPS, **settings},
        }
        setting = f"{variant}-lean offline" if settings.get("lean") else f"{variant} offline"
        return Cell(SUITE, "pacs", f"photo->{target}", method, setting, seed, protocol)

    def cells(
        self, variants: Sequence[str], targets: Sequence[str], seeds: Sequence[int], *, lean: bool = False
    ) -> list[Cell]:
        """Source models first, then every method in its setting; the first seed of everything before the next.

        `lean` gives the cells of `--lean` instead of the exact DePT.
        """
        chosen = [self.source_cell(variant) for variant in variants]
        for seed in seeds:
            for variant in variants:
                for target in targets:
                    if seed == seeds[0]:  # nothing random in it
                        chosen.append(self.adapt_cell(variant, target, "source", seed))
                    if variant == "plain":
                        # The published ViT rate 1e-3 is for a batch of 64.
                        chosen.append(self.adapt_cell(variant, target, "tent", seed, preset="offline", lr=5e-4))
                    else:
                        changes: dict[str, Any] = {"lean": True} if lean else {}
                        chosen.append(self.adapt_cell(variant, target, "dept", seed, **changes))
        return chosen

    # -- running them --------------------------------------------------------------------------------------

    def _train(self, cell: Cell) -> dict[str, Any]:
        protocol = cell.protocol
        model = create_model(
            ARCH,
            CLASSES,
            stages=protocol["stages"],
            prompts=protocol["prompts"],
            weights=self.weights,
            seed=cell.seed,
            img_size=self.size,
        )
        config = SourceTraining.Config(**protocol["config"])
        run = train(
            model,
            self.domain("photo"),
            out=self.folder(cell),
            config=config,
            overwrite=True,
            seed=cell.seed,
            device=self.device,
            workers=self.workers,
        )
        return run.result

    def _adapt(self, cell: Cell) -> dict[str, Any]:
        variant, protocol = cell.setting.split()[0].removesuffix("-lean"), cell.protocol
        images = sample(self.domain(cell.shift.split("->")[1]), protocol["most"], seed=0)
        kind = methods.get(cell.method)
        settings = {k: v for k, v in protocol["config"].items() if k in kind.Config.__dataclass_fields__}
        model = self.folder(self.source_cell(variant)) / "model.safetensors"
        if not model.is_file():
            self._train(self.source_cell(variant))  # the result is committed, the model is not
        run = adapt(
            load_model(model),
            images,
            out=self.folder(cell),
            method=cell.method,
            preset=protocol["preset"],
            score_on=images,
            overwrite=True,
            seed=cell.seed,
            device=self.device,
            workers=self.workers,
            **settings,
        )
        return run.result | paired(run, images)

    def folder(self, cell: Cell) -> Path:
        """The run folder of a cell (models and adapters; not committed)."""
        return self.work / SUITE / cell.key

    def domain(self, name: str) -> ImageSet:
        """All labelled images of a domain."""
        root = self.data / "pacs" / name
        if not root.is_dir():
            raise DataError(f"{root} does not exist: PACS is expected as DATA/pacs/<domain>/<class>/<image>.")
        return find_labelled(root, CLASSES)


def paired(run: AdaptRun, images: ImageSet) -> dict[str, Any]:
    """The gain on the same images with its interval, and the predictions that it comes from."""
    assert images.labels is not None
    before, after = run.before.argmax(dim=1).tolist(), run.after.argmax(dim=1).tolist()
    hits = [[p == y for p, y in zip(predicted, images.labels, strict=True)] for predicted in (after, before)]
    return {
        "gain": (sum(hits[0]) - sum(hits[1])) / len(images),
        "gain_ci95": paired_interval(*hits),
        "predictions": {"before": before, "after": after},
    }


def file_hash(path: Path) -> str:
    """sha256 of a file."""
    if not path.is_file():
        raise DataError(f"The weights file {path} does not exist.")
    return hashlib.sha256(path.read_bytes()).hexdigest()
