"""Views made on the device: workers only decode; crops, colours and blur are done there, in batch, with torch.

A view is drawn from the same generators as in `views`, so it is the same view; only the arithmetic differs:
floats all the way, where Pillow rounds to bytes after every operation. Pillow's resampling and its blur are
linear along each axis, so each is a pair of small matrices per image, and a batch of images is two products.
The matrices are Pillow's own (anti-aliased, cut off and renormalised at the edges), not an approximation.

An image travels as one uint8 canvas, at its own size unless it has more pixels than the views can show (see
`canvas_size`); canvases of a batch are padded to the largest, and the padding has weight 0. All rules of
`Preprocess` and all three kinds of view are supported. This is for GPUs: on a CPU, Pillow's bytes are faster.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset

from dept.data.images import ImageSet, decode_again
from dept.data.views import (
    Augment,
    Preprocess,
    StrongParams,
    WeakParams,
    centre_corner,
    draw_strong,
    draw_weak,
    resized_size,
    view_rng,
)

Params = WeakParams | StrongParams
Filter = Callable[[Tensor], Tensor]
GREY = (0.299, 0.587, 0.114)  # ITU-R 601, as Pillow's mode L


@dataclass(frozen=True)
class Canvas:
    """One image on its way to the device, with what was drawn for each of its views."""

    index: int
    pixels: NDArray[np.uint8]
    """(height, width, channels)"""
    size: tuple[int, int]
    """width and height of the image itself, in which `drawn` is given"""
    drawn: tuple[Params, ...]


@dataclass(frozen=True)
class CanvasBatch:
    """Canvases padded to a common size, uint8 (B, H, W, channels); per image what `Canvas` holds."""

    index: Tensor
    pixels: Tensor
    canvas_sizes: list[tuple[int, int]]
    sizes: list[tuple[int, int]]
    drawn: list[tuple[Params, ...]]


class CanvasDataset(Dataset[Canvas]):
    """Maps (epoch, index) to the canvas of an image and the parameters of its views, one per letter."""

    def __init__(self, images: ImageSet, letters: str, pre: Preprocess, augment: Augment, seed: int) -> None:
        self.images, self.letters, self.pre, self.augment, self.seed = images, letters, pre, augment, seed

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, key: tuple[int, int]) -> Canvas:
        epoch, index = key
        image = decode_again(self.images.paths[index], self.pre.channels)
        rngs = [view_rng(self.seed, epoch, index, number) for number in range(len(self.letters))]
        return make_canvas(image, self.letters, self.pre, self.augment, rngs, index=index)


def make_canvas(
    image: Image.Image,
    letters: str,
    pre: Preprocess,
    augment: Augment,
    rngs: Sequence[np.random.Generator],
    *,
    index: int = 0,
) -> Canvas:
    """The work of a worker: draw the views of an image, and shrink it if it is large."""
    size = image.size
    drawn = tuple(draw(*size, letter, pre, augment, rng) for letter, rng in zip(letters, rngs, strict=True))
    inner = canvas_size(*size, pre, augment)
    if inner != size:  # Lanczos keeps the edges best; the gap lets Pillow average whole pixels first
        image = image.resize(inner, Image.Resampling.LANCZOS, reducing_gap=2)
    pixels = np.asarray(image)
    return Canvas(index, pixels[:, :, None] if pixels.ndim == 2 else pixels, size, drawn)


def draw(width: int, height: int, letter: str, pre: Preprocess, augment: Augment, rng: np.random.Generator) -> Params:
    """Draw the view t (test), w (weak) or s (strong) of a width × height image."""
    if letter == "s":
        return draw_strong(width, height, augment, rng)
    resized = resized_size(width, height, pre)
    if letter == "w":
        return draw_weak(*resized, pre.size, augment, rng)
    if letter == "t":
        return WeakParams(*centre_corner(*resized, pre.size), flip=False)
    raise ValueError(f"Unknown view {letter!r}; a view is one of t (test), w (weak), s (strong).")


def canvas_size(width: int, height: int, pre: Preprocess, augment: Augment) -> tuple[int, int]:
    """Width and height at which an image travels: its own, but no more pixels than its views can show.

    The smallest strong crop, of area share a, holds size² pixels when a square image has sides of size / √a (501 for
    224 px and a = 0.2); it covers less of a longer side, which therefore keeps √aspect times that. The other views
    show what the model's resizing leaves. Shares below 1/16 and aspects beyond 4 count as these, to bound the memory.
    """
    side = pre.size / math.sqrt(max(augment.crop_scale[0], 1 / 16))
    aspects = width / height, height / width
    resized = resized_size(width, height, pre)
    enough = [max(math.ceil(side * math.sqrt(min(max(aspects[n], 1), 4))), resized[n]) for n in (0, 1)]
    return min(width, enough[0]), min(height, enough[1])


def collate(rows: list[Canvas]) -> CanvasBatch:
    """Pad the canvases at the right and at the bottom, and stack them."""
    height, width = (max(row.pixels.shape[axis] for row in rows) for axis in (0, 1))
    pixels = np.zeros((len(rows), height, width, rows[0].pixels.shape[2]), dtype=np.uint8)
    for place, row in zip(pixels, rows, strict=True):
        place[: row.pixels.shape[0], : row.pixels.shape[1]] = row.pixels
    return CanvasBatch(
        torch.tensor([row.index for row in rows]),
        torch.from_numpy(pixels),
        [(row.pixels.shape[1], row.pixels.shape[0]) for row in rows],
        [row.size for row in rows],
        [row.drawn for row in rows],
    )


@torch.no_grad()
def render(batch: CanvasBatch, pre: Preprocess, device: torch.device | str = "cpu") -> tuple[Tensor, ...]:
    """The views of a batch, each (B, channels, size, size) in [0, 1]; normalising is left to the caller."""
    canvas = batch.pixels.to(device).permute(0, 3, 1, 2).contiguous().float().div_(255)
    return tuple(_render(canvas, batch, drawn, pre) for drawn in zip(*batch.drawn, strict=True))


def _render(canvas: Tensor, batch: CanvasBatch, drawn: Sequence[Params], pre: Preprocess) -> Tensor:
    across, down = _axes(batch, drawn, pre)
    strong = [params for params in drawn if isinstance(params, StrongParams)]
    kernel = cubic if strong or pre.interpolation == "bicubic" else triangle
    columns = resampling(across.to(canvas.device), pre.size, canvas.shape[3], kernel)
    rows = resampling(down.to(canvas.device), pre.size, canvas.shape[2], kernel)
    view = products(canvas, rows, columns)
    return apply_strong(view, strong) if strong else view


def _axes(batch: CanvasBatch, drawn: Sequence[Params], pre: Preprocess) -> tuple[Tensor, Tensor]:
    """Along x and along y, for each image: start, step, first, total, length, flip (see `resampling`)."""
    axes: tuple[list[tuple[float, ...]], ...] = ([], [])
    for params, size, inner in zip(drawn, batch.sizes, batch.canvas_sizes, strict=True):
        resized = resized_size(*size, pre)
        for axis in (0, 1):
            scale = inner[axis] / size[axis]  # canvas pixels per image pixel
            flip = params.flip and axis == 0
            if isinstance(params, StrongParams):
                start, end = params.box[axis] * scale, params.box[axis + 2] * scale
                row = (start, (end - start) / pre.size, 0, pre.size, inner[axis], flip)
            else:
                first = (params.left, params.top)[axis]
                row = (0.0, inner[axis] / resized[axis], first, resized[axis], inner[axis], flip)
            axes[axis].append(row)
    return torch.tensor(axes[0]), torch.tensor(axes[1])


def resampling(axis: Tensor, size: int, length: int, kernel: Filter) -> Tensor:
    """Pillow's resampling along one axis as matrices (B, size, length).

    Args:
        axis: (B, 6), per image: where the box starts in its canvas; input pixels per output pixel; the first of
            the `total` output pixels to keep; total; pixels the image has along this axis; 1 to flip.
    """
    start, step, first, total, pixels, flip = axis[:, :, None].unbind(dim=1)
    number = torch.arange(size, device=axis.device).expand(len(axis), size)
    number = first + torch.where(flip > 0, size - 1 - number, number)
    centre = start + (number + 0.5) * step
    source = torch.arange(length, device=axis.device)
    # A kernel as wide as the step is the anti-aliasing; when enlarging it is one input pixel wide.
    distance = (source + 0.5 - centre[:, :, None]).abs_().div_(step.clamp_min(1)[:, :, None])
    weights = kernel(distance).mul_(source < pixels[:, :, None])
    # Crops may reach beyond the resized image; Pillow fills with black.
    inside = ((number >= 0) & (number < total))[:, :, None]
    return weights.mul_(inside / weights.sum(dim=2, keepdim=True).clamp_min(1e-6))


def triangle(distance: Tensor) -> Tensor:
    """Pillow's bilinear kernel."""
    return (1 - distance).clamp_min_(0)


def cubic(distance: Tensor) -> Tensor:
    """Pillow's bicubic kernel (Keys, a = -1/2); torch's own has a = -3/4."""
    near = (1.5 * distance - 2.5) * distance * distance + 1
    far = ((2.5 - 0.5 * distance) * distance - 4) * distance + 2
    return torch.where(distance < 1, near, far.mul_(distance < 2))


def products(images: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """rows · image · columnsᵀ for each image and channel; clamped after each product as Pillow's bytes are."""
    batch, channels, height, _ = images.shape
    wide = torch.bmm(images.flatten(1, 2), columns.transpose(1, 2)).clamp_(0, 1)
    return torch.matmul(rows[:, None], wide.view(batch, channels, height, -1)).clamp_(0, 1)


def apply_strong(views: Tensor, drawn: Sequence[StrongParams]) -> Tensor:
    """Colour jitter, grey and blur; crop and flip are done. Changes `views` (B, channels, H, W) in place."""
    colour = views.shape[1] == 3
    for position in range(4):
        for step, operation in enumerate((brightness, contrast, saturation, hue) if colour else (brightness, contrast)):
            rows = [n for n, d in enumerate(drawn) if len(d.jitter) > position and d.jitter[position][0] == step]
            _update(views, rows, operation, [drawn[n].jitter[position][1] for n in rows])
    if colour:
        rows = [n for n, d in enumerate(drawn) if d.grey]
        _update(views, rows, saturation, [-1.0] * len(rows))
    rows = [n for n, d in enumerate(drawn) if d.blur]
    _update(views, rows, blur, [drawn[n].blur for n in rows])
    return views


def _update(
    views: Tensor, rows: list[int], operation: Callable[[Tensor, Tensor], Tensor], amounts: list[float]
) -> None:
    if rows:
        where = torch.tensor(rows, device=views.device)
        amount = torch.tensor(amounts, device=views.device).view(-1, 1, 1, 1)
        views.index_copy_(0, where, operation(views.index_select(0, where), amount))


def brightness(views: Tensor, amount: Tensor) -> Tensor:
    """Blend with black, by 1 + amount; like all operations: views (B, channels, H, W), amount (B, 1, 1, 1)."""
    return views.mul(1 + amount).clamp_(0, 1)


def contrast(views: Tensor, amount: Tensor) -> Tensor:
    """Blend with the mean grey."""
    mean = grey(views).mean(dim=(2, 3), keepdim=True)
    return torch.lerp(mean, views, 1 + amount).clamp_(0, 1)


def saturation(views: Tensor, amount: Tensor) -> Tensor:
    """Blend with the grey image."""
    return torch.lerp(grey(views), views, 1 + amount).clamp_(0, 1)


def grey(views: Tensor) -> Tensor:
    """(B, channels, H, W) -> (B, 1, H, W)."""
    if views.shape[1] == 1:
        return views
    red, green, blue = views.chunk(3, dim=1)
    return GREY[0] * red + GREY[1] * green + GREY[2] * blue


def hue(views: Tensor, amount: Tensor) -> Tensor:
    """Turn the hue by `amount` of a full circle, keeping value (the largest channel) and chroma."""
    red, green, blue = views.chunk(3, dim=1)
    value, low = views.amax(dim=1, keepdim=True), views.amin(dim=1, keepdim=True)
    chroma, is_red, is_green = value - low, value == red, value == green
    # In sixths of a circle, from red. Greys have no hue: any will do, since their chroma is 0.
    sixths = torch.where(is_red, green - blue, torch.where(is_green, blue - red, red - green))
    sixths = sixths.div_(chroma.clamp_min(1e-9)).add_(torch.where(is_red, 0.0, torch.where(is_green, 2.0, 4.0)))
    turned = sixths.add_(6 * amount).remainder_(6)
    # How much of the chroma each channel gets: red |x - 3| - 1, green 2 - |x - 2|, blue 2 - |x - 4|.
    peak, sign, base = (_per_channel(views, *v) for v in ((3, 2, 4), (1, -1, -1), (-1, 2, 2)))
    share = (turned - peak).abs_().mul_(sign).add_(base).clamp_(0, 1)
    return share.mul_(chroma).add_(low)


def _per_channel(views: Tensor, *values: float) -> Tensor:
    return torch.tensor(values, dtype=views.dtype, device=views.device).view(1, -1, 1, 1)


def blur(views: Tensor, radius: Tensor) -> Tensor:
    """Pillow's GaussianBlur: three box blurs along each axis, repeating the edge pixels."""
    boxes = torch.tensor([box_radius(r) for r in radius.flatten().tolist()], device=views.device)
    once = box_blurs(boxes, views.shape[3])
    thrice = once @ once @ once
    return products(views, thrice, thrice)  # views are square


def box_radius(radius: float, passes: int = 3) -> float:
    """Radius of the box that, applied `passes` times, has the variance radius²; its last pixels count in part."""
    variance = radius**2 / passes
    whole = math.floor((math.sqrt(12 * variance + 1) - 1) / 2)
    part = (2 * whole + 1) * (whole * (whole + 1) - 3 * variance) / (6 * (variance - (whole + 1) ** 2))
    return whole + part


def box_blurs(boxes: Tensor, side: int) -> Tensor:
    """Box blurs along one axis as matrices (B, side, side), for radii (B,)."""
    margin = math.ceil(float(boxes.max())) + 1
    pixel = torch.arange(-margin, side + margin, device=boxes.device)
    distance = (pixel - pixel[margin:-margin, None]).abs()
    radius = boxes[:, None, None]
    weights = (radius + 1 - distance).clamp_(0, 1) / (2 * radius + 1)
    inner = weights[:, :, margin:-margin].clone()
    inner[:, :, 0] += weights[:, :, :margin].sum(dim=2)
    inner[:, :, -1] += weights[:, :, -margin:].sum(dim=2)
    return inner
