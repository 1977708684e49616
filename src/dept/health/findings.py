"""What is suspicious about images and a model before adaptation, as sentences that say what to do about it.

Every check is a pure function of a few numbers. It returns a finding, or None if all is well. Thresholds are rules of
thumb, set wide: a warning is worth a look, a problem is worth stopping for.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from dept.data.places import Skipped
from dept.data.views import Preprocess
from dept.errors import some
from dept.health.pixels import Looks, copies
from dept.health.prior import Prior, sampling_noise, total_variation
from dept.metrics import label_free

BLANK_STD = 2 / 255
"""contrast below which an image shows nothing; the noise of a camera on a white wall is above it"""
GREY_COLOUR = 2 / 255
"""distance of the channels up to which an image is grey; JPEG adds about one level"""
NEARLY_ALL = 0.95
"""share of the images that makes a remark about one image a remark about the domain"""
MANY_BLANK = 0.5
"""share of blank images from which something is broken"""
CARD_MEAN, CARD_STD = (0.0, 1.0), (0.05, 1.0)
"""where mean and std of a normalisation of pixels in [0, 1] can be; numbers of [0, 255] are far outside"""
NORMAL_MEAN = 1.25
"""mean of normalised pixels: photos have -0.9 to 0.7 under every usual normalisation (mean 0.45 to 0.5, std 0.22 to
0.5), a black image -1 to -2.1"""
NORMAL_STD = (0.2, 2.5)
"""standard deviation of normalised pixels: 0.4 to 1.4 for photos; 0.2 is fog, 2.5 is more than black and white give"""
DIM = 0.25
"""brightness that no pixel exceeds if 8 or 12 bits were stored as 16, or values from 0 to 1 as 0 to 255"""
COPY = 0.99
"""correlation of near-duplicates: JPEG and resizing leave 0.99 or more, different photos have up to 0.97 and different
handwritten digits 0.986"""
MANY_COPIES = 0.2
"""share of near-duplicates from which there are clearly fewer images than files"""
MANY_UNREADABLE = 0.05
"""share of unreadable files from which they may not be a random few"""
PER_CLASS = 10
"""images per class: DePT's vote asks ten neighbours, and shares of classes are guesses below"""
ONE_CLASS = 0.9
"""share of predictions for one class from which a model says nothing else"""
GUESSING = 0.9
"""mean entropy, as a share of its maximum, from which a model does not know the images at all"""
CERTAIN = 0.99
"""mean confidence that hardly any model has in a new domain, if its inputs are right"""
UNEVEN = 0.3
"""distance of the predicted class shares from the expected ones, beyond chance, from which these cannot be assumed"""
ENOUGH = 20
"""images from which shares of predictions mean something"""


@dataclass(frozen=True)
class Finding:
    """Something to know before adapting."""

    check: str
    level: Literal["problem", "warning"]
    found: str
    advice: str


def unreadable(read: int, skipped: Sequence[Skipped]) -> Finding | None:
    """Files that cannot be read."""
    if not skipped:
        return None
    path, why = skipped[0]
    level: Literal["problem", "warning"] = "problem" if len(skipped) > read else "warning"
    many = "They may not be a random few. " if len(skipped) > MANY_UNREADABLE * (read + len(skipped)) else ""
    return Finding(
        "readable files",
        level,
        f"{len(skipped)} of {read + len(skipped)} files cannot be read (first: {path.name}: {why}).",
        f"{many}They are left out. Convert or replace them if they matter.",
    )


def blank(looks: Looks) -> Finding | None:
    """Images that show nothing. Where all are dim, contrast counts as if they were not: `levels` says that they are."""
    count = int((looks.std < BLANK_STD * min(1.0, float(looks.brightest.max()) / DIM)).sum())
    if not count:
        return None
    share = count / len(looks.std)
    return Finding(
        "blank images",
        "problem" if share >= MANY_BLANK else "warning",
        f"{count} of {len(looks.std)} images are blank: all their pixels are nearly the same.",
        "Remove them: adaptation learns from every image, and a blank one has no class.",
    )


def grey(looks: Looks, channels: int) -> Finding | None:
    """Grey images for a model of colours."""
    share = float((looks.colour < GREY_COLOUR).double().mean())
    if channels == 1 or share < NEARLY_ALL:
        return None
    return Finding(
        "colour",
        "warning",
        f"{100 * share:.0f} % of the images are grey, and the model expects colour.",
        "If your camera has colour, look for the step that loses it. If not, expect a large shift: a model that was "
        "trained on grey images is a better start.",
    )


def normalisation(preprocess: Preprocess) -> Finding | None:
    """Numbers of a normalisation that cannot be meant for pixels in [0, 1]."""
    means = all(CARD_MEAN[0] <= value <= CARD_MEAN[1] for value in preprocess.mean)
    stds = all(CARD_STD[0] <= value <= CARD_STD[1] for value in preprocess.std)
    if means and stds:
        return None
    return Finding(
        "normalisation",
        "problem",
        f"The model normalises pixels with mean {preprocess.mean} and std {preprocess.std}. Pixels are from 0 to 1 "
        "here, and this looks like numbers for 0 to 255.",
        "Convert the model again, with mean and std divided by 255.",
    )


def levels(looks: Looks, preprocess: Preprocess, mean: float, std: float) -> Finding | None:
    """Images that are far from what a model gets otherwise.

    Args:
        mean, std: of all normalised pixels of all images and channels.
    """
    if normalisation(preprocess) is not None:
        return None  # the images are not to blame
    top = float(looks.brightest.max())
    if top < DIM:
        return Finding(
            "brightness",
            "problem",
            f"No image uses more than the darkest {max(1, round(100 * top))} % of the range of brightness.",
            "Were they scaled from 10, 12 or 16 bits, or from values of 0 to 1? Rescale them to 0 to 255.",
        )
    if abs(mean) <= NORMAL_MEAN and NORMAL_STD[0] <= std <= NORMAL_STD[1]:
        return None
    what = "dark" if mean < -NORMAL_MEAN else "bright" if mean > NORMAL_MEAN else "flat" if std < 1 else "hard"
    return Finding(
        "brightness",
        "warning",
        f"The images are very {what}: after the model's preprocessing their mean is {mean:+.2f} and their standard "
        f"deviation {std:.2f}, where photos have -0.9 to 0.7 and 0.4 to 1.4.",
        "If the site looks like this, go on. If not, check exposure and bit depth of the images, and mean and std of "
        "the model (`dept info MODEL`).",
    )


def near_duplicates(looks: Looks) -> Finding | None:
    """Many images that look like another one."""
    seen = looks.signature[looks.std >= BLANK_STD]  # blank ones are said already
    count = int(copies(seen, COPY).sum())
    if count < MANY_COPIES * max(len(seen), ENOUGH):
        return None
    return Finding(
        "near-duplicates",
        "warning",
        f"{count} of {len(seen)} images look like another one of them.",
        "Frames of one video, or copies? Keep one of each: adaptation takes every file for a new image.",
    )


def amount(images: int, classes: int) -> Finding | None:
    """Too few images for the classes."""
    if images >= PER_CLASS * classes:
        return None
    return Finding(
        "number of images",
        "warning",
        f"{images:,} image{'s' * (images != 1)} for {classes:,} classes, {images / classes:.1f} for each.",
        f"Below {PER_CLASS} per class pseudo-labels are unreliable. Collect more images, or judge the result by labels "
        "(`dept check`).",
    )


def confidence(probabilities: Tensor, classes: tuple[str, ...]) -> Finding | None:
    """Predictions (n, C) of the source model that no model should make that knows the images."""
    if len(probabilities) < ENOUGH or len(classes) < 2:
        return None
    now = label_free(probabilities, probabilities, classes)["before"]
    shares = class_shares(probabilities)
    top = int(shares.argmax())
    if float(shares[top]) >= ONE_CLASS:
        return Finding(
            "predictions",
            "problem",
            f"The model calls {100 * float(shares[top]):.0f} % of the images {classes[top]!r}.",
            "If they really are that class, there is nothing to adapt. If not, preprocessing, channels or classes of "
            "the model do not fit the images: adaptation would make it worse.",
        )
    if now["entropy"] >= GUESSING * math.log(len(classes)):
        return Finding(
            "predictions",
            "problem",
            f"The model is hardly better than guessing: mean confidence {100 * now['confidence']:.1f} % with "
            f"{len(classes)} classes.",
            "Is it trained, and are these images of its classes? Pseudo-labels of such a model teach it nothing.",
        )
    if now["confidence"] >= CERTAIN:
        return Finding(
            "predictions",
            "warning",
            f"The model is sure of everything: mean confidence {100 * now['confidence']:.1f} %.",
            "Are these images of its training? If not, its confidence says nothing, and methods that select images by "
            "it select all.",
        )
    return None


def unexpected_shares(probabilities: Tensor, prior: Prior) -> Finding | None:
    """Predicted classes far from the expected shares, near which most methods expect them to be."""
    count, classes = probabilities.shape
    found = class_shares(probabilities)
    distance = total_variation(found.tolist(), prior.shares)
    if count < ENOUGH or float(found.max()) >= ONE_CLASS or distance <= UNEVEN + sampling_noise(classes, count):
        return None
    effective = float(torch.special.entr(found).sum().exp())
    expected = "even" if prior.origin == "uniform" else "those of the source images"
    return Finding(
        "class shares",
        "warning",
        f"The predicted classes are far from {expected}: {100 * distance:.0f} % of the predictions would have to be "
        f"others. They spread like {effective:.1f} classes of {classes}.",
        "Either the model confuses classes here, which adaptation may mend, or their shares really are others. Then "
        "methods that expect the usual shares (dept, shot) can do harm. If you know the shares, declare them as "
        "`prior` of `dept adapt`. If not, judge by labels: `dept check`.",
    )


def folders(names: Sequence[str], classes: Sequence[str]) -> Finding | None:
    """Class folders that the model has no class for.

    Args:
        names: of the folders that the images are in; those of cameras or dates say nothing.
    """
    known = {*names} & {*classes}
    unknown = sorted({*names} - known)
    if len(known) < 2 or not unknown:
        return None
    return Finding(
        "class folders",
        "warning",
        f"{len(known)} folders have the name of a class of the model, and {len(unknown)} have not: {some(unknown)}.",
        "If these are classes, the model does not know them and gives every image there a wrong one. Leave them out.",
    )


def class_shares(probabilities: Tensor) -> Tensor:
    """Shares (C,) of the predicted classes."""
    return torch.bincount(probabilities.argmax(dim=1), minlength=probabilities.shape[1]).double() / len(probabilities)
