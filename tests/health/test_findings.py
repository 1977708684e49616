"""Each check on both sides of its threshold."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor

from dept.data.views import Preprocess
from dept.health import findings
from dept.health.pixels import looks
from dept.health.prior import believed
from support import scenes

CLASSES = tuple("abcde")
HALF = Preprocess()


def predictions(labels: list[int], sure: float, classes: int = 5) -> Tensor:
    """Probabilities (n, C): `sure` for the label, the rest spread evenly."""
    made = torch.full((len(labels), classes), (1 - sure) / (classes - 1))
    made[range(len(labels)), labels] = sure
    return made


def test_unreadable_files() -> None:
    assert findings.unreadable(10, []) is None
    broken = [(Path("x/a.png"), "cut short")] * 3
    few = findings.unreadable(400, broken)
    assert (
        few is not None and few.level == "warning" and "3 of 403 files" in few.found and "a.png: cut short" in few.found
    )
    assert "random few" not in few.advice
    many, most = findings.unreadable(20, broken), findings.unreadable(2, broken)
    assert many is not None and "random few" in many.advice and most is not None and most.level == "problem"


def test_blank_images() -> None:
    assert findings.blank(looks(scenes(10))) is None
    plain = torch.full((4, 3, 64, 64), 0.3)
    some = findings.blank(looks(torch.cat([scenes(10), plain])))
    assert some is not None and some.level == "warning" and some.found.startswith("4 of 14 images are blank")
    most = findings.blank(looks(torch.cat([scenes(2), plain])))
    assert most is not None and most.level == "problem"
    assert findings.blank(looks(scenes(10) / 255)) is None  # dim, not blank


def test_grey_images_for_a_model_of_colours() -> None:
    grey = scenes(20).mean(dim=1, keepdim=True).expand(-1, 3, -1, -1)
    found = findings.grey(looks(grey), 3)
    assert found is not None and found.found.startswith("100 % of the images are grey")
    assert findings.grey(looks(grey), 1) is None and findings.grey(looks(scenes(20)), 3) is None
    assert findings.grey(looks(torch.cat([grey, scenes(5)])), 3) is None  # some grey images are no domain


@pytest.mark.parametrize(
    ("mean", "std", "fine"),
    [
        ((0.5,) * 3, (0.5,) * 3, True),
        ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225), True),
        ((0.0,) * 3, (1.0,) * 3, True),
        ((123.7, 116.3, 103.5), (58.4, 57.1, 57.4), False),
        ((0.5,), (127.5,), False),
        ((0.5,), (0.001,), False),
    ],
)
def test_a_normalisation_for_other_pixels(mean: tuple[float, ...], std: tuple[float, ...], fine: bool) -> None:
    found = findings.normalisation(Preprocess(mean=mean, std=std))
    assert (found is None) == fine and (found is None or found.level == "problem")


def judged(pixels: Tensor, preprocess: Preprocess = HALF) -> findings.Finding | None:
    normal = (pixels - preprocess.mean[0]) / preprocess.std[0]
    return findings.levels(looks(pixels), preprocess, float(normal.mean()), float(normal.std()))


def test_brightness_and_contrast() -> None:
    imagenet = Preprocess(mean=(0.45,) * 3, std=(0.225,) * 3)
    assert judged(scenes(8)) is None and judged(scenes(8), imagenet) is None
    night = torch.cat([0.1 * scenes(8), scenes(1)])  # a lamp somewhere
    dark, bright = judged(night, imagenet), judged(1 - night, imagenet)
    assert dark is not None and "very dark" in dark.found and bright is not None and "very bright" in bright.found
    fog = judged(0.5 + 0.1 * (scenes(8) - 0.5))
    assert fog is not None and "very flat" in fog.found and fog.level == "warning"
    scaled = judged(scenes(8) / 16)  # 12 bits stored as 16
    assert scaled is not None and scaled.level == "problem" and "darkest 6 %" in scaled.found
    assert judged(scenes(8), Preprocess(mean=(127.0,) * 3, std=(58.0,) * 3)) is None  # that is said already


def test_near_duplicates() -> None:
    assert findings.near_duplicates(looks(scenes(30))) is None
    doubled = findings.near_duplicates(looks(torch.cat([scenes(20), scenes(10)])))
    assert doubled is not None and "10 of 30 images look like another" in doubled.found
    blank = torch.full((20, 3, 64, 64), 0.3)
    assert findings.near_duplicates(looks(torch.cat([scenes(20), blank]))) is None


def test_number_of_images() -> None:
    assert findings.amount(50, 5) is None
    few = findings.amount(49, 5)
    assert few is not None and "49 images for 5 classes, 9.8 for each" in few.found


def test_predictions_that_no_sound_model_makes() -> None:
    even = [0, 1, 2, 3, 4] * 10
    assert findings.confidence(predictions(even, 0.8), CLASSES) is None
    one = findings.confidence(predictions([2] * 46 + [0] * 4, 0.8), CLASSES)
    assert one is not None and one.level == "problem" and "calls 92 % of the images 'c'" in one.found
    guess = findings.confidence(predictions(even, 0.25), CLASSES)
    assert guess is not None and guess.level == "problem" and "guessing" in guess.found
    sure = findings.confidence(predictions(even, 0.999), CLASSES)
    assert sure is not None and sure.level == "warning" and "sure of everything" in sure.found
    assert findings.confidence(predictions([2] * 5, 0.8), CLASSES) is None  # too few to tell


EVEN = believed("uniform", CLASSES, ())


def test_uneven_classes() -> None:
    assert findings.unexpected_shares(predictions([0, 1, 2, 3, 4] * 10, 0.8), EVEN) is None
    labels = [0] * 60 + [1] * 30 + [2] * 10
    found = findings.unexpected_shares(predictions(labels, 0.8), EVEN)
    effective = math.exp(-sum(share * math.log(share) for share in (0.6, 0.3, 0.1)))
    assert found is not None and f"like {effective:.1f} classes of 5" in found.found and "far from even" in found.found
    one = predictions([0] * 95 + [1] * 5, 0.8)
    assert findings.unexpected_shares(one, EVEN) is None  # "one class" says it already


def test_classes_that_are_uneven_in_the_source_too() -> None:
    prior = believed("unknown", CLASSES, (0.6, 0.3, 0.1, 0.0, 0.0))
    assert findings.unexpected_shares(predictions([0] * 60 + [1] * 30 + [2] * 10, 0.8), prior) is None
    found = findings.unexpected_shares(predictions([0, 1, 2, 3, 4] * 20, 0.8), prior)
    assert found is not None and "far from those of the source images: 50 % of the predictions" in found.found


def test_class_folders() -> None:
    assert findings.folders(["a", "b", "a"], CLASSES) is None
    assert findings.folders(["camera 1", "camera 2", "a"], CLASSES) is None  # one name may be chance
    found = findings.folders(["a", "b", "giraffe"], CLASSES)
    assert (
        found is not None and "2 folders have the name of a class of the model, and 1 have not: giraffe" in found.found
    )


def test_a_sample_of_even_classes_is_not_uneven() -> None:
    """40 images of 200 even classes: most classes are not even there."""
    labels = torch.randint(200, (40,), generator=torch.Generator().manual_seed(0)).tolist()
    even = believed("uniform", [str(number) for number in range(200)], ())
    assert findings.unexpected_shares(predictions(labels, 0.8, classes=200), even) is None
