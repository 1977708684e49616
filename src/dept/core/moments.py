"""First and second moments of features and how far apart they are: for TTT++, and for its source statistics."""

from __future__ import annotations

import torch
from torch import Tensor

PAIRS = ("feature", "projection")
"""what moments are taken of, as source statistics name them"""


def covariance(points: Tensor) -> Tensor:
    """Σ of points (n, D) -> (D, D); zero for a single point."""
    centred = points - points.mean(dim=0)
    return centred.T @ centred / max(len(points) - 1, 1)


def moment_distances(mean: Tensor, cov: Tensor, other_mean: Tensor, other_cov: Tensor) -> tuple[Tensor, Tensor]:
    """Of covariances (D, D), CORAL's ‖·‖² / (4 D²); of means (D,), the mean squared difference."""
    return (cov - other_cov).square().sum() / (4 * len(mean) ** 2), (mean - other_mean).square().mean()


class Moments:
    """Moments of all points that come in batches, and how much those of the batches differ."""

    def __init__(self) -> None:
        self.count, self.total, self.squares = 0, torch.zeros(()), torch.zeros(())
        self.first: tuple[Tensor, Tensor] | None = None
        self.gaps: list[Tensor] = []

    def add(self, points: Tensor) -> None:
        """Points (n, D) of a batch, in double precision."""
        self.count += len(points)
        self.total = self.total + points.sum(dim=0)
        self.squares = self.squares + points.T @ points
        own = points.mean(dim=0), covariance(points)
        if self.first is None:
            self.first = own
        else:
            self.gaps.append(torch.stack(moment_distances(*own, *self.first)))

    def overall(self) -> tuple[Tensor, Tensor]:
        """Mean (D,) and covariance (D, D) of all points."""
        mean = self.total / self.count
        return mean, (self.squares - self.count * torch.outer(mean, mean)) / max(self.count - 1, 1)

    def noise(self) -> Tensor:
        """Mean distances of covariances and of means from those of the first batch (2,); ones for a single batch."""
        return torch.stack(self.gaps).mean(dim=0) if self.gaps else torch.ones(2)
