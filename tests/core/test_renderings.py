"""Renderings against loops over pixels."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from dept.core.renderings import RENDERINGS, as_it_is, blurred, bold, grey, inverted, mirrored, thickened

SIZE = 6


@pytest.fixture
def images() -> Tensor:
    return torch.randn(2, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(0))


def around(image: Tensor, row: int, column: int, reach: int) -> list[float]:
    """Pixels at most so far away; at the edge, those that there are."""
    rows, columns = (range(max(0, at - reach), min(SIZE, at + reach + 1)) for at in (row, column))
    return [float(image[r, c]) for r in rows for c in columns]


@pytest.mark.parametrize(("render", "reach"), [(thickened, 1), (bold, 2)])
def test_the_darkest_pixel_around(images: Tensor, render: Callable[[Tensor], Tensor], reach: int) -> None:
    for image, made in zip(images.flatten(0, 1), render(images).flatten(0, 1), strict=True):
        for row in range(SIZE):
            for column in range(SIZE):
                assert float(made[row, column]) == min(around(image, row, column, reach))


def test_the_mean_around(images: Tensor) -> None:
    made = blurred(images)
    for row in range(1, SIZE - 1):
        for column in range(1, SIZE - 1):
            mean = sum(around(images[1, 2], row, column, 1)) / 9
            assert float(made[1, 2, row, column]) == pytest.approx(mean, abs=1e-6)
    flat = torch.full((1, 3, SIZE, SIZE), 0.7)
    assert torch.allclose(blurred(flat), flat)  # at the edges too


def test_dark_and_bright_are_exchanged(images: Tensor) -> None:
    """Whatever the normalisation is: a picture in bytes, inverted and normalised, is the same."""
    pixels = torch.rand(1, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(1))
    pixels[..., 0, 0], pixels[..., 0, 1] = 0.0, 1.0  # the whole range is used
    assert torch.allclose(inverted((pixels - 0.4) / 0.2), (1 - pixels - 0.4) / 0.2, atol=1e-6)
    assert torch.allclose(inverted(inverted(images)), images, atol=1e-6)


def test_the_others(images: Tensor) -> None:
    assert RENDERINGS[0] is as_it_is and as_it_is(images) is images
    assert torch.equal(mirrored(images)[..., 0], images[..., -1])
    assert torch.allclose(grey(images)[:, 1], images.sum(dim=1) / 3)


@pytest.mark.parametrize("channels", [1, 3, 6])
def test_any_number_of_channels(channels: int) -> None:
    images = torch.randn(2, channels, SIZE, SIZE)
    assert all(render(images).shape == images.shape for render in RENDERINGS)
