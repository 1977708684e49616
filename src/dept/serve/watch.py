"""What is seen of the traffic of each domain: counts, latencies, a few images compared with the source model, drift.

Only in memory. The counts are also written to the index about once a second, so that every process can show the sum.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from dept.data.jpeg import data_uri
from dept.health.prior import Prior
from dept.serve.engine import Engine, Pixels
from dept.serve.gains import Record, from_pairs
from dept.serve.pool import Entry, Pool
from dept.serve.routing import MOST, Moving

THUMBNAIL = 96
"""longest side of a picture on the dashboard, in pixels"""
SAMPLED_EVERY = 0.5
"""seconds between two images of a domain that are looked at more closely"""
LATENCIES, COMPARED = 256, 512
"""latest requests and compared images that are kept"""
ENOUGH_COMPARED = 50
"""compared images from which a gain is estimated"""
MINUTE = 60


@dataclass(frozen=True)
class Sample:
    """An image that is looked at more closely when there is time."""

    name: str
    pixels: Pixels
    entry: Entry
    label: int
    confidence: float


@dataclass(frozen=True)
class Seen:
    """One of the latest images: classes and confidences by the source model and by the adapter."""

    at: float
    name: str
    thumbnail: str
    version: int
    before: tuple[int, float]
    after: tuple[int, float]


@dataclass
class Watch:
    """One domain."""

    thumbnails: int
    images: int = 0
    requests: int = 0
    errors: int = 0
    last: float = 0.0
    """Unix time of the latest image"""
    latencies: deque[float] = field(default_factory=lambda: deque(maxlen=LATENCIES))
    minute: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=MINUTE))
    """(second, images), for the rate"""
    recent: deque[Seen] = field(init=False)
    version: int = -1
    """what the comparisons below are about"""
    compared: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=COMPARED))
    moving: Moving = field(default_factory=Moving)
    first: list[Tensor] = field(default_factory=list)
    """features of the first images, for a domain whose own nobody has seen"""
    drift: float | None = None
    sampled: float = 0.0

    def __post_init__(self) -> None:
        self.recent = deque(maxlen=self.thumbnails)

    def record(self) -> dict[str, Any]:
        """What other processes may show of it."""
        pairs = Counter(self.compared)
        return {
            "images": self.images,
            "requests": self.requests,
            "errors": self.errors,
            "last": self.last,
            "latencies": [round(value, 5) for value in list(self.latencies)[-64:]],
            "minute": list(self.minute),
            "version": self.version,
            "compared": [[before, after, count] for (before, after), count in pairs.items()],
            "drift": self.drift,
        }


class Watches:
    """All domains of a process. Called from the event loop; `look` from the inference thread."""

    def __init__(self, thumbnails: int) -> None:
        self.thumbnails = thumbnails
        self._domains: dict[str, Watch] = {}
        self._samples: deque[Sample] = deque(maxlen=32)
        self._changed: set[str] = set()

    def of(self, domain: str) -> Watch:
        """The watch of a domain."""
        if domain not in self._domains:
            self._domains[domain] = Watch(self.thumbnails)
        return self._domains[domain]

    def count(self, domain: str, images: int, errors: int, seconds: float) -> None:
        """A request was answered."""
        watch, now = self.of(domain), time.time()
        watch.requests, watch.images, watch.errors = watch.requests + 1, watch.images + images, watch.errors + errors
        watch.last = now
        watch.latencies.append(seconds)
        before = watch.minute.pop() if watch.minute and watch.minute[-1][0] == int(now) else (int(now), 0)
        watch.minute.append((int(now), before[1] + images))
        self._changed.add(domain)

    def offer(self, sample: Sample) -> None:
        """Perhaps look at this image later: every domain gets its turn, and nobody waits for it."""
        watch, now = self.of(sample.entry.domain), time.monotonic()
        if now - watch.sampled >= SAMPLED_EVERY:
            watch.sampled = now
            self._samples.append(sample)

    def samples(self, most: int) -> list[Sample]:
        """Images to look at now."""
        return [self._samples.popleft() for _ in range(min(most, len(self._samples)))]

    def look(self, samples: list[Sample], engine: Engine, pool: Pool) -> None:
        """Compare images with the source model, and see what they look like."""
        images = engine.normalised([one.pixels for one in samples])
        source = engine.logits(images, [pool.source] * len(samples)).softmax(dim=-1).max(dim=-1)
        features = engine.features(images) if engine.has_features else None
        for number, one in enumerate(samples):
            watch = self.of(one.entry.domain)
            if watch.version != one.entry.version:  # another adapter: comparisons begin anew
                watch.version = one.entry.version
                watch.compared.clear()
            before = int(source.indices[number]), float(source.values[number])
            watch.compared.append((before[0], one.label))
            if self.thumbnails:
                seen = (time.time(), one.name, _thumbnail(one.pixels), one.entry.version)
                watch.recent.append(Seen(*seen, before, (one.label, one.confidence)))
            if features is not None:
                self._move(one.entry.domain, features[number], pool)
            self._changed.add(one.entry.domain)

    def _move(self, domain: str, features: Tensor, pool: Pool) -> None:
        """Measure drift, or begin with what the domain looks like now."""
        watch = self.of(domain)
        watch.moving.add(features)
        reference = pool.references.get(domain)
        if reference is not None:
            watch.drift = watch.moving.drift(reference)
        elif domain in pool.domains:
            watch.first.append(features)

    def measured(self) -> dict[str, Tensor]:
        """Early features (n, D) of domains that had no signature and have been seen often enough; told once."""
        ready = {name: one for name, one in self._domains.items() if len(one.first) >= MOST}
        found = {name: torch.stack(one.first) for name, one in ready.items()}
        for one in ready.values():
            one.first.clear()
        return found

    def records(self) -> dict[str, dict[str, Any]]:
        """What has changed since the last call, by domain."""
        changed, self._changed = self._changed, set()
        return {name: self.of(name).record() for name in changed}


def _thumbnail(pixels: Pixels) -> str:
    image = Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels)
    image.thumbnail((THUMBNAIL, THUMBNAIL))
    return data_uri(image, quality=70)


@dataclass(frozen=True)
class Traffic:
    """A domain over all processes."""

    images: int
    requests: int
    errors: int
    last: float
    latencies: list[float]
    images_per_minute: float
    compared: dict[tuple[int, int], int]
    """(class by the source model, class by the adapter) -> images, of the active version"""
    drift: float | None

    @classmethod
    def joined(cls, records: Iterable[dict[str, Any]], version: int) -> Traffic:
        """The sum of what processes have written."""
        rows, now = list(records), time.time()
        compared: Counter[tuple[int, int]] = Counter()
        for row in rows:
            if row["version"] == version:
                compared.update({(before, after): count for before, after, count in row["compared"]})
        drifts = [row["drift"] for row in rows if row["drift"] is not None]
        recent = [count for row in rows for second, count in row["minute"] if now - second <= MINUTE]
        return cls(
            sum(row["images"] for row in rows),
            sum(row["requests"] for row in rows),
            sum(row["errors"] for row in rows),
            max((row["last"] for row in rows), default=0.0),
            [value for row in rows for value in row["latencies"]],
            float(sum(recent)),
            dict(compared),
            max(drifts, default=None),
        )

    def percentile(self, share: float) -> float | None:
        """Of the latency of the latest requests, in milliseconds."""
        return 1000 * float(np.quantile(self.latencies, share)) if self.latencies else None

    def gain(self, prior: Prior) -> Record | None:
        """What the active adapter gains on this traffic, as far as it can be told without labels; None if the images
        are too few.
        """
        enough = sum(self.compared.values()) >= ENOUGH_COMPARED
        return from_pairs(self.compared, prior) if enough else None
