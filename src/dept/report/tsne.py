"""The paper's t-SNE figure: features of the same images from several models or adapters, side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dept.data.images import ImageSet
from dept.data.loader import Runtime, TestPasses, Views
from dept.errors import missing_extra
from dept.models.model import Model
from dept.report.embedding import tsne

Array = NDArray[np.floating[Any]]


@torch.no_grad()
def features(model: Model, images: ImageSet, runtime: Runtime) -> Array:
    """Features (n, D) of the test views."""
    model.to(runtime.device).eval()
    passes = TestPasses(images, Views(model.card.preprocess), runtime)
    return torch.cat([model.read(batch.views[0]).features.cpu() for batch in passes()]).numpy()


def separation(points: Array, labels: Sequence[int]) -> float:
    """Share of points whose nearest neighbour has the same class."""
    squares = (points**2).sum(axis=1)
    distances = squares[:, None] + squares[None] - 2 * points @ points.T
    np.fill_diagonal(distances, np.inf)
    found = np.asarray(labels)
    return float((found[distances.argmin(axis=1)] == found).mean())


def draw(sets: Mapping[str, Array], labels: Sequence[int], classes: Sequence[str], path: Path) -> dict[str, float]:
    """Draw one panel per set, coloured by true class. Returns the separation in each. Needs the extra `report`."""
    try:
        import matplotlib.pyplot as plt
    except ImportError as error:
        raise missing_extra("matplotlib", "report") from error
    placed = dict(zip(sets, tsne(list(sets.values())), strict=True))
    found = {name: separation(points, labels) for name, points in placed.items()}
    figure, axes = plt.subplots(
        1, len(placed), figsize=(4.2 * len(placed), 4.4), squeeze=False, constrained_layout=True
    )
    for axis, (name, points) in zip(axes[0], placed.items(), strict=True):
        for number, label in enumerate(classes):
            member = np.asarray(labels) == number
            axis.scatter(*points[member].T, s=6, color=plt.get_cmap("tab20")(number % 20), label=label)
        axis.set_title(f"{name}: nearest neighbour agrees {100 * found[name]:.0f} %", fontsize=9)
        axis.set(xticks=[], yticks=[])
    handles, names = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=min(10, len(names)), frameon=False, markerscale=3)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    plt.close(figure)
    return found
