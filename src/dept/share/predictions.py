"""Predictions as files of other tools: CSV, JSON lines, FiftyOne, Label Studio. Of one model, or two side by side."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dept.data.decoding import decode_again
from dept.data.images import ImageSet
from dept.health.label_page import picture
from dept.health.labels import Questions, label_studio_config, label_studio_task
from dept.inference import Prediction, as_row

ONLY = "prediction"
"""what a single model's prediction is called where it needs a name"""


@dataclass(frozen=True)
class Predictions:
    """What models predict for the same images, in the same order."""

    images: ImageSet
    classes: tuple[str, ...]
    models: Mapping[str, Sequence[Prediction]]
    """what a model is called -> its predictions. Two of them are `before` and `after`"""

    def rows(self) -> Iterator[tuple[str, dict[str, Prediction]]]:
        """For every image its name, and the prediction of each model."""
        for number, name in enumerate(self.images.names()):
            yield name, {model: found[number] for model, found in self.models.items()}


def changed(said: Mapping[str, Prediction]) -> bool:
    """Whether the models disagree."""
    return len({one.label for one in said.values()}) > 1


def as_csv(predictions: Predictions) -> str:
    """path, label, confidence and top-k as `class:probability` separated by spaces; for two models, of each.

    Names are written exactly, even if a spreadsheet would take one for a formula (`=1+1.png`).
    """
    buffer = io.StringIO()
    # A carriage return ends a line for readers, but only newer versions of Python quote it by themselves.
    plain, quoted = (csv.writer(buffer, lineterminator="\n", quoting=how) for how in (csv.QUOTE_MINIMAL, csv.QUOTE_ALL))
    sides = list(predictions.models)
    if len(sides) == 1:
        plain.writerow(["path", "label", "confidence", "topk"])
    else:
        columns = [name for side in sides for name in (side, f"{side}_confidence", f"{side}_topk")]
        plain.writerow(["path", "changed", *columns])
    for name, said in predictions.rows():
        cells = [cell for one in said.values() for cell in (one.label, f"{one.confidence:.4f}", _ranked(one))]
        row = [name, *([str(changed(said)).lower()] if len(sides) > 1 else []), *cells]
        (quoted if any("\r" in cell for cell in row) else plain).writerow(row)
    return buffer.getvalue()


def _ranked(one: Prediction) -> str:
    return " ".join(f"{label}:{value:.4f}" for label, value in one.topk)


def as_jsonl(predictions: Predictions) -> str:
    """One object per image; for two models, `before` and `after` in it."""
    return "".join(json.dumps(_object(name, said)) + "\n" for name, said in predictions.rows())


def _object(name: str, said: Mapping[str, Prediction]) -> dict[str, Any]:
    rows = {model: as_row(one) for model, one in said.items()}
    if len(rows) == 1:
        return next(iter(rows.values()))
    for row in rows.values():
        del row["path"]
    return {"path": name, "changed": changed(said), **rows}


def fiftyone_files(predictions: Predictions) -> dict[str, str]:
    """A data set that FiftyOne imports as its type FiftyOneDataset: one Classification per model and sample.

    Without a version in metadata.json FiftyOne takes the fields from the samples. Images stay where they are. Samples
    on which the models disagree have the tag `changed`.
    """
    paths = predictions.images.paths
    samples = [
        {
            "filepath": str(path.absolute()),
            "tags": ["changed"] if changed(said) else [],
            "metadata": None,
            **{model: _classification(one) for model, one in said.items()},
        }
        for path, (_, said) in zip(paths, predictions.rows(), strict=True)
    ]
    meta = {"media_type": "image", "info": {"classes": predictions.classes}}
    return {"samples.json": json.dumps({"samples": samples}, indent=1), "metadata.json": json.dumps(meta, indent=1)}


def _classification(one: Prediction) -> dict[str, Any]:
    return {"_cls": "Classification", "tags": [], "label": one.label, "confidence": one.confidence, "logits": None}


def label_studio_files(predictions: Predictions) -> dict[str, str]:
    """Tasks with the predictions and a small picture of each image, and the labelling interface for them."""
    tasks = []
    for path, (name, said) in zip(predictions.images.paths, predictions.rows(), strict=True):
        data = {"image": name, **{model: one.label for model, one in said.items()}}
        scored = {model: (one.label, one.confidence) for model, one in said.items()}
        tasks.append(label_studio_task({**data, "picture": picture(decode_again(path))}, scored))
    interface = label_studio_config(Questions((), predictions.classes))
    return {"label_studio.json": json.dumps(tasks, indent=1), "label_studio.xml": interface}


TEXTS: dict[str, Callable[[Predictions], str]] = {"csv": as_csv, "jsonl": as_jsonl}
"""formats that are one text"""
FOLDERS: dict[str, Callable[[Predictions], dict[str, str]]] = {
    "fiftyone": fiftyone_files,
    "label-studio": label_studio_files,
}
"""formats that are a folder of files"""
