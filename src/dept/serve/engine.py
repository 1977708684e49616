"""Forwards of mixed batches: every sample with the adapter of its domain, over one backbone."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dept.core.adapter import Adapter
from dept.core.blocks import is_transformer
from dept.core.domains import early_features
from dept.data.loader import normalised
from dept.models.model import Model
from dept.serve.pool import Entry

Pixels = NDArray[np.uint8]
"""the test view of an image (H, W, channels)"""


class Engine:
    """Runs the model. For one thread at a time: an adapter of the backbone is swapped in for its own batches."""

    def __init__(self, model: Model) -> None:
        # A second tree of modules over the same tensors: swapping parameters in this one leaves the other as it is.
        tensors = [*model.parameters(), *model.buffers()]
        self.model: Model = deepcopy(model, {id(tensor): tensor for tensor in tensors}).eval()

    def normalised(self, pixels: Sequence[Pixels]) -> Tensor:
        """Test views as the model wants them (B, channels, H, W)."""
        stacked = torch.from_numpy(np.stack(pixels)).to(self.model.device)
        return normalised(stacked, self.model.card.preprocess)

    @torch.inference_mode()
    def logits(self, images: Tensor, entries: Sequence[Entry]) -> Tensor:
        """Logits (B, C) on the CPU of images (B, channels, H, W), each for its entry. All entries share one lane."""
        logits: Tensor = self.model(images, adapter=self._adapter(entries))
        return logits.cpu()

    def _adapter(self, entries: Sequence[Entry]) -> Adapter | None:
        first = entries[0]
        if all(entry is first for entry in entries):
            return Adapter(first.tensors) if first.tensors else None
        own = self.model.adapter.tensors
        names = sorted({name for entry in entries for name in entry.tensors})
        return Adapter(
            {name: torch.stack([entry.tensors.get(name, own.get(name)) for entry in entries]) for name in names}  # type: ignore[misc]
        )

    @property
    def has_features(self) -> bool:
        """Whether the backbone has the features that signatures are made of."""
        return is_transformer(self.model.backbone)

    @torch.inference_mode()
    def features(self, images: Tensor) -> Tensor:
        """What the images look like (B, D), on the CPU: see `core.domains.early_features`."""
        return early_features(self.model.backbone, images).cpu()
