"""Batches of views: decoded once per image, uint8 in the workers, normalised on the device."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from dept.data.device_views import Canvas, CanvasDataset, collate, render
from dept.data.folder import ImageSet, decode
from dept.data.views import Augment, Preprocess, make_view, view_rng

Key = tuple[int, int]  # (epoch, index)


@dataclass(frozen=True)
class Views:
    """What is made of every image: preprocessing, strength of augmentation, seed."""

    preprocess: Preprocess
    augment: Augment = Augment()
    seed: int = 0


class ViewDataset(Dataset[tuple[int, list[NDArray[np.uint8]]]]):
    """Maps (epoch, index) to the views of an image, one per letter."""

    def __init__(self, images: ImageSet, letters: str, views: Views) -> None:
        self.images, self.letters, self.views = images, letters, views

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, key: Key) -> tuple[int, list[NDArray[np.uint8]]]:
        epoch, index = key
        views = self.views
        image = decode(self.images.paths[index], views.preprocess.channels)
        made = [
            make_view(image, letter, views.preprocess, views.augment, view_rng(views.seed, epoch, index, number))
            for number, letter in enumerate(self.letters)
        ]
        return index, made


def shuffled_keys(size: int, batch: int, steps: Iterable[int], seed: int) -> Iterator[list[Key]]:
    """Keys of the batches at the given global steps; every epoch is a fresh seeded permutation, last batch short."""
    per_epoch = -(-size // batch)
    order: list[int] = []
    current = -1
    for step in steps:
        epoch, position = divmod(step, per_epoch)
        if epoch != current:
            generator = torch.Generator().manual_seed(seed * 1_000_003 + epoch)
            order, current = torch.randperm(size, generator=generator).tolist(), epoch
        yield [(epoch, index) for index in order[position * batch : (position + 1) * batch]]


def ordered_keys(size: int, batch: int) -> list[list[Key]]:
    """Keys of one pass in the fixed order."""
    return [[(0, index) for index in range(start, min(start + batch, size))] for start in range(0, size, batch)]


def batches(
    images: ImageSet,
    letters: str,
    views: Views,
    keys: Sequence[list[Key]] | Iterator[list[Key]],
    *,
    device: torch.device | str = "cpu",
    workers: int = 0,
    device_views: bool = False,
) -> Iterator[tuple[Tensor, tuple[Tensor, ...]]]:
    """Yield (index (B,), views) for each list of keys; views are normalised floats (B, channels, H, W).

    Args:
        device_views: make the same views on the device instead of in the workers; equal up to the rounding to bytes.
    """
    mean = torch.tensor(views.preprocess.mean, device=device).view(1, -1, 1, 1)
    std = torch.tensor(views.preprocess.std, device=device).view(1, -1, 1, 1)
    if device_views:
        dataset = CanvasDataset(images, letters, views.preprocess, views.augment, views.seed)
        canvases: DataLoader[Canvas] = DataLoader(dataset, batch_sampler=keys, num_workers=workers, collate_fn=collate)
        for batch in canvases:
            made = render(batch, views.preprocess, device)
            yield batch.index, tuple(view.sub_(mean).div_(std) for view in made)
        return
    loader: DataLoader[tuple[int, list[NDArray[np.uint8]]]] = DataLoader(
        ViewDataset(images, letters, views), batch_sampler=keys, num_workers=workers, collate_fn=_collate
    )
    for index, stacks in loader:
        yield index, tuple(normalised(pixels.to(device), mean, std) for pixels in stacks)


def _collate(rows: list[tuple[int, list[NDArray[np.uint8]]]]) -> tuple[Tensor, list[Tensor]]:
    index = torch.tensor([index for index, _ in rows])
    stacks = [torch.from_numpy(np.stack(view)) for view in zip(*(made for _, made in rows), strict=True)]
    return index, stacks


def normalised(pixels: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """uint8 (B, H, W, channels) -> float (B, channels, H, W), as ToTensor and Normalize do."""
    # Transposing while still bytes, then in place: four times fewer bytes moved than the textbook line.
    return pixels.permute(0, 3, 1, 2).contiguous().float().div_(255).sub_(mean).div_(std)
