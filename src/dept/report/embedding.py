"""Two-dimensional pictures of features before and after: PCA on common axes, or t-SNE."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from dept.errors import missing_extra

Array = NDArray[np.floating[Any]]
TSNE_LIMIT = 2000  # images; above, t-SNE takes minutes


def choose(rule: Literal["auto", "pca", "tsne"], count: int) -> Literal["pca", "tsne"]:
    """The projection to use: t-SNE for at most 2,000 images if scikit-learn is there, else PCA."""
    # t-SNE's neighbourhoods mean nothing for a handful of images
    if rule == "auto":
        return "tsne" if 30 <= count <= TSNE_LIMIT and find_spec("sklearn") else "pca"
    if rule == "tsne" and not find_spec("sklearn"):
        raise missing_extra("scikit-learn", "report")
    return rule


def project(sets: list[Array], how: Literal["pca", "tsne"]) -> list[Array]:
    """Features (n, D) of the same images, several times -> as many (n, 2)."""
    return pca(sets) if how == "pca" else tsne(sets)


def pca(sets: list[Array]) -> list[Array]:
    """On the two main axes of all sets together, so that positions can be compared; signs fixed."""
    joint = np.concatenate(sets).astype(np.float64)
    center = joint.mean(axis=0)
    _, _, axes = np.linalg.svd(joint - center, full_matrices=False)
    axes = axes[:2]
    # An axis and its negative are equally good: the largest entry is made positive.
    axes = axes * np.sign(axes[np.arange(len(axes)), np.abs(axes).argmax(axis=1)])[:, None]
    return [_two((features.astype(np.float64) - center) @ axes.T) for features in sets]


def tsne(sets: list[Array]) -> list[Array]:
    """One t-SNE per set; each starts where the one before ended, so that groups stay in place if they can."""
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


def _two(points: Array) -> Array:
    """Always two columns: features of rank one have but one axis."""
    return np.pad(points, ((0, 0), (0, 2 - points.shape[1])))
