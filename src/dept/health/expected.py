"""The gain of an adaptation before any label: an interval and a verdict, from class shares alone.

Accuracy in a new domain cannot be known without labels, but its change can be bounded. If a share D of the predictions
changed, the gain is between -D and D. Where in between follows from how much nearer the predicted class shares come to
the expected ones:

    e = TV(shares before, π) - TV(shares after, π)        TV: total variation, π: expected class shares

The ratio e / D says how much of the change was towards π. `ENDS` has, for three values of it, the gains that runs with
known labels had, as multiples of D; values between these are interpolated. Two things widen the interval:

- e is measured on n images, so it is off by √(D/n) or so. Both ends have three quarters of that as a margin.
- A method that pulls predictions towards even shares comes nearer to π even where its new predictions are no better.
  What it optimises cannot judge it. Its gain then counts only if the source model is known to be right about most
  images (the card's interval of accuracy): among the labels of such a model there is something to follow.

Where the source model is right about most images and nobody has declared the shares, the target's own may be as far
from π as the predictions are, so that e says little. Then every change may have been right, and a run counts as harmful
only if it moves away by twice its margin.

`benchmarks/expected_gain.py` and `verdict_calibration.py` check it against runs with known labels (docs/verdict.md).
All of this holds only if the target has about the class shares π. Otherwise only labels tell (`dept check`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from dept.health.gain import Verdict
from dept.health.prior import Prior, total_variation

ENDS = ((-1.0, -0.75, -0.25), (0.0, -0.05, 0.10), (1.0, 0.15, 1.25))
"""(e / D, least gain / D, largest gain / D): with the margins they hold 93 % of the runs of
`benchmarks/expected_gain.py`, and 93 % of the digits of `verdict_runs.py`"""
LEAST_MARGIN = 0.01
"""in e, and at both ends of the interval; more in small sets (see `margin`)"""
MARGINS = 0.75
"""of them at each end, in addition"""
RIGHT = 0.5
"""lower end of the source model's accuracy from which on it counts as right about most images"""
UNPROVEN = -0.1
"""least gain / D of a method that optimises class shares, from a source model that may be wrong about most images"""


@dataclass(frozen=True)
class Expected:
    """What a run probably gained in accuracy (fractions), if the class shares are as assumed."""

    verdict: Verdict
    gain: float
    low: float
    high: float
    shares: Literal["source", "uniform", "file", "unknown"]
    """the class shares that were assumed; unknown: they seem to be others, and nothing is asserted"""
    accuracy: tuple[float, float] | None = None
    """a wide interval for the accuracy before; None for a source model without a profile"""

    def record(self) -> dict[str, Any]:
        """As stored in result.json."""
        found = {name: round(value, 4) if isinstance(value, float) else value for name, value in asdict(self).items()}
        return found | {"accuracy": self.accuracy and [round(end, 4) for end in self.accuracy]}


def mostly_right(accuracy: Sequence[float] | None) -> bool:
    """Whether a source model is known to be right about most images, from the interval of its accuracy."""
    return accuracy is not None and accuracy[0] >= RIGHT


def margin(changed: float, images: int) -> float:
    """√(D/n): about the standard deviation of e if the changes of n images were drawn at random, at least 0.01."""
    return max(LEAST_MARGIN, math.sqrt(changed / images))


def expected_gain(
    before: Sequence[float],
    after: Sequence[float],
    changed: float,
    images: int,
    prior: Prior,
    *,
    differ: bool = False,
    optimised: bool = False,
    accuracy: tuple[float, float] | None = None,
) -> Expected:
    """The expected gain of a run whose predicted class shares went from `before` to `after`.

    Args:
        changed: D, the share of predictions that changed.
        images: n, how many there were.
        differ: whether the target seems to have other class shares than `prior` (see `plausible`).
        optimised: whether the method pulls predictions towards even class shares (`Method.assumes_balance`).
        accuracy: interval of the source model's accuracy, if it is known.
    """
    if differ:
        return Expected("uncertain", 0.0, -changed, changed, "unknown", accuracy)
    nearer = total_variation(before, prior.shares) - total_variation(after, prior.shares)
    nearer = max(-changed, min(changed, nearer))
    slack = margin(changed, images)
    least, largest = _multiples(nearer / changed if changed else 0.0)
    right, limit = mostly_right(accuracy), slack
    if optimised and not right:
        least = min(least, UNPROVEN)
    if right and not prior.declared:
        largest, limit = 1.0, 2 * slack
    low = max(-changed, least * changed - MARGINS * slack)
    high = min(changed, largest * changed + MARGINS * slack)
    verdict: Verdict = "harmful" if nearer < -limit else "improved" if low > 0 else "uncertain"
    return Expected(verdict, max(low, min(high, nearer)), low, high, prior.origin, accuracy)


def _multiples(ratio: float) -> tuple[float, float]:
    """Least and largest gain / D at a ratio e / D from -1 to 1: `ENDS`, and straight lines between them."""
    (start, *first), (end, *last) = ENDS[:2] if ratio < 0 else ENDS[1:]
    part = (ratio - start) / (end - start)
    least, largest = (a + part * (b - a) for a, b in zip(first, last, strict=True))
    return least, largest
