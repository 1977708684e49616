"""What several tests need: tiny images, tiny models, tiny configs."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn

from dept.data.loader import Batch
from dept.methods.base import BaseConfig, Method
from dept.models.model import Model, create_model
from dept.runs.seal import unsealed

CLASSES = ("blue", "green", "red")
ARCH = "vit_tiny_patch16_224"
TIMM = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 4, "num_heads": 2}
PROJECTION = {"projection_hidden": 32, "projection_bottleneck": 16, "projection_out": 32}


def tiny_model(classes: Any = CLASSES, *, stages: int = 2, prompts: int = 3, seed: int = 0, **options: Any) -> Model:
    return create_model(ARCH, classes, stages=stages, prompts=prompts, seed=seed, **{**TIMM, **options}).eval()


def tiny_resnet(seed: int = 0) -> Model:
    """A small model with batch norm, for 32 px."""
    model = create_model("resnet10t", CLASSES, seed=seed, channels=(8, 8, 16, 16))
    model.card = replace(model.card, preprocess=replace(model.card.preprocess, size=32, resize=37))
    return model


def scramble(model: nn.Module, seed: int = 0, scale: float = 0.3) -> None:
    """Random weights large enough that every path through the network matters."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            noise = torch.randn(tensor.shape, generator=generator, dtype=torch.float64).to(tensor.dtype) * scale
            center = 1.0 if "norm" in name and name.endswith("weight") else 0.0
            tensor.copy_(center + noise)


def tiny_config(kind: type[Method], **changes: Any) -> BaseConfig:
    """The method's Config in small (4 images per step, 2 epochs, narrow projections), as far as it has such fields."""
    known = {field.name for field in fields(kind.Config)}
    # A shuffle of 4 × 4 patches would only move the tokens of the tiny model, which hardly notices.
    small = {"batch": 4, "epochs": 2, "prior_count": 4.0, "patches": 8, **PROJECTION}
    return replace(kind.Config(), **({k: v for k, v in small.items() if k in known} | changes))


def teach(model: Model, task: str) -> Model:
    """Give the model the head of a second task, always with the same weights; "" for a method that needs none."""
    outputs = {"rotation": 4, "hypothesis": len(model.classes), "contrastive": 8}
    torch.manual_seed(0)
    model.add_auxiliary(outputs[task or "rotation"], task or "rotation")
    return model


def slow_projection(head: nn.Module, tokens: Tensor) -> Tensor:
    """A projection head written out: (…, D) -> (…, K)."""
    tensors = dict(head.named_parameters())
    hidden = F.gelu(tokens @ tensors["mlp.0.weight"].T + tensors["mlp.0.bias"])
    hidden = hidden @ tensors["mlp.2.weight"].T + tensors["mlp.2.bias"]
    rows = tensors["prototypes.parametrizations.weight.original1"]
    return F.normalize(hidden, dim=-1) @ F.normalize(rows, dim=1).T


@torch.no_grad()
def spread_predictions(model: Model) -> Model:
    """Give the model a head whose predictions on noise images range from sure to unsure, over all classes.

    A tiny network says nearly the same about every noise image; methods that select samples would do nothing.
    """
    features = model.read(random_batch("t", 64, seed=77).views[0]).features
    directions = torch.randn(len(model.classes), features.shape[1], generator=torch.Generator().manual_seed(5))
    spread = (features @ directions.T).std(dim=0)
    model.head.weight.copy_(4.0 * directions / spread[:, None])
    model.head.bias.copy_(-model.head.weight @ features.mean(dim=0))
    return model


def random_batch(letters: str, size: int = 4, seed: int = 0, pixels: int = 32) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    views = tuple(torch.randn(size, 3, pixels, pixels, generator=generator) for _ in letters)
    return Batch(views, torch.arange(size))


def scenes(count: int, seed: int = 0) -> Tensor:
    """Smooth random pictures (n, 3, 64, 64), all different."""
    coarse = torch.rand(count, 3, 8, 8, generator=torch.Generator().manual_seed(seed))
    return F.interpolate(coarse, size=64, mode="bilinear").clamp(0, 1)


class FixedPasses:
    """Passes over fixed random test views."""

    def __init__(self, count: int = 10, size: int = 4, pixels: int = 32, seed: int = 9) -> None:
        images = torch.randn(count, 3, pixels, pixels, generator=torch.Generator().manual_seed(seed))
        index = torch.arange(count)
        self.batches = [Batch((v,), i) for v, i in zip(images.split(size), index.split(size), strict=True)]
        self.image_count = count

    def __call__(self) -> list[Batch]:
        return self.batches


def state_of(module: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in module.state_dict().items()}


def moved(before: dict[str, Tensor], module: nn.Module) -> set[str]:
    """Names of tensors whose bits changed."""
    after = module.state_dict()
    return {name for name, tensor in before.items() if not torch.equal(tensor, after[name])}


def same_bits(one: dict[str, Tensor], two: dict[str, Tensor]) -> bool:
    return one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)


def picture(
    colour: int, rng: np.random.Generator, *, size: int = 40, noise: float = 20.0, dim: float = 1.0
) -> Image.Image:
    """A disc in one of the three CLASSES' colours (2, 1, 0 = blue, green, red channel) on grey noise."""
    pixels = rng.normal(90, noise, (size, size, 3))
    y, x = np.mgrid[:size, :size]
    cy, cx, radius = rng.uniform(0.35, 0.65, 3) * size
    disc = (y - cy) ** 2 + (x - cx) ** 2 < (0.6 * radius) ** 2
    pixels[disc] -= 60
    pixels[disc, colour] += 160
    return Image.fromarray(np.clip(dim * pixels, 0, 255).astype(np.uint8))


def write_labelled(root: Path, per_class: int, *, seed: int = 0, **look: Any) -> Path:
    """root/<class>/<number>.png"""
    rng = np.random.default_rng(seed)
    for number, name in enumerate(CLASSES):
        (root / name).mkdir(parents=True)
        for index in range(per_class):
            picture(2 - number, rng, **look).save(root / name / f"{index}.png")
    return root


def write_unlabelled(root: Path, count: int, *, seed: int = 1, **look: Any) -> Path:
    """Images at different depths, names that say nothing."""
    rng = np.random.default_rng(seed)
    for index in range(count):
        folder = root / ("", "day1", "day1/cam b", "day2/x/y")[index % 4]
        folder.mkdir(parents=True, exist_ok=True)
        picture(index % 3, rng, **look).save(folder / f"img{index:03}.png")
    return root


def events(folder: Path) -> list[dict[str, Any]]:
    return [unsealed(json.loads(line)) for line in (folder / "events.jsonl").read_text().splitlines()]


class StopAfter:
    """Stands in for `stop_signal`: Ctrl-C arrives during step number `steps` (1-based)."""

    def __init__(self, steps: int) -> None:
        self.left = steps

    def __call__(self) -> StopAfter:
        return self

    def __enter__(self) -> Any:
        def stopped() -> bool:
            self.left -= 1
            return self.left <= 0

        return stopped

    def __exit__(self, *error: object) -> None:
        return None
