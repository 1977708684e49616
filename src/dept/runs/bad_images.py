"""Files that do not decode: found before the first step by decoding everything, or, in large sets, as they come."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from dept.data.images import ImageSet, decodable
from dept.data.index import FileIndex
from dept.runs.words import flag

Rule = Literal["auto", "leave-out", "replace"]
MANY = 100_000
"""images from which decoding all of them first is not worth it: with photographs it takes a quarter of an hour"""
MOST_READ = 10_000
"""images of such a set that are predicted before and after; shares of them are known to one point"""


def replaces(rule: Rule, images: int) -> bool:
    """Whether files that do not decode are replaced as they come."""
    return rule == "replace" or (rule == "auto" and images >= MANY)


def usable(images: ImageSet, rule: Rule, *, channels: int, index: FileIndex) -> ImageSet:
    """The images that decode; or all of them, unread, if bad ones are replaced."""
    if replaces(rule, len(images)):
        return unchecked(images)
    return decodable(images, channels=channels, index=index)


def unchecked(images: ImageSet) -> ImageSet:
    """All images. What does not decode is replaced, and remembered in the set."""
    return replace(images, replaced={})


def note(*sets: ImageSet) -> list[str]:
    """What the user is told about sets that nobody has checked."""
    count = sum(len(images) for images in sets if images.replaced is not None)
    if not count:
        return []
    return [
        f"The {count:,} images are not decoded before the first step. One that does not decode is named when it comes, "
        f"and the next good one takes its place. `{flag('bad_images')} leave-out` finds all of them first."
    ]
