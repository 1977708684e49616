"""Batches of views: decoded once per image, uint8 in the workers, normalised on the device."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, tee
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from dept.core.collective import all_items, all_rows, everyones, own_rows, size
from dept.data.decoding import decode, decode_again, reason
from dept.data.images import ImageSet, reported, without
from dept.data.places import Place
from dept.data.views import Augment, Preprocess, make_view, view_rng
from dept.errors import DataError, UsageError

Key = tuple[int, int]  # (epoch, index)
Bad = dict[Place, str]
"""files that do not decode, and why"""
Row = tuple[int, list[NDArray[np.uint8]], Bad]
"""position of an image, its views, and files that were found not to decode on the way to it"""
MOST_BAD = 1000
"""images in a row that may be replaced: with more of them the set is not what it is thought to be"""


@dataclass(frozen=True)
class Views:
    """What is made of every image: preprocessing, strength of augmentation, seed."""

    preprocess: Preprocess
    augment: Augment = Augment()
    seed: int = 0

    def __post_init__(self) -> None:
        side, size = self.augment.weak_resize, self.preprocess.size
        if 0 < side < size:
            raise ValueError(f"weak_resize must be at least the model's input size of {size} px (or 0), found {side}.")


class ViewDataset(Dataset[Row]):
    """Maps (epoch, index) to the views of an image, one per letter."""

    def __init__(self, images: ImageSet, letters: str, views: Views) -> None:
        self.images, self.letters, self.views = images, letters, views

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, key: Key) -> Row:
        index, channels, bad = key[1], self.views.preprocess.channels, Bad()
        if self.images.replaced is None:
            image = decode_again(self.images.paths[index], channels)
        else:
            image, bad = decode_or_next(self.images, index, channels)
        return index, views_of(image, self.letters, self.views, key), bad


def decode_or_next(images: ImageSet, index: int, channels: int) -> tuple[Image.Image, Bad]:
    """The image at a position, or the next one that decodes; of the same class, where labels say it.

    A function of the files and the position alone, so that runs repeat. Also returns what was newly found bad.
    """
    assert images.replaced is not None
    bad = Bad()
    for other in islice(_standing_in(images, index), MOST_BAD):
        place = images.paths[other]
        if place in images.replaced:
            continue
        try:
            return decode(place, channels), bad
        except Exception as error:  # as in `decode_problem`
            bad[place] = images.replaced[place] = reason(error)
    first = images.paths[index]
    raise DataError(
        f"{first} does not decode ({images.replaced[first]}), and neither does any image that could take its place, up "
        f"to {MOST_BAD:,} after it. Are these the right images in {images.root}?"
    )


def _standing_in(images: ImageSet, index: int) -> Iterator[int]:
    """The position itself, and those after it, round the end of the set; of its class, where there are labels."""
    after = (at % len(images) for at in range(index, index + len(images)))
    labels = images.labels
    return after if labels is None else (at for at in after if labels[at] == labels[index])


def views_of(image: Image.Image, letters: str, views: Views, key: Key) -> list[NDArray[np.uint8]]:
    """The views of an image, one per letter: each a pure function of (seed, epoch, index, number of the view)."""
    return [
        make_view(image, letter, views.preprocess, views.augment, view_rng(views.seed, *key, number))
        for number, letter in enumerate(letters)
    ]


def shuffled_keys(size: int, batch: int, steps: Iterable[int], seed: int) -> Iterator[list[Key]]:
    """Keys of the batches at the given global steps; every epoch is a fresh seeded permutation, last batch short."""
    per_epoch = -(-size // batch)
    order = torch.empty(0)
    current = -1
    for step in steps:
        epoch, position = divmod(step, per_epoch)
        if epoch != current:
            generator = torch.Generator().manual_seed(seed * 1_000_003 + epoch)
            order, current = torch.randperm(size, generator=generator), epoch
        yield [(epoch, index) for index in order[position * batch : (position + 1) * batch].tolist()]


def ordered_keys(size: int, batch: int) -> Iterator[list[Key]]:
    """Keys of one pass in the fixed order."""
    for start in range(0, size, batch):
        yield [(0, index) for index in range(start, min(start + batch, size))]


def batches(
    images: ImageSet,
    letters: str,
    views: Views,
    keys: Sequence[list[Key]] | Iterator[list[Key]],
    *,
    device: torch.device | str = "cpu",
    workers: int = 0,
) -> Iterator[tuple[Tensor, tuple[Tensor, ...]]]:
    """Yield (index (B,), views) for each list of keys; views are normalised floats (B, channels, H, W).

    Of several processes each decodes some of the images, and all of them have all pixels, still as bytes, before they
    are normalised: which row is whose is the model's affair.
    """
    on_gpu = torch.device(device).type == "cuda"
    wanted, counted = tee(keys)
    loader: DataLoader[Row] = DataLoader(
        ViewDataset(images, letters, views),
        batch_sampler=map(own_rows, wanted),
        num_workers=workers,
        collate_fn=_collate,
        pin_memory=on_gpu,  # the copy to the GPU then runs beside its work
    )
    for (index, stacks, bad), whole in zip(_plainly(loader), counted, strict=True):
        if images.replaced is not None:
            for found in everyones(bad):
                images.replaced.update(found)
        count = len(whole)
        pixels = (all_rows(own.to(device, non_blocking=on_gpu), count) for own in stacks)
        yield all_rows(index, count), tuple(normalised(view, views.preprocess) for view in pixels)


def _plainly(loader: DataLoader[Any]) -> Iterator[Any]:
    """The batches; a DataError says its sentence alone, which torch wraps in the traceback of the worker."""
    try:
        yield from loader
    except DataError as error:
        name = f"{DataError.__module__}.{DataError.__qualname__}: "
        raise DataError(str(error).rsplit(name, 1)[-1].strip()) from error


def _collate(rows: list[Row]) -> tuple[Tensor, list[Tensor], Bad]:
    bad = {place: why for _, _, found in rows for place, why in found.items()}
    return torch.tensor([index for index, _, _ in rows]), stacked([made for _, made, _ in rows]), bad


def stacked(rows: list[list[NDArray[np.uint8]]]) -> list[Tensor]:
    """Views per image -> one uint8 tensor (B, H, W, channels) per view."""
    return [torch.from_numpy(np.stack(view)) for view in zip(*rows, strict=True)]


def normalised(pixels: Tensor, pre: Preprocess) -> Tensor:
    """uint8 (B, H, W, channels) -> float (B, channels, H, W), as ToTensor and Normalize do."""
    # Transposing while still bytes, then in place: four times fewer bytes moved than the textbook line.
    images = pixels.permute(0, 3, 1, 2).contiguous().float().div_(255)
    mean, std = (torch.tensor(values, device=images.device).view(1, -1, 1, 1) for values in (pre.mean, pre.std))
    return images.sub_(mean).div_(std)


@dataclass(frozen=True)
class Runtime:
    """Where and how batches are made. None of it changes a result beyond rounding."""

    device: str = "cpu"
    workers: int = 0
    eval_batch: int = 64

    def __post_init__(self) -> None:
        if self.eval_batch < 1:
            raise UsageError(f"`batch` must be at least 1, found {self.eval_batch}.")
        if self.workers < 0:
            raise UsageError(f"`workers` must be at least 0, found {self.workers}.")


class TestPasses:
    """Passes over the images in fixed order, as test views (see `methods.base.Passes`)."""

    __test__ = False  # not a test class, whatever pytest thinks of the name

    def __init__(self, images: ImageSet, views: Views, runtime: Runtime) -> None:
        self.images, self.views, self.runtime = images, views, runtime
        self.image_count = len(images)

    def __call__(self) -> Iterator[Batch]:
        runtime, most = self.runtime, self.runtime.eval_batch * size()
        keys = ordered_keys(self.image_count, most)
        stream = batches(self.images, "t", self.views, keys, device=runtime.device, workers=runtime.workers)
        for index, views in reported(stream, -(-self.image_count // most), "Reading images, batch"):
            yield Batch(views, index)


class FirstPass:
    """The first pass over images that nobody has decoded yet: bad files are found on the way, and left out.

    Iterating gives batches as `TestPasses` would over the `readable` images, which are known when it has ended.
    """

    def __init__(self, images: ImageSet, views: Views, runtime: Runtime) -> None:
        self.images, self.views, self.runtime = images, views, runtime
        self.problems: dict[int, str] = {}

    def __iter__(self) -> Iterator[Batch]:
        most = self.runtime.eval_batch * size()
        keys = ordered_keys(len(self.images), most)
        total = -(-len(self.images) // most)
        wanted, counted = tee(keys)
        loader: DataLoader[Any] = DataLoader(
            FirstViews(self.images, "t", self.views),
            batch_sampler=map(own_rows, wanted),
            num_workers=self.runtime.workers,
            collate_fn=list,
        )
        good: list[list[NDArray[np.uint8]]] = []
        done = 0
        read = zip(reported(loader, total, "Reading images, batch"), counted, strict=True)
        for number, (own, whole) in enumerate(read, 1):
            rows = all_items(own, len(whole))
            self.problems |= {index: made for index, made in rows if isinstance(made, str)}
            good += [made for _, made in rows if not isinstance(made, str)]
            # Filled up, so that batches do not depend on where the bad files are; the last one may be short.
            while good and (len(good) >= most or number == total):
                (pixels,) = stacked(good[:most])
                good = good[most:]
                yield Batch(
                    (normalised(pixels.to(self.runtime.device), self.views.preprocess),),
                    torch.arange(done, done + len(pixels)),
                )
                done += len(pixels)

    @property
    def readable(self) -> ImageSet:
        """The images that decode; a DataError if none does."""
        return without(self.images, self.problems)


class FirstViews(ViewDataset):
    """Test views, or the reason why an image has none."""

    def __getitem__(self, key: Key) -> tuple[int, Any]:  # type: ignore[override]
        try:
            image = decode(self.images.paths[key[1]], self.views.preprocess.channels)
        except Exception as error:  # as in `decode_problem`
            return key[1], reason(error)
        return key[1], views_of(image, self.letters, self.views, key)


@dataclass(frozen=True)
class Batch:
    """Views of the same B images, one tensor (B, channels, H, W) per letter of `Method.views`, and their indices."""

    views: tuple[Tensor, ...]
    index: Tensor


def resolve_device(device: str) -> str:
    """`auto`: CUDA if there is one, else Apple's MPS, else the CPU. A device that is not there is refused."""
    there = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if device == "auto":
        return next(name for name, available in there.items() if available)
    kind = device.partition(":")[0]
    if not there.get(kind) or not re.fullmatch(r"[a-z]+(:[0-9]{1,2})?", device):
        here = ", ".join(name for name, available in there.items() if available)
        raise UsageError(f"There is no device {device!r} here. `device` must be auto or one of: {here}.")
    return device


@dataclass(frozen=True)
class LabelledBatch(Batch):
    """A batch of source training: the only one that carries labels (B,)."""

    labels: Tensor
