from __future__ import annotations

import io

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from dept.health.findings import COPY
from dept.health.pixels import Looks, copies, looks, signature
from support import scenes


def compressed(pixels: Tensor, side: int) -> Tensor:
    """As JPEG files of another size."""
    made = []
    for image in (255 * pixels).byte().permute(0, 2, 3, 1).numpy():
        buffer = io.BytesIO()
        Image.fromarray(image).resize((side, side)).save(buffer, "JPEG", quality=70)
        made.append(np.asarray(Image.open(buffer).resize((64, 64))))
    return torch.from_numpy(np.stack(made)).permute(0, 3, 1, 2).float() / 255


def test_against_loops() -> None:
    pixels = scenes(3)
    found = looks(pixels)
    for index, image in enumerate(pixels):
        grey = [[sum(image[c, y, x].item() for c in range(3)) / 3 for x in range(64)] for y in range(64)]
        flat = sorted(value for row in grey for value in row)
        mean = sum(flat) / 4096
        assert found.mean[index] == pytest.approx(mean, abs=1e-5)
        assert found.std[index] == pytest.approx((sum((v - mean) ** 2 for v in flat) / 4096) ** 0.5, abs=1e-5)
        assert found.brightest[index] == pytest.approx(flat[4091], abs=1e-5)
        gaps = [max(image[:, y, x]).item() - min(image[:, y, x]).item() for y in range(64) for x in range(64)]
        assert found.colour[index] == pytest.approx(sum(gaps) / 4096, abs=1e-5)


def test_grey_images_have_no_colour() -> None:
    grey = scenes(2).mean(dim=1, keepdim=True)
    assert looks(grey).colour.max() == 0 and looks(grey.expand(-1, 3, -1, -1)).colour.max() == 0


def test_signatures_correlate_as_images_do() -> None:
    one, two = scenes(2).mean(dim=1)
    cells = [image.reshape(16, 4, 16, 4).mean(dim=(1, 3)).flatten().numpy() for image in (one, two)]
    made = signature(torch.stack([one, two]))
    assert float(made[0] @ made[1]) == pytest.approx(float(np.corrcoef(*cells)[0, 1]), abs=1e-5)
    assert signature(torch.full((1, 20, 30), 0.4)).norm() < 0.01  # blank


def test_copies_are_found_and_others_are_not() -> None:
    pixels = scenes(30)
    again = torch.cat([pixels, compressed(pixels[:5], 50), 0.8 * pixels[5:8] + 0.1])
    found = copies(looks(again).signature, COPY)
    assert found.tolist() == [False] * 30 + [True] * 8


def test_batches_are_joined() -> None:
    pixels = scenes(5)
    whole, parts = looks(pixels), Looks.joined([looks(pixels[:2]), looks(pixels[2:])])
    assert torch.equal(whole.signature, parts.signature) and torch.equal(whole.mean, parts.mean)
