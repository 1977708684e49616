"""Which domain an image belongs to, and how far the traffic of a domain has moved. Pure functions of early features.

An image x (D,) is the mean patch token half-way up the frozen backbone (`core.domains.early_features`), a domain k a
sample of such images. The domains share one covariance Σ within a domain, shrunk towards its diagonal:

    d(x, k)² = (x - μ_k)ᵀ Σ⁻¹ (x - μ_k) / D        about 1 for images of the domain itself
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

ENOUGH = 32
"""images from which a domain is known"""
MOST = 64
"""images of a domain that are kept for it"""
ROWS = 4096
"""images of all domains together that Σ is made of, at most: it is made again whenever a domain becomes known"""
SHRINKAGE = 0.5
"""share of the diagonal in Σ: there are fewer images than dimensions"""
WITHIN = 0.95
"""share of a domain's images that lie within its radius"""
DRIFTED = 0.35
"""drift from which a domain's traffic no longer looks like its images"""


@dataclass(frozen=True)
class Route:
    """Where an image without a domain goes."""

    domain: str | None
    """the nearest; None if the image lies outside its radius, or no domain is known"""
    distance: float
    """from the nearest domain, in its radius"""


def dump(features: Tensor) -> bytes:
    """Images (n, D) of a domain as the index stores them: at most `MOST`, with 16 bits."""
    buffer = io.BytesIO()
    np.save(buffer, features[:MOST].cpu().numpy().astype(np.float16), allow_pickle=False)
    return buffer.getvalue()


def load(data: bytes) -> Tensor:
    """Inverse of `dump`, as float32."""
    return torch.from_numpy(np.load(io.BytesIO(data), allow_pickle=False).astype(np.float32))


def whitening(samples: Sequence[Tensor]) -> Tensor:
    """W (D, D) with Σ⁻¹ = W Wᵀ, for the covariance Σ that samples (n_k, D) of domains have in common."""
    some = [rows[: max(2, ROWS // len(samples))] for rows in samples]
    centred = torch.cat([rows - rows.mean(dim=0) for rows in some]).double()
    covariance = centred.T @ centred / max(1, len(centred) - len(samples))
    diagonal = covariance.diagonal().clamp_min(1e-12)
    covariance = (1 - SHRINKAGE) * covariance + SHRINKAGE * torch.diag(diagonal)
    # Σ = L Lᵀ, so Σ⁻¹ = L⁻ᵀ L⁻¹.
    lower: Tensor = torch.linalg.cholesky(covariance)
    inverse: Tensor = torch.linalg.solve_triangular(lower, torch.eye(len(lower), dtype=lower.dtype), upper=False)
    return inverse.T.float()


class Router:
    """The domains whose images are known, by name: samples (n, D) of each."""

    def __init__(self, samples: Mapping[str, Tensor]) -> None:
        known = {name: rows for name, rows in sorted(samples.items()) if len(rows) >= ENOUGH}
        self.names = list(known)
        if known:
            self._whitening = whitening(list(known.values()))
            self._centres = torch.stack([rows.mean(dim=0) for rows in known.values()]) @ self._whitening
            self._radii = _radii(list(known.values()))

    def __call__(self, features: Tensor) -> list[Route]:
        """The routes of images (n, D)."""
        if not self.names:
            return [Route(None, float("inf"))] * len(features)
        apart = torch.cdist(features @ self._whitening, self._centres) / features.shape[1] ** 0.5
        nearest = apart.min(dim=1)
        relative = nearest.values / self._radii[nearest.indices]
        return [
            Route(self.names[number] if value <= 1 else None, value)
            for number, value in zip(nearest.indices.tolist(), relative.tolist(), strict=True)
        ]


def _radii(samples: Sequence[Tensor]) -> Tensor:
    """Radius (K,) of each domain. Every half of the images is measured by the other: new images lie farther out than
    those that mean and covariance were made of.
    """
    halves = [[rows[0::2] for rows in samples], [rows[1::2] for rows in samples]]
    distances: list[list[Tensor]] = [[] for _ in samples]
    for own, other in (halves, halves[::-1]):
        white = whitening(other)
        for held, rows, base in zip(distances, own, other, strict=True):
            held.append(((rows - base.mean(dim=0)) @ white).square().mean(dim=1).sqrt())
    return torch.stack([torch.cat(held).quantile(WITHIN) for held in distances])


@dataclass(frozen=True)
class Reference:
    """What drift is measured from: mean and deviation (D,) of the images of a domain, and how many they were."""

    mean: Tensor
    deviation: Tensor
    count: int

    @classmethod
    def of(cls, features: Tensor) -> Reference:
        """Of images (n, D)."""
        return cls(features.mean(dim=0), features.std(dim=0, correction=0).clamp_min(1e-6), len(features))


class Moving:
    """Mean of the latest images of a domain: a new one counts 1/64 or, at the beginning, its share."""

    WINDOW, LEAST = 64, 16

    def __init__(self) -> None:
        self.count, self.mean = 0, torch.zeros(())

    def add(self, features: Tensor) -> None:
        """Take in one image (D,)."""
        self.count += 1
        self.mean = self.mean + (features - self.mean) / min(self.count, self.WINDOW)

    def drift(self, reference: Reference) -> float | None:
        """√(mean_j ((m_j - μ_j) / σ_j)²) beyond what chance gives; None before 16 images."""
        if self.count < self.LEAST:
            return None
        moved = ((self.mean - reference.mean) / reference.deviation).square().mean()
        # A moving average in which the last image counts 1/w varies like a mean of 2 w - 1 images.
        seen = min(self.count, 2 * self.WINDOW - 1)
        return float((moved - 1 / seen - 1 / reference.count).clamp_min(0).sqrt())
