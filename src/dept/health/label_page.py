"""The page on which disagreements are labelled: one HTML file with everything inside."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import asdict
from importlib.resources import files

from PIL import Image

from dept.data.jpeg import data_uri
from dept.health.labels import Questions

SIDE = 320
"""longest side of a picture, in pixels: enough to see what it is, about 20 KB"""


def picture(image: Image.Image) -> str:
    """A small JPEG of the whole image, not only of what a model sees of it; small images keep their pixels."""
    small = image.copy()
    small.thumbnail((SIDE, SIDE))
    return data_uri(small, quality=85)


def sides_swapped(count: int, seed: int) -> list[bool]:
    """For each image, whether the second model stands on the left. Whoever labels must not know which is which."""
    rng = random.Random(seed)
    return [rng.random() < 0.5 for _ in range(count)]


def label_page(questions: Questions, pictures: Sequence[str], *, command: str, seed: int, key: str) -> str:
    """The page.

    Args:
        pictures: a data URI for each image.
        command: what to run with the labels.
        seed: decides which model stands on which side.
        key: names the two models; the browser keeps unfinished labels under it.
    """
    items = [
        {**asdict(one), "picture": uri, "swapped": swapped}
        for one, uri, swapped in zip(questions.asked, pictures, sides_swapped(len(pictures), seed), strict=True)
    ]
    data = json.dumps({"items": items, "sides": questions.sides, "command": command, "key": f"dept-check-{key}"})
    # Names of images and classes may be anything. In a script only "<" could end the data, and JSON has another way
    # to write it. The page puts all of it into the document as text.
    page = (files("dept.health") / "label.html").read_text(encoding="utf-8")
    return page.replace("@DATA@", data.replace("<", "\\u003c"))
