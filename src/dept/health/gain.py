"""The gain of one model over another, from labels of images on which they disagree.

Of n images the two models disagree on D. With A of these the second model ("after") is right, with B the first
("before"), with the rest neither. On all other images both are right or both are wrong, so

    gain = accuracy after - accuracy before = (A - B) / n        exactly, whatever the classes and their shares.

m of the D images are drawn without replacement and labelled: a, b and o = m - a - b of them. A and B are estimated, and
nothing is assumed about the models or the images.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Verdict = Literal["improved", "uncertain", "harmful"]
Whole = NDArray[np.int64]

LEVEL = 0.10
"""of the two-sided sign test that decides the verdict"""
MISS = 0.05
"""how often the interval may miss the gain, at most"""
MISS_INFORMATIVE = 0.002
"""share of it that is spent on bounding A + B (Berger & Boos, 1994). More makes the rest wider, less makes the bound
wide; between 0.0005 and 0.005 the intervals at 30 labels hardly differ"""
GRID = 25
"""values of A + B that are tried; all of them if there are fewer"""


@dataclass(frozen=True)
class Labelled:
    """What labels say: of `images` images the models disagree on `disagreeing`, of which some are labelled."""

    images: int
    disagreeing: int
    after: int
    before: int
    neither: int

    def __post_init__(self) -> None:
        if not 0 < self.labelled <= self.disagreeing <= self.images or min(self.after, self.before, self.neither) < 0:
            raise ValueError(f"at least one label, and no more than disagreeing images, are needed: {self}")

    @property
    def labelled(self) -> int:
        """m, images with a label."""
        return self.after + self.before + self.neither

    @property
    def gain(self) -> float:
        """(D/n) · (a - b) / m, the unbiased estimate."""
        return self.disagreeing / self.images * (self.after - self.before) / self.labelled


def verdict(labelled: Labelled) -> Verdict:
    """What the sign test says of the gain."""
    if sign_test(labelled) >= LEVEL:
        return "uncertain"
    return "improved" if labelled.after > labelled.before else "harmful"


def sign_test(labelled: Labelled) -> float:
    """Two-sided p-value of "each model is right as often as the other", given how many labels decide for one: exact.

    It takes the images for a sample of what the model will meet. So a gain of one image in a thousand is no verdict,
    even if all disagreeing images are labelled and the gain on these images is known exactly.
    """
    more, decided = max(labelled.after, labelled.before), labelled.after + labelled.before
    ways = sum(math.comb(decided, one) for one in range(more, decided + 1))
    return min(1.0, float(Fraction(2 * ways, 2**decided)))  # a float alone overflows beyond 1,000 labels


def interval(labelled: Labelled) -> tuple[float, float]:
    """An interval that holds the gain with a probability of at least 95 %, whatever A, B and the order of drawing.

    All pairs (A, B) that a test does not reject are kept, and their A - B is the interval. The test rejects where a - b
    is in an extreme tail of its exact distribution. It depends on A + B too: the images on which neither is right make
    the interval shorter. A + B is bounded first, by its own exact interval.
    """
    swapped = Labelled(labelled.images, labelled.disagreeing, labelled.before, labelled.after, labelled.neither)
    return -_largest_gain(swapped) / labelled.images, _largest_gain(labelled) / labelled.images


def _largest_gain(seen: Labelled) -> int:
    """The largest A - B for which an a - b as small as the seen one is not too unlikely."""
    total, drawn, decided = seen.disagreeing, seen.labelled, seen.after + seen.before
    log_factorial = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, total + 1)))])

    def ways(of: Whole, chosen: Whole) -> NDArray[np.float64]:
        """log of the binomial coefficient; -inf where nothing can be chosen."""
        possible = (chosen >= 0) & (chosen <= of)
        some = np.where(possible, chosen, 0)
        return np.where(possible, log_factorial[of] - log_factorial[some] - log_factorial[of - some], -np.inf)

    all_ways = ways(np.array(total), np.array(drawn))
    counts = np.arange(drawn + 1)

    def decided_tail(both: Whole, kept: Whole) -> NDArray[np.float64]:
        """P(number of decided labels in `kept`) for each value (S,) of A + B: hypergeometric."""
        logs = ways(both[:, None], kept) + ways(total - both[:, None], drawn - kept) - all_ways
        return np.asarray(np.exp(logs).sum(axis=1))

    # What the labels rule out: A < a, B < b, or fewer images without a right model than were seen.
    least, most = np.array([decided]), np.array([total - seen.neither])
    rare = MISS_INFORMATIVE / 2
    high = _last(lambda both: decided_tail(both, counts[: decided + 1]) > rare, least, most)[0]
    low = _last(lambda both: decided_tail(both, counts[decided:]) <= rare, least, most)[0] + 1
    both = np.unique(np.linspace(low, high, min(GRID, high - low + 1)).round().astype(np.int64))
    a, b = (values.ravel() for values in np.meshgrid(counts, counts, indexing="ij"))
    small = (a + b <= drawn) & (a - b <= seen.after - seen.before)
    a, b = a[small], b[small]

    def small_tail(after: Whole) -> NDArray[np.float64]:
        """P(a - b at most the seen one) for each pair (A, A + B): multivariate hypergeometric."""
        before, neither = (both - after)[:, None], (total - both)[:, None]
        logs = ways(after[:, None], a) + ways(before, b) + ways(neither, drawn - a - b) - all_ways
        return np.asarray(np.exp(logs).sum(axis=1))

    # Turning "before" into "after" makes a small a - b less likely, so the last A that passes can be bisected.
    likely = (MISS - MISS_INFORMATIVE) / 2
    after = _last(lambda tried: small_tail(tried) > likely, np.full_like(both, seen.after), both - seen.before)
    return int((2 * after - both).max())


def _last(holds: Callable[[Whole], NDArray[np.bool_]], first: Whole, last: Whole) -> Whole:
    """The last number from `first` to `last` for which a test holds that holds up to some point; first - 1 if none."""
    low, high = first - 1, last.copy()
    while (low < high).any():
        middle = (low + high + 1) // 2
        found = holds(middle) & (low < high)
        low, high = np.where(found, middle, low), np.where(found | (low >= high), high, middle - 1)
    return low
