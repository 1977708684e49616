"""Features in two dimensions: PCA on common axes or t-SNE, and the paper's t-SNE figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from dept.data.images import ImageSet
from dept.data.loader import Runtime, TestPasses, Views
from dept.errors import missing_extra
from dept.models.model import Model

Array = NDArray[np.floating[Any]]
TSNE_LIMIT = 2000  # with more images t-SNE takes minutes


def choose(rule: Literal["auto", "pca", "tsne"], count: int) -> Literal["pca", "tsne"]:
    """The projection to use: t-SNE for 30 to 2,000 images if scikit-learn is installed, else PCA."""
    if rule == "auto":
        # Neighbourhoods mean nothing for a handful of images.
        return "tsne" if 30 <= count <= TSNE_LIMIT and find_spec("sklearn") else "pca"
    if rule == "tsne" and not find_spec("sklearn"):
        raise missing_extra("scikit-learn", "report")
    return rule


def pca(sets: list[Array]) -> list[Array]:
    """Projection of sets (n, D) on the two main axes of all together, so that positions (n, 2) can be compared."""
    joint = np.concatenate(sets).astype(np.float64)
    center = joint.mean(axis=0)
    _, _, axes = np.linalg.svd(joint - center, full_matrices=False)
    axes = axes[:2]
    # An axis and its negative are equally good. Making the largest entry positive fixes the sign.
    axes = axes * np.sign(axes[np.arange(len(axes)), np.abs(axes).argmax(axis=1)])[:, None]
    points = [(features.astype(np.float64) - center) @ axes.T for features in sets]
    # Features of rank one have only one axis: the second coordinate is 0.
    return [np.pad(one, ((0, 0), (0, 2 - one.shape[1]))) for one in points]


def tsne(sets: list[Array]) -> list[Array]:
    """One t-SNE per set. Each starts from the result of the one before, so that groups stay in place."""
    from sklearn.manifold import TSNE

    start: Any = "pca" if min(sets[0].shape) > 1 else "random"
    found: list[Array] = []
    for features in sets:
        perplexity = min(30.0, max(2.0, (len(features) - 1) / 3))
        fit = TSNE(init=start, perplexity=perplexity, max_iter=500, random_state=0)
        placed = fit.fit_transform(np.ascontiguousarray(features, dtype=np.float32))
        found.append(placed)
        start = (placed / max(1e-12, float(placed[:, 0].std())) * 1e-4).astype(np.float32)
    return found


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
    size = (4.2 * len(placed), 4.4)
    figure, axes = plt.subplots(1, len(placed), figsize=size, squeeze=False, constrained_layout=True)
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
