"""What a source model file knows about the model's quality, beside the shares of its classes: a few KB."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Profile:
    """The source model on labelled source images that it was not trained on. Fractions, not percent."""

    images: int
    accuracy: float
    temperature: float
    """T that calibrates the probabilities of softmax(z / T) on these images"""
    threshold: float
    """confidence at temperature T that a share `accuracy` of these images exceeds (ATC)"""
    error80: float
    """80 % quantile of |estimated - true accuracy| on corrupted versions of these images"""
    error90: float
    feature_mean: tuple[float, ...]
    """mean of the features (D,)"""


def read_profile(found: object, width: int) -> Profile | None:
    """The profile in the metadata of a model file whose features have `width` numbers; None if there is none."""
    if found is None:
        return None
    if not isinstance(found, Mapping) or set(found) != set(Profile.__dataclass_fields__):
        raise ValueError(f"profile must have {', '.join(Profile.__dataclass_fields__)}, found {str(found)[:60]}")
    values: dict[str, Any] = {**found, "feature_mean": tuple(found["feature_mean"])}
    shares = [values[name] for name in ("accuracy", "threshold", "error80", "error90")]
    numbers = [*shares, values["temperature"], *values["feature_mean"]]
    if not all(isinstance(value, int | float) and math.isfinite(value) for value in numbers):
        raise ValueError("the numbers of profile must be finite")
    if not all(0 <= share <= 1 for share in shares) or not 0 < values["temperature"] <= 1e3:
        raise ValueError(f"profile must have shares from 0 to 1 and a temperature above 0, found {str(found)[:120]}")
    if not isinstance(values["images"], int) or values["images"] < 1 or len(values["feature_mean"]) != width:
        raise ValueError(f"profile must be of at least one image and {width} features")
    return Profile(**values)
