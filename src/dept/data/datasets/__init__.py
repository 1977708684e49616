"""Benchmark data sets in their official layouts, checked on load: the only way that dept finds one.

`get("visda").load(root, "validation")` gives the labelled images, classes in the official order, or says what is
missing and where to get it. `root` is the data set's folder or the folder that holds it.
"""

from __future__ import annotations

from dept.data.datasets.find import Benchmark
from dept.data.datasets.table import TABLE
from dept.errors import UsageError

__all__ = ["TABLE", "Benchmark", "available", "get"]


def available() -> list[str]:
    """Names of the data sets, in the order of the table."""
    return [benchmark.name for benchmark in TABLE]


def get(name: str) -> Benchmark:
    """A data set of the table."""
    for benchmark in TABLE:
        if benchmark.name == name:
            return benchmark
    raise UsageError(f"There is no data set {name!r}; choose from {', '.join(available())}.")
