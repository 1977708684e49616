"""Photographs redrawn: shifts as far as another medium, made from images whose labels are known.

Corruptions leave a picture a photograph. What is chosen for targets such as drawings and paintings is chosen here:
`ink` keeps the outlines only, `poster` the flat areas only, in colours that objects do not have.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from PIL import Image, ImageEnhance, ImageFilter, ImageOps

from dept.data.decoding import decode
from dept.data.images import ImageSet


def ink(image: Image.Image) -> Image.Image:
    """Dark outlines on white paper."""
    outlines = image.convert("L").filter(ImageFilter.GaussianBlur(1.2)).filter(ImageFilter.FIND_EDGES)
    paper = ImageOps.invert(ImageOps.autocontrast(outlines))
    return paper.point(lambda value: 255 if value > 215 else int(0.6 * value)).convert("RGB")


def poster(image: Image.Image) -> Image.Image:
    """Four levels per channel without detail, channels exchanged and strongly coloured."""
    red, green, blue = ImageOps.posterize(image.filter(ImageFilter.MedianFilter(9)), 2).split()
    return ImageEnhance.Color(Image.merge("RGB", (green, blue, red))).enhance(2.0)


STYLES: dict[str, Callable[[Image.Image], Image.Image]] = {"ink": ink, "poster": poster}


def redrawn(images: ImageSet, out: Path, style: str) -> ImageSet:
    """The same images and labels in a style, as PNG files; those that are there are not made again."""
    files = tuple(out / style / Path(name).with_suffix(".png") for name in images.names())
    for source, target in zip(images.paths, files, strict=True):
        if not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            part = target.with_suffix(".part")  # not an image until it is whole
            STYLES[style](decode(source)).save(part, "PNG")
            part.replace(target)
    return ImageSet(out, files, images.labels, images.classes)
