"""`check`: the images of a run to label, because the models before and after disagree on them. Or of two runs."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, cast

from torch import Tensor

from dept.data.decoding import decode_again
from dept.data.images import ImageSet, decodable, list_hash
from dept.data.loader import Runtime, resolve_device
from dept.data.places import as_place
from dept.errors import DataError, UsageError
from dept.health.disagreement import disagreeing, draw
from dept.health.label_page import label_page, picture
from dept.health.labels import Asked, Questions, as_csv, label_studio_config, label_studio_tasks, read_labels
from dept.io import read_json, write_atomic, write_json
from dept.models.model import Model
from dept.runs.file_index import read_index
from dept.runs.inputs import images_of, models_of
from dept.runs.loops import class_probabilities
from dept.runs.read import RunFiles, read_run, read_verdict
from dept.runs.record import shown
from dept.runs.schema import COUNT, Fields, Items
from dept.runs.schema import check as check_fields
from dept.runs.seal import sealed, unsealed

RECORD, TABLE, PAGE = "check.json", "labels.csv", "label.html"
_ASKED = Fields(dict.fromkeys(("image", "before", "after"), str), required=("image", "before", "after"))
_RECORD = Fields(
    {"images": COUNT, "disagreeing": COUNT, "sides": Items(str, 2), "classes": Items(str), "asked": Items(_ASKED)}
    | {"products": Items(str)},
    required=("images", "disagreeing", "sides", "classes", "asked", "products"),
)


@dataclass(frozen=True)
class CheckOptions:
    """Which images are asked about, and how the models run."""

    labels: int = 30
    """images to label, at most; a larger number later keeps those of now"""
    stratified: bool = False
    """draw evenly over the classes predicted afterwards"""
    seed: int = 0
    """seed of the draw, and of the sides on the page"""
    model: Path | None = None
    """source model, if it has moved since the run"""
    images: Path | None = None
    """images, if they have moved since the run, or others to check it on"""
    device: str = "auto"
    """cpu, cuda, mps or auto"""
    workers: int = 0
    """processes that decode images"""
    batch: int = 64
    """images per forward"""

    def __post_init__(self) -> None:
        if self.labels < 1:
            raise UsageError(f"`labels` must be at least 1, found {self.labels}.")


@dataclass(frozen=True)
class Check:
    """What is asked, and where it is written; print it to read it."""

    runs: tuple[Path, ...]
    folder: Path
    images: int
    disagreeing: int
    questions: Questions
    products: tuple[str, ...]
    """sha256 of the files that the runs have written: labels are about these models"""

    def __str__(self) -> str:
        share = f"{self.disagreeing:,} of {self.images:,} images ({100 * self.disagreeing / self.images:.1f} %)"
        first, second = self.questions.sides
        if len(self.runs) == 2:
            first, second = (f"of {run} ({side})" for run, side in zip(self.runs, self.questions.sides, strict=True))
        if not self.disagreeing:
            return f"The predictions {first} and {second} agree on all {self.images:,} images: the gain is 0."
        asked = len(self.questions.asked)
        drawn = "All of them" if asked == self.disagreeing else f"{asked} of them, drawn at random,"
        done = sum(bool(one.right) for one in self.questions.asked)
        return "\n".join(
            [
                f"The predictions {first} and {second} differ on {share}. Only these decide which is better.",
                f"{drawn} are to be labelled{f' ({done} done)' if done else ''}, in one of three ways:",
                f"  {self.folder / PAGE}   open it in a browser: two arrow keys, then download {TABLE}",
                f"  {self.folder / TABLE}   or fill in its last column: {', '.join(self.questions.words)}",
                f"  {self.folder / 'label_studio.json'}   or import it into Label Studio (interface: label_studio.xml)",
                f"Next:  {judge_command(self.runs, str(self.folder / TABLE))}   (or the downloaded {TABLE})",
            ]
        )


def check(runs: Sequence[str | Path], options: CheckOptions | None = None) -> Check:
    """Draw images on which the models disagree, and write the files to label them with. Needs no labels.

    Args:
        runs: one run, whose models before and after are compared; or two, whose results are.
    """
    options = options or CheckOptions()
    if not 1 <= len(runs) <= 2:
        raise UsageError(f"A check compares before and after of one run, or two runs; {len(runs)} folders were given.")
    read = [read_run(folder) for folder in runs]
    places = tuple(run.folder for run in read)
    images, before, after, classes = _one(read[0], options) if len(read) == 1 else _two(read, options)
    differing = disagreeing(before, after)
    strata = [after[position] for position in differing] if options.stratified else None
    chosen = draw(differing, options.labels, seed=options.seed, strata=strata)
    names = images.names()
    asked = tuple(Asked(_text(names[i]), classes[before[i]], classes[after[i]]) for i in chosen)
    questions = Questions(asked, classes, ("before", "after") if len(read) == 1 else ("first", "second"))
    made = Check(
        places, check_place(places), len(images), len(differing), questions, tuple(run.product_sha256 for run in read)
    )
    if not differing:
        return made
    made = replace(made, questions=_answered(made))
    record = {"seed": options.seed, "stratified": options.stratified, "list_sha256": list_hash(images)}
    _write(made, record, [picture(decode_again(images.paths[i])) for i in chosen], options.seed)
    return made


def check_place(runs: Sequence[Path]) -> Path:
    """Where the files of a check are: inside the (second) run."""
    return runs[0] / "check" if len(runs) == 1 else runs[1] / f"check-{runs[0].resolve().name}"


def verdict_place(runs: Sequence[Path]) -> Path:
    """The folder that the verdict is in. That on one run belongs to the run, that on two to their comparison."""
    return runs[0] if len(runs) == 1 else check_place(runs)


def judge_command(runs: Sequence[Path], table: str) -> str:
    """The command that judges by the labels."""
    return shlex.join(["dept", "judge", *(shown(run) for run in runs), table])


def read_check(folder: Path) -> tuple[dict[str, Any], Questions]:
    """The record of a check, and what it asked; a DataError if there is none, or it is damaged."""
    file = folder / RECORD
    if not file.is_file():
        raise DataError(f"{folder} has no {RECORD}. Run `dept check` first, then label the images that it draws.")
    try:
        record = unsealed(read_json(file))
        check_fields(record, _RECORD)
    except ValueError as error:
        raise DataError(f"{file} is damaged: {error}. Run `dept check` again.") from error
    asked = tuple(Asked(row["image"], row["before"], row["after"]) for row in record["asked"])
    return record, Questions(asked, tuple(record["classes"]), cast(tuple[str, str], tuple(record["sides"])))


class Compared(NamedTuple):
    """Two models on the same images: classes (n,) that each predicts, as positions in `classes`."""

    images: ImageSet
    before: list[int]
    after: list[int]
    classes: tuple[str, ...]


def _one(run: RunFiles, options: CheckOptions) -> Compared:
    """The models before and after a run."""
    runtime = Runtime(resolve_device(options.device), options.workers, options.batch)
    before, after = models_of(run, model=options.model, device=runtime.device)
    if before is None:
        raise UsageError(f"{run.folder} is a source training: there is no model before it. Give two runs to compare.")
    found, _ = images_of(run, after, images=options.images, scored=False)
    images = decodable(found, channels=after.card.preprocess.channels, index=read_index(run.folder))
    # What a stream has predicted stands, and is what somebody used. Its adapter has learned on since.
    stored = run.kind == "stream" and options.images is None
    new = _streamed(run, images, after) if stored else _predicted(after, images, runtime)
    return Compared(images, _predicted(before, images, runtime), new, after.classes)


def _two(runs: Sequence[RunFiles], options: CheckOptions) -> Compared:
    """The models that two runs have made."""
    runtime = Runtime(resolve_device(options.device), options.workers, options.batch)
    models = [models_of(run, model=options.model, device=runtime.device)[1] for run in runs]
    sets = []
    for run, model in zip(runs, models, strict=True):
        found, _ = images_of(run, model, images=options.images, scored=False)
        sets.append(decodable(found, channels=model.card.preprocess.channels, index=read_index(run.folder)))
    names = " and ".join(str(run.folder) for run in runs)
    if models[0].classes != models[1].classes:
        raise UsageError(f"{names} cannot be compared: their models have different classes.")
    # By their places: a stream has the same images in another order.
    if len({frozenset(path.absolute() for path in found.paths) for found in sets}) > 1:
        raise UsageError(f"{names} adapted to different images. Name those to compare them on as `images`.")
    before, after = (_predicted(model, sets[0], runtime) for model in models)
    return Compared(sets[0], before, after, models[0].classes)


def _predicted(model: Model, images: ImageSet, runtime: Runtime) -> list[int]:
    probabilities: Tensor = class_probabilities(model, images, runtime)
    return [int(label) for label in probabilities.argmax(dim=1)]


def _streamed(run: RunFiles, images: ImageSet, model: Model) -> list[int]:
    """What a stream has predicted for the images, by their paths."""
    stored = {str(as_place(row["path"]).absolute()): row["label"] for row in run.predictions if "label" in row}
    labels = [stored[str(path.absolute())] for path in images.paths]
    unknown = sorted(set(labels) - set(model.classes))
    if unknown:
        raise DataError(f"{run.folder} predicted the class {unknown[0]!r}, which its model does not have.")
    return [model.classes.index(label) for label in labels]


def _text(name: str) -> str:
    """The name of an image as text that a browser and a spreadsheet give back as it was."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def _answered(made: Check) -> Questions:
    """The questions, with the labels that are there already: in the table of an earlier check, or judged."""
    judged, table = read_verdict(verdict_place(made.runs)), made.folder / TABLE
    labels: dict[str, str] = judged["labels"] if judged and tuple(judged["products"]) == made.products else {}
    if table.is_file():
        try:
            labels = labels | read_labels(table, made.questions)
        except DataError as error:
            raise DataError(
                f"{table} has labels that do not fit this check, and it would be replaced. Move it away first, or "
                f"draw with the same seed as before. ({error})"
            ) from error
    asked = tuple(replace(one, right=labels.get(one.image, "")) for one in made.questions.asked)
    return replace(made.questions, asked=asked)


def _write(made: Check, record: Mapping[str, Any], pictures: Sequence[str], seed: int) -> None:
    """The record, the page, the table, and the files for Label Studio."""
    questions, key = made.questions, "-".join(product[:16] for product in made.products)
    asked = [{name: value for name, value in asdict(one).items() if name != "right"} for one in questions.asked]
    full = {
        **record,
        "images": made.images,
        "disagreeing": made.disagreeing,
        "sides": questions.sides,
        "classes": questions.classes,
        "products": made.products,
        "asked": asked,
    }
    page = label_page(questions, pictures, command=judge_command(made.runs, TABLE), seed=seed, key=key)
    write_atomic(made.folder / PAGE, page.encode(errors="backslashreplace"))
    write_atomic(made.folder / TABLE, as_csv(questions).encode(errors="backslashreplace"))
    tasks = json.dumps(label_studio_tasks(questions, pictures), indent=1)
    write_atomic(made.folder / "label_studio.json", tasks.encode())
    write_atomic(made.folder / "label_studio.xml", label_studio_config(questions).encode(errors="backslashreplace"))
    write_json(made.folder / RECORD, sealed(full))
