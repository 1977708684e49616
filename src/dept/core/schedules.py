"""Learning-rate and temperature schedules: pure functions of the step."""

from __future__ import annotations

import math


def cosine(step: int, total: int) -> float:
    """Multiplier ½(1 + cos(π step / total)): 1 at the first step, ½ half-way, about 0 at the last."""
    return 0.5 * (1.0 + math.cos(math.pi * step / max(total, 1)))


def constant(step: int, total: int) -> float:
    """Multiplier 1 at every step (online adaptation has no end to decay to)."""
    return 1.0


def warmup_cosine(step: int, total: int, warmup: int) -> float:
    """Linear from 0 over `warmup` steps, then cosine over the rest."""
    if step < warmup:
        return step / warmup
    return cosine(step - warmup, total - warmup)


def teacher_temperature(epoch: int, *, start: float, end: float, warmup_epochs: int) -> float:
    """Teacher temperature: linear over `warmup_epochs`, the last of which has `end` already."""
    if epoch >= warmup_epochs - 1:
        return end
    return start + (end - start) * epoch / (warmup_epochs - 1)  # [DePT Eq. τ_t]
