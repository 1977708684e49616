"""Adaptations on which the verdict is tested: `python benchmarks/verdict_runs.py --work FOLDER`.

Small models and shifts that no threshold of `health` was set on. Two source models: the embedded one for digits, and
one for 36 characters (capitals and digits) that is trained here, so that there are many classes and weak sources.
Targets: real handwriting, and rendered characters under ImageNet-C's corruptions. Some adaptations are broken on
purpose: a hundred times the default learning rate, images of noise among the target's, a wrong normalisation. Some
targets have other class shares than the source. Each run adds one line to benchmarks/results/verdict/runs.jsonl: true
classes, predictions before and after, those of the re-centred source model, and predictions along the way. Nothing is
judged here; `verdict_calibration.py` does that. Finished runs are skipped, so it may be stopped at any time.
"""

from __future__ import annotations

import argparse
import json
import random
import string
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont

from dept import methods
from dept.bench.suites.digits import AUGMENT, EMBEDDED, PROMPTS, TRAINING
from dept.data.corruptions import CORRUPTIONS, EXTRA, corrupt
from dept.data.digits import font_files, real_digits, rendered_digits
from dept.data.images import ImageSet, find_labelled
from dept.data.loader import Runtime, TestPasses, Views
from dept.methods.base import Method
from dept.methods.dept_plus import SGD
from dept.models.files import load_model
from dept.models.model import Model, create_model
from dept.runs.loops import class_probabilities, collect, offline
from dept.runs.train import train

RESULTS = Path(__file__).parent / "results" / "verdict" / "runs.jsonl"
CHARACTERS = string.digits + string.ascii_uppercase
SIDE, IMAGES, STEPS, POINTS = 32, 150, 30, 3
# Times the default learning rates, which are made for large pretrained models. These are small and from scratch.
RATE, BROKEN_RATE = 10, 100
SEVERITY = {"digits": 5, "characters": 4}
MILDER = 2
"""severity of further runs on the characters, whose targets are called "fog/2" and so on"""
RUNTIME = Runtime("cpu")

ON_PROMPTS = {"tune": "prompts", "lr": 5e-3}
METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "neo": ("neo", {}),
    "tent": ("tent", {}),
    "shot on prompts": ("shot", ON_PROMPTS),
    "dept": ("dept", {}),
    "dept+": ("dept+", {"trust": False} | SGD),
    "notela": ("notela", {}),
}
BROKEN = ("tent", "shot on prompts", "dept", "dept+")
SHIFTED = ("neo", "shot on prompts", "dept+", "notela")
SOME = ("gaussian_noise", "motion_blur", "fog")


@dataclass(frozen=True)
class Run:
    """One adaptation."""

    source: str
    target: str
    method: str
    fault: str = ""
    """what is wrong with it: rate (a hundred times as high), noise (images among the target's), normalisation"""
    shares: str = ""
    """how the target's class shares differ: few (a third of the classes), skewed (Dirichlet 0.3), single"""


def plan() -> Iterator[Run]:
    """All runs: sound ones, broken ones, and targets with other class shares."""
    for source in SEVERITY:
        targets, some = (_targets(source, names) for names in (list(CORRUPTIONS), list(SOME)))
        yield from (Run(source, target, method) for target in targets for method in METHODS)
        for fault in ("rate", "noise", "normalisation"):
            yield from (Run(source, target, method, fault=fault) for target in some for method in BROKEN)
        for shares in ("few", "skewed", "single"):
            yield from (Run(source, target, method, shares=shares) for target in some for method in SHIFTED)
    # The four corruptions that ImageNet-C holds back for validation: made after the intervals were set for good.
    yield from (Run("digits", target, method) for target in EXTRA for method in METHODS)


def _targets(source: str, names: list[str]) -> list[str]:
    """Real handwriting for the digits, a second severity for the characters."""
    return ["real", *names] if source == "digits" else [*names, *(f"{name}/{MILDER}" for name in names)]


def rendered_characters(count: int, *, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Characters drawn from fonts, upright or turned a little: images (count, 32, 32) uint8, labels (count,)."""
    fonts = [ImageFont.truetype(str(file), size) for file in font_files() for size in (22, 26, 30)]
    rng = np.random.default_rng(seed)
    images, labels = np.empty((count, SIDE, SIDE), np.uint8), rng.integers(len(CHARACTERS), size=count)
    for number, label in enumerate(labels.tolist()):
        ground, ink = rng.integers(0, 50), rng.integers(190, 256)
        image = Image.new("L", (SIDE, SIDE), int(ground))
        place = tuple(SIDE / 2 + rng.uniform(-2, 2, 2))
        ImageDraw.Draw(image).text(place, CHARACTERS[label], int(ink), fonts[rng.integers(len(fonts))], anchor="mm")
        turned = image.rotate(rng.uniform(-12, 12), Image.Resampling.BILINEAR, fillcolor=int(ground))
        images[number] = np.clip(np.asarray(turned) + rng.normal(0, 4, (SIDE, SIDE)), 0, 255)
    return images, labels.astype(np.int64)


@cache
def rendered(source: str) -> tuple[np.ndarray, np.ndarray]:
    """Fresh images like those a source model was trained on."""
    return {"digits": rendered_digits, "characters": rendered_characters}[source](4 * IMAGES, seed=1)


CLASSES = {"digits": tuple(string.digits), "characters": tuple(CHARACTERS)}


def write(root: Path, images: np.ndarray, labels: np.ndarray, classes: tuple[str, ...]) -> Path:
    """A labelled folder; every class has one, images or not."""
    for name in classes:
        (root / name).mkdir(parents=True, exist_ok=True)
    for number, (image, label) in enumerate(zip(images, labels.tolist(), strict=True)):
        Image.fromarray(image).save(root / classes[label] / f"{number:05d}.png")
    return root


def source_model(name: str, work: Path) -> Path:
    """The file of a source model; that of the characters is trained if it is not there."""
    if name == "digits":
        return EMBEDDED
    file = work / "characters" / "model.safetensors"
    if not file.exists():
        model = create_model(
            "vit_tiny_patch16_224", CLASSES[name], stages=4, prompts=PROMPTS,
            img_size=SIDE, patch_size=8, in_chans=1, embed_dim=64, depth=8, num_heads=4, weight_init="jax",
        )  # fmt: skip
        model.card = replace(model.card, preprocess=replace(model.card.preprocess, resize=36), augment=AUGMENT)
        folder = write(work / "rendered", *rendered_characters(10_000, seed=0), CLASSES[name])
        train(model, folder, out=file.parent, config=TRAINING, overwrite=True)
    return file


def pixels(run: Run) -> tuple[np.ndarray, np.ndarray]:
    """The images of a target (n, 32, 32) and their classes (n,), with the class shares that the run asks for."""
    images, labels = real_digits() if run.target == "real" else rendered(run.source)
    rng = np.random.default_rng(2)
    count = len(CLASSES[run.source])
    weights = {"few": [1.0] * (count // 3) + [0.0] * (count - count // 3), "single": [1.0] + [0.0] * (count - 1)}
    shares = rng.dirichlet([0.3] * count) if run.shares == "skewed" else np.array(weights.get(run.shares, [1] * count))
    shares = shares[rng.permutation(count)] if run.shares else shares
    chances = (shares / np.bincount(labels, minlength=count).clip(1))[labels]
    drawn = rng.choice(len(labels), min(IMAGES, int((chances > 0).sum())), replace=False, p=chances / chances.sum())
    images, labels = images[drawn], labels[drawn]
    if run.target != "real":
        images = np.stack([_corrupted(image, run, number) for number, image in enumerate(images)])
    return images, labels


def _corrupted(image: np.ndarray, run: Run, number: int) -> np.ndarray:
    name, _, severity = run.target.partition("/")
    coloured = np.repeat(image[..., None], 3, axis=2)
    return corrupt(coloured, name, int(severity or SEVERITY[run.source]), seed=number)[..., 0]


def adapted(run: Run, model_file: Path, folder: Path) -> dict[str, Any]:
    """Adapt and record. Labels only end up in the record."""
    images, labels = pixels(run)
    found = find_labelled(write(folder / "target", images, labels, CLASSES[run.source]))
    real = torch.ones(len(found), dtype=torch.bool)
    if run.fault == "noise":
        noise = np.random.default_rng(3).integers(0, 256, (len(images), SIDE, SIDE), dtype=np.uint8)
        among = write(folder / "both", np.concatenate([images, noise]), np.concatenate([labels, 0 * labels]),
                      CLASSES[run.source])  # fmt: skip
        found = find_labelled(among)
        real = torch.tensor([int(Path(path).stem) < len(images) for path in found.paths])
    model = _model(model_file, run)
    views = Views(model.card.preprocess, model.card.augment, 0)
    neo = _method(_model(model_file, run), "neo", {}, found)
    for _ in offline(neo, found.unlabelled(), views, RUNTIME):
        pass
    name, settings = METHODS[run.method]
    made = _method(model, name, settings, found, rate=BROKEN_RATE if run.fault == "rate" else RATE)
    truth = torch.tensor(found.labels)
    before = class_probabilities(model, found, RUNTIME)
    record: dict[str, Any] = {"run": asdict(run), "labels": truth.tolist(), "real": real.int().tolist()}
    record |= _predicted("before", before) | _predicted("neo", class_probabilities(neo.model, found, RUNTIME))
    record["path"] = path = []
    for event in offline(made, found.unlabelled(), views, RUNTIME):
        if (event.progress.step + 1) * POINTS // event.progress.total > len(path):
            path.append(_point(made, found, views, truth, real))
    return record | _predicted("after", collect(TestPasses(found, views, RUNTIME)(), made)["student"])


def _model(file: Path, run: Run) -> Model:
    model = load_model(file).eval()
    if run.fault == "normalisation":
        model.card = replace(model.card, preprocess=replace(model.card.preprocess, mean=(0.1,), std=(0.2,)))
    return model


def _method(model: Model, name: str, settings: dict[str, Any], images: ImageSet, rate: float = 1) -> Method:
    kind = methods.get(name, "offline")
    config = replace(kind.Config(), batch=32, max_iters=STEPS, **settings)
    if name == "neo":
        config = replace(config, max_iters=-(-len(images) // 32))
    elif rate != 1:
        config = replace(config, lr=config.lr * rate)
    return kind(model, config, seed=0)


def _predicted(name: str, probabilities: torch.Tensor) -> dict[str, Any]:
    confidence, labels = probabilities.max(dim=1)
    return {name: labels.tolist(), f"{name}_confidence": [round(value, 3) for value in confidence.tolist()]}


def _point(made: Method, images: ImageSet, views: Views, truth: torch.Tensor, real: torch.Tensor) -> dict[str, Any]:
    """Where the run stands: predicted classes and, for the table alone, accuracy."""
    labels = collect(TestPasses(images, views, RUNTIME)(), made)["student"].argmax(dim=1)
    return {"labels": labels.tolist(), "top1": round(float((labels == truth)[real].double().mean()), 4)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, required=True, help="for images and the source model")
    parser.add_argument("--most", type=int, default=0, help="stop after so many new runs")
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    lines = RESULTS.read_text().splitlines() if RESULTS.exists() else []
    done = [json.loads(line)["run"] for line in lines]
    todo = [run for run in plan() if asdict(run) not in done]
    random.Random(0).shuffle(todo)  # so that any beginning of it is a sample of all
    for number, run in enumerate(todo[: args.most or None]):
        with tempfile.TemporaryDirectory(dir=args.work) as folder:
            record = adapted(run, source_model(run.source, args.work), Path(folder))
        with RESULTS.open("a") as file:
            file.write(json.dumps(record, separators=(",", ":")) + "\n")
        print(f"{number + 1}/{len(todo)} {run}", flush=True)


if __name__ == "__main__":
    main()
