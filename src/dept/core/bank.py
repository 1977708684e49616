"""Memory bank: a ring of target features and predictions, and the soft vote of nearest neighbours in it."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class MemoryBank:
    """FIFO ring of `size` unit features (size, D) with class probabilities (size, C).

    Features are normalised once, when written, so a query is one matmul and a top-k.
    """

    def __init__(self, size: int, width: int, classes: int, device: torch.device | str = "cpu") -> None:
        if size < 1:
            raise ValueError(f"A memory bank needs at least one slot, found size={size}.")
        self.features = torch.zeros(size, width, device=device)
        self.probabilities = torch.zeros(size, classes, device=device)
        self.pointer = 0
        self.filled = 0

    @classmethod
    def over(cls, head: nn.Linear, size: int) -> MemoryBank:
        """An empty bank for the features and classes of a head, on its device."""
        return cls(size, head.in_features, head.out_features, head.weight.device)

    @classmethod
    def restored(cls, state: dict[str, Tensor], device: torch.device) -> MemoryBank | None:
        """The bank that a `state_dict` is of; None if it is empty, because there was no bank."""
        if not state:
            return None
        bank = cls(1, 1, 1, device)
        bank.load_state_dict(state)
        return bank

    def __len__(self) -> int:
        return self.filled

    @torch.no_grad()
    def write(self, features: Tensor, probabilities: Tensor) -> Tensor:
        """Overwrite the next B slots, wrapping around; returns them. features (B, D), probabilities (B, C).

        Of more entries than there are slots only the last ones are kept.
        """
        size = len(self.features)
        features, probabilities = features[-size:], probabilities[-size:]
        # A ring: the oldest entries are overwritten where they lie, nothing is moved or allocated.
        slots = (self.pointer + torch.arange(len(features), device=self.features.device)) % size
        self.put(slots, features, probabilities)
        self.pointer = int((self.pointer + len(features)) % size)
        self.filled = min(self.filled + len(features), size)
        return slots

    @torch.no_grad()
    def put(self, slots: Tensor, features: Tensor, probabilities: Tensor) -> None:
        """Overwrite the given slots (B,), which must be filled already or about to be."""
        self.features[slots] = F.normalize(features.float(), dim=-1)
        self.probabilities[slots] = probabilities.float()

    def refill(self, features: Tensor, probabilities: Tensor, generator: torch.Generator | None = None) -> None:
        """Replace the whole content, in a random order of slots, and restart the ring.

        The order matters: the ring evicts by slot, and images usually come sorted by class.
        """
        order = torch.randperm(len(features), generator=generator).to(features.device)
        self.pointer = self.filled = 0
        self.write(features[order], probabilities[order])

    @torch.no_grad()
    def vote(self, queries: Tensor, neighbours: int) -> Tensor:
        """Mean probabilities of the nearest entries by cosine: (B, D) -> (B, C).

        `neighbours` is capped at a fifth of the filled slots, so that a vote stays local in a small bank.
        """
        if not self.filled:
            raise ValueError("The memory bank is empty: write or refill it before a vote.")
        k = max(1, min(neighbours, self.filled // 5))
        similarity = F.normalize(queries.float(), dim=-1) @ self.features[: self.filled].T
        nearest = similarity.topk(k, dim=-1, sorted=False).indices
        return self.probabilities[nearest].mean(dim=1)  # [DePT Eq. ŷ]

    @torch.no_grad()
    def nearest(self, slots: Tensor, neighbours: int) -> Tensor:
        """The other entries that are nearest by cosine to those in the slots: (B,) -> slots (B, k).

        k is `neighbours`, capped as in a vote and by the number of others, which may be 0.
        """
        k = min(max(1, min(neighbours, self.filled // 5)), self.filled - 1)
        found = []
        for rows in torch.split(slots, 1024):  # a large bank times all rows at once would not fit into memory
            similarity = self.features[rows] @ self.features[: self.filled].T
            similarity.scatter_(1, rows.unsqueeze(1), -torch.inf)
            found.append(similarity.topk(k, dim=-1).indices)
        return torch.cat(found)

    def mutual(self, slots: Tensor, neighbours: int) -> tuple[Tensor, Tensor]:
        """Nearest entries of those in the slots, and whether the other side says the same: two (B, k)."""
        near = self.nearest(slots, neighbours)
        others, position = torch.unique(near, return_inverse=True)
        theirs = self.nearest(others, neighbours)[position]  # (B, k, k)
        return near, (theirs == slots[:, None, None]).any(dim=2)

    def state_dict(self) -> dict[str, Tensor]:
        """Tensors that restore the bank exactly."""
        ring = torch.tensor([self.pointer, self.filled])
        return {"features": self.features, "probabilities": self.probabilities, "ring": ring}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Inverse of `state_dict`."""
        device = self.features.device
        self.features = state["features"].to(device, copy=True)
        self.probabilities = state["probabilities"].to(device, copy=True)
        self.pointer, self.filled = (int(value) for value in state["ring"])
