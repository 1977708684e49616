"""Random textures of the weather corruptions: the plasma fractal of fog, and ice for frost."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .filters import Floats, gaussian, line_blur, ndimage


def plasma(height: int, width: int, decay: float, rng: np.random.Generator) -> Floats:
    """Diamond-square fractal (H, W), scaled to [0, 1] before it is cut out of a square of side 2^n.

    Each level halves the step and sets the new points to the mean of their four neighbours (the map is a
    torus) plus noise. The published noise is a·U(−a, a), a divided by `decay` per level: it falls by decay².
    """
    side = 1 << (max(height, width) - 1).bit_length()
    field = np.zeros((side, side))
    amplitude, step = 100.0, side
    while step >= 2:
        _refine(field, step, amplitude**2, rng)
        amplitude, step = amplitude / decay, step // 2
    field -= field.min()
    return np.asarray(field[:height, :width] / field.max(), np.float32)


def _refine(field: NDArray[np.float64], step: int, noise: float, rng: np.random.Generator) -> None:
    """One level of diamond-square, in place: first centers of the squares, then middles of their sides."""
    half = step // 2
    corners = field[::step, ::step]
    centers = field[half::step, half::step]

    def wobble(total: NDArray[np.float64]) -> NDArray[np.float64]:
        return total / 4 + rng.uniform(-noise, noise, total.shape)

    pairs = corners + np.roll(corners, -1, axis=0)
    centers[:] = wobble(pairs + np.roll(pairs, -1, axis=1))
    field[::step, half::step] = wobble(centers + np.roll(centers, 1, axis=0) + corners + np.roll(corners, -1, axis=1))
    field[half::step, ::step] = wobble(centers + np.roll(centers, 1, axis=1) + corners + np.roll(corners, -1, axis=0))


class Ice(NamedTuple):
    """One look of ice on a window: RGB mean and spread in bytes, and weights of the parts of its relief."""

    colour: tuple[int, int, int]
    spread: tuple[int, int, int]
    clouds: float
    creases: float
    needles: float
    feathers: float


# Means and spreads are near those of crops of the five published photographs, two of which are white.
_WHITE = Ice((198, 203, 211), (20, 20, 21), clouds=0.6, creases=0.2, needles=1.0, feathers=0.5)
ICES = (
    Ice((80, 150, 165), (24, 14, 13), clouds=1.0, creases=0.6, needles=0.0, feathers=0.0),  # blue sheet
    _WHITE,
    _WHITE,
    Ice((145, 160, 172), (26, 26, 27), clouds=0.3, creases=0.5, needles=0.5, feathers=0.8),  # grey rime
    Ice((103, 114, 125), (36, 36, 35), clouds=0.7, creases=0.1, needles=0.1, feathers=1.0),  # ferns on dark
)


def ice(height: int, width: int, rng: np.random.Generator) -> Floats:
    """A picture of ice (H, W, 3) in [0, 255], made from noise in one of five looks."""
    look = ICES[rng.integers(len(ICES))]
    relief = np.zeros((height, width), np.float32)
    for weight, part in zip(look[2:], (clouds, creases, needles, feathers), strict=True):
        if weight:
            relief += np.float32(weight) * _standard(part(height, width, rng))
    tones = _standard(relief)[..., None] * np.array(look.spread) + np.array(look.colour)
    return np.asarray(np.clip(tones, 0, 255), np.float32)


def _standard(plane: Floats) -> Floats:
    """Mean 0, standard deviation 1."""
    return np.asarray((plane - plane.mean()) / (plane.std() + 1e-6), np.float32)


def _lit(plane: Floats) -> Floats:
    """A height map (H, W) lit from the top left: its slope along the diagonal, (H − 1, W − 1)."""
    return plane[1:, 1:] - plane[:-1, :-1]


def clouds(height: int, width: int, rng: np.random.Generator) -> Floats:
    """Smooth light and dark (H, W)."""
    return plasma(height, width, 1.8, rng)


def creases(height: int, width: int, rng: np.random.Generator) -> Floats:
    """Crinkled foil (H, W): the ridges where a fractal crosses its middle, lit from the side."""
    field = _standard(plasma(height + 1, width + 1, 1.45, rng))
    return np.clip(_standard(_lit(-np.abs(np.sin(3 * field)))), -3, 3)


def needles(height: int, width: int, rng: np.random.Generator) -> Floats:
    """Splinters of ice (H, W): each cell of a random mosaic is brushed in its own direction."""
    margin = 24  # the brush repeats border pixels, which would show as stripes
    shape = (height + margin, width + margin)
    angles = np.arange(0, 360, 30)
    noise = gaussian(rng.standard_normal(shape, np.float32), 0.7)
    brushed = np.stack([line_blur(noise, radius=11, sigma=10, angle=float(angle)) for angle in angles])
    cell = _mosaic(shape, 1 / 600, rng)
    direction = rng.integers(len(angles), size=shape)[cell]
    grain = _standard(np.take_along_axis(brushed, direction[None], axis=0)[0])
    shade = rng.standard_normal(shape, np.float32)[cell]
    whole = (grain + np.float32(0.5) * shade)[:-1, :-1] + np.float32(0.5) * _standard(_lit(grain))
    return np.asarray(whole[margin // 2 :, margin // 2 :][:height, :width], np.float32)


def _mosaic(shape: tuple[int, int], density: float, rng: np.random.Generator) -> tuple[NDArray[np.intp], ...]:
    """Row and column (each of `shape`) of the nearest of randomly placed seeds."""
    seeds = rng.random(shape) < density
    seeds[shape[0] // 2, shape[1] // 2] = True  # at least one
    return tuple(ndimage.distance_transform_edt(~seeds, return_distances=False, return_indices=True))


def feathers(height: int, width: int, rng: np.random.Generator) -> Floats:
    """Fern-like crystals (H, W): stems with barbs on both sides, later ones over earlier ones."""
    count = max(8, height * width // 160)
    stem = np.linspace(0, 1, 17)[None, :, None, None]  # where a barb leaves the stem
    side = np.array([-1.0, 0.0, 1.0])[None, None, :, None]  # left barb, piece of the stem, right barb
    barb = np.linspace(0, 1, 16)  # along the barb

    def draw(low: float, high: float) -> NDArray[np.float64]:
        return rng.uniform(low, high, size=(count, 1, 1, 1))

    length, bend, heading = 12 + 60 * draw(0, 1) ** 2, draw(-0.5, 0.5), draw(-np.pi, np.pi)
    towards = heading + bend * stem
    outwards = towards + side * draw(0.5, 0.9)
    reach = length * np.where(side == 0, 1 / 16, draw(0.15, 0.4) * (1 - stem) ** 0.8) * barb
    rows = draw(-10, height + 10) + length * stem * np.sin(towards) + reach * np.sin(outwards)
    columns = draw(-10, width + 10) + length * stem * np.cos(towards) + reach * np.cos(outwards)
    # Light from one side; stems shine, barbs differ in brightness, which keeps them apart, and fade outwards.
    glint = np.where(side == 0, 0.6, rng.random((count, stem.shape[1], 3, 1)))
    light = 0.2 + draw(0.3, 1.0) * (0.5 + 0.4 * np.sin(outwards + 0.8) + glint) * (1 - 0.5 * barb)
    plane = np.zeros((height, width), np.float32)
    row, column = np.rint(rows).astype(int), np.rint(columns).astype(int)
    inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
    plane[row[inside], column[inside]] = np.broadcast_to(light, rows.shape)[inside]  # in order: later ones on top
    return gaussian(plane, 0.5)
