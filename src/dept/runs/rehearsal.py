"""What an adaptation would cost, from two of its steps: one to warm up and one to measure."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, replace

import torch

from dept import methods
from dept.data.images import ImageSet
from dept.data.loader import Runtime, Views
from dept.methods.auto import Auto
from dept.models.model import Model
from dept.runs.auto import longest, usual_steps
from dept.runs.job import promptable
from dept.runs.loops import offline

OUTSIDE = 5
"""passes over all images outside the loop: before and after it, and three for the cheap candidate"""


@dataclass(frozen=True)
class Cost:
    """Time and memory of a run with the method's defaults."""

    method: str
    steps: int
    seconds: float
    megabytes: float | None
    """peak of the process on the CPU, of torch on a GPU; None where the system does not say"""


def rehearse(
    model: Model,
    images: ImageSet,
    total: int,
    runtime: Runtime,
    *,
    seconds_per_image: float,
) -> Cost:
    """Estimate a run of method auto over `total` images from steps on some of them. The model is changed.

    Args:
        seconds_per_image: to read and predict one image.
    """
    method = longest(model)
    kind = methods.get(method, "offline")
    settings, steps = replace(kind.Config(), batch=Auto.Config().batch), usual_steps(total, Auto.Config().batch)
    source, _ = promptable(model.to(runtime.device), kind, stages=4, prompts=50, seed=0)
    batch = images.take(range(min(len(images), settings.batch)))
    # One batch is one epoch here, so what a method does between epochs is in the time of a step, at its true share.
    made = kind(source, replace(settings, max_iters=3))
    events = offline(made, batch, Views(source.card.preprocess, source.card.augment), runtime)
    next(events)  # the first step allocates, and fills what the method keeps
    started = time.perf_counter()
    next(events)
    seconds = steps * (time.perf_counter() - started) + OUTSIDE * total * seconds_per_image
    return Cost(method, steps, seconds, peak_megabytes(runtime.device))


def peak_megabytes(device: str) -> float | None:
    """The most memory that was in use so far, in 10^6 bytes."""
    if device.startswith("cuda"):
        return torch.cuda.max_memory_allocated() / 1e6
    try:
        import resource  # not on Windows
    except ImportError:
        return None
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return used / 1e6 if sys.platform == "darwin" else used * 1024 / 1e6
