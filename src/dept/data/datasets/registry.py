"""Benchmark data sets in their official layouts, checked on load.

`get("visda").load(root, "validation")` gives the labelled images, classes in the official order, or says what is
missing and where to get it. `root` is the data set's folder or the folder that holds it.

A model with ImageNet's 1,000 classes is scored on ImageNet-R or -A over the 200 classes that they have:
`logits[:, list(class_indices(images.classes, model.classes))]` against `images.labels`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from dept.data.datasets.check import IMAGENET, Benchmark, Domain, Finding, Loaded, State, imagenet_classes
from dept.data.datasets.scan import sub_folders
from dept.data.datasets.table import SEVERITIES, TABLE
from dept.data.images import ImageSet
from dept.errors import DataError, UsageError

__all__ = [
    "SEVERITIES",
    "TABLE",
    "Benchmark",
    "Domain",
    "Finding",
    "Loaded",
    "State",
    "available",
    "class_indices",
    "get",
    "imagenet_classes",
    "overall",
    "tree",
    "with_classes",
]


def available() -> list[str]:
    """Names of the data sets, in the order of the table."""
    return [benchmark.name for benchmark in TABLE]


def get(name: str) -> Benchmark:
    """A data set of the table."""
    for benchmark in TABLE:
        if benchmark.name == name:
            return benchmark
    raise UsageError(f"There is no data set {name!r}; choose from {', '.join(available())}.")


def tree(root: str | Path) -> Benchmark:
    """Any folder `root/<domain>/<class>/…/image` as a benchmark; the classes are those of all domains, sorted."""
    folder = Path(root).resolve()
    classes = {name: sub_folders(folder / name) for name in sub_folders(folder)}
    domains = [name for name, found in classes.items() if found]
    if not domains:
        raise DataError(f"{root} is no tree of <domain>/<class>/<image>: it has no folders with sub-folders.")
    return Benchmark(
        folder.name,
        folder.name,
        tuple(Domain(name, None) for name in domains),
        tuple(sorted({name for found in classes.values() for name in found})),
        (folder.name,),
        home="your own source",
        licence="your own data",
    )


def overall(findings: Sequence[Finding]) -> State:
    """The state of a data set: complete if every domain is that it cannot do without."""
    if all(finding.complete for finding in findings if not finding.optional):
        return "complete"
    return "partial" if any(finding.found for finding in findings) else "missing"


def class_indices(classes: Sequence[str], order: Sequence[str]) -> tuple[int, ...]:
    """For each of `classes`, its place in `order` (a model's classes: the same names, or 0 … 999 for ImageNet's)."""
    numbers = tuple(map(str, range(IMAGENET)))
    places = {name: n for n, name in enumerate(order)}
    missing = [name for name in classes if name not in places]
    if missing and tuple(order) == numbers:
        places = {name: n for n, name in enumerate(imagenet_classes())}
        missing = [name for name in classes if name not in places]
    if missing:
        raise DataError(
            f"{len(missing):,} of the {len(classes):,} classes are unknown to the model (first: {missing[0]}); "
            f"its {len(order):,} classes begin with {', '.join(list(order)[:3])}."
        )
    return tuple(places[name] for name in classes)


def with_classes(images: ImageSet, order: Sequence[str]) -> ImageSet:
    """The same images with labels that are indices into `order`, so that a model of these classes can be scored."""
    assert images.labels is not None
    places = class_indices(images.classes, order)
    return replace(images, labels=tuple(places[label] for label in images.labels), classes=tuple(order))
