"""Features in two dimensions: PCA on common axes, or t-SNE."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from dept.errors import missing_extra

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


def project(sets: list[Array], how: Literal["pca", "tsne"]) -> list[Array]:
    """Several sets of features (n, D) of the same images -> as many sets of points (n, 2)."""
    return pca(sets) if how == "pca" else tsne(sets)


def pca(sets: list[Array]) -> list[Array]:
    """Projection on the two main axes of all sets together, so that positions can be compared."""
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
