"""Labels of disagreements: what is asked, and the files that carry the answers."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.sax.saxutils import quoteattr

from dept.errors import DataError, some

COLUMNS = ("image", "before", "after", "right")
NEITHER = "neither"
MOST_BYTES = 50_000_000
"""of a file of labels; Label Studio repeats the pictures in it"""


@dataclass(frozen=True)
class Asked:
    """One image that two models give different classes."""

    image: str
    """its name in files of labels"""
    before: str
    after: str
    right: str = ""
    """which model is right, if that is known already"""


@dataclass(frozen=True)
class Questions:
    """The images to label, and the words for an answer."""

    asked: tuple[Asked, ...]
    classes: tuple[str, ...]
    sides: tuple[str, str] = ("before", "after")
    """what the two models are called"""

    @property
    def words(self) -> tuple[str, str, str]:
        """The possible answers."""
        return (*self.sides, NEITHER)


def as_csv(questions: Questions) -> str:
    """The table to fill in: image, both predictions, and which model is right."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows((one.image, one.before, one.after, one.right) for one in questions.asked)
    return buffer.getvalue()


def read_labels(file: Path, questions: Questions) -> dict[str, str]:
    """Image -> which model is right, from a table with the columns `image` and `right`, or `image` and `class`.

    `class` is the true class of the image. Rows without an answer, and other columns, are passed over. A DataError
    names the line where something is wrong.
    """
    known = {one.image: one for one in questions.asked}
    found: dict[str, str] = {}
    for line, row in _rows(file):
        where, image = f"{file}, line {line}", row["image"]
        if not (row["right"] + row["class"]).strip():
            continue
        if image not in known:
            raise DataError(f"{where}: this check has no image {image[:200]!r}. Use its own table, or its page.")
        one = known[image]
        if any(row[side] not in ("", getattr(one, side)) for side in ("before", "after")):
            raise DataError(
                f"{where}: the models predict {row['before']!r} and {row['after']!r} for {image!r} there, and "
                f"{one.before!r} and {one.after!r} in this check. Label the images of this check."
            )
        word = _answer(row, one, questions, where)
        if found.setdefault(image, word) != word:
            raise DataError(f"{where}: {image!r} is {word!r} here and {found[image]!r} in an earlier line. Keep one.")
    return found


def merged(files: Mapping[Path, Mapping[str, str]]) -> dict[str, str]:
    """The labels of several files; a DataError if two of them contradict each other."""
    labels: dict[str, str] = {}
    for file, own in files.items():
        for image, word in own.items():
            if labels.setdefault(image, word) != word:
                raise DataError(
                    f"{file}: {image!r} is labelled {word!r} there and {labels[image]!r} in another file. Keep one."
                )
    return labels


def _rows(file: Path) -> list[tuple[int, dict[str, str]]]:
    """Rows of a CSV file with their line; separated by commas, or by what a spreadsheet uses instead."""
    try:
        if file.stat().st_size > MOST_BYTES:
            raise DataError(f"{file} has more than {MOST_BYTES // 10**6} MB, too much for a table of labels.")
        text = file.read_bytes().decode("utf-8-sig")  # line ends as they are: a name may hold one
        header = text.partition("\n")[0]
        reader = csv.DictReader(io.StringIO(text, newline=""), delimiter=max(",;\t", key=header.count))
        present = set(reader.fieldnames or ())
        if "image" not in present or not present & {"right", "class"}:
            raise DataError(f"{file} needs the columns image and right (or class). Its first line is {header[:80]!r}.")
        names = (*COLUMNS, "class")
        return [(reader.line_num, {name: row.get(name) or "" for name in names}) for row in reader]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{file} cannot be read as a table of labels ({error}).") from error


def _answer(row: Mapping[str, str], one: Asked, questions: Questions, where: str) -> str:
    """Which model is right: said so, or the one that predicts the true class."""
    if word := row["right"].strip().lower():
        if word not in questions.words:
            raise DataError(f"{where}: right is {word[:80]!r}; expected {', '.join(questions.words)}, or nothing.")
        return word
    truth = row["class"].strip()
    if truth not in questions.classes:
        raise DataError(f"{where}: there is no class {truth[:80]!r}. Classes: {some(questions.classes)}.")
    return {one.before: questions.sides[0], one.after: questions.sides[1]}.get(truth, NEITHER)


def label_studio_tasks(questions: Questions, pictures: Sequence[str]) -> list[dict[str, Any]]:
    """Tasks for Label Studio, with the prediction of each model. Its CSV export can be judged as it is.

    Args:
        pictures: a data URI for each image, so that nothing needs to be hosted.
    """
    return [
        label_studio_task(
            {"image": one.image, "before": one.before, "after": one.after, "picture": picture},
            {name: (label, None) for name, label in zip(questions.sides, (one.before, one.after), strict=True)},
        )
        for one, picture in zip(questions.asked, pictures, strict=True)
    ]


def label_studio_task(data: Mapping[str, str], predicted: Mapping[str, tuple[str, float | None]]) -> dict[str, Any]:
    """One task: what it shows (`picture`) and carries, and what each model predicts, with a score if that is known."""

    def prediction(model: str, label: str, score: float | None) -> dict[str, Any]:
        choice = {"from_name": "class", "to_name": "picture", "type": "choices", "value": {"choices": [label]}}
        return {"model_version": model, "result": [choice], **({} if score is None else {"score": score})}

    return {"data": data, "predictions": [prediction(model, *said) for model, said in predicted.items()]}


def label_studio_config(questions: Questions) -> str:
    """The labelling interface for these tasks: the picture and the classes of the model."""
    choices = "\n".join(f"    <Choice value={quoteattr(name)}/>" for name in questions.classes)
    return (
        '<View>\n  <Image name="picture" value="$picture"/>\n'
        f'  <Choices name="class" toName="picture" choice="single">\n{choices}\n  </Choices>\n</View>\n'
    )
