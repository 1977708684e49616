"""Prometheus metrics: of one server process, or summed over several that share a folder for them."""

from __future__ import annotations

import os
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.multiprocess import MultiProcessCollector

__all__ = ["CONTENT_TYPE_LATEST", "SHARED", "Metrics"]
SHARED = "PROMETHEUS_MULTIPROC_DIR"
"""variable of prometheus-client that names the folder; it must be set before the package is imported"""
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_COUNTS = (1, 2, 4, 8, 16, 32, 64, 128)


class Metrics:
    """Counters, gauges and histograms. Every server has its own registry, so that a process may hold several."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = self._made(Counter, "requests", "Requests by route and status.", "route", "status")
        self.images = self._made(Counter, "images", "Predicted images.", "domain")
        self.bad_images = self._made(Counter, "bad_images", "Images that do not decode.")
        self.latency = self._made(Histogram, "predict_seconds", "Time of a prediction request.", buckets=_SECONDS)
        self.decode = self._made(Histogram, "decode_seconds", "Time to decode an image.", buckets=_SECONDS)
        self.queued = self._made(Histogram, "queue_seconds", "Time in the queue.", buckets=_SECONDS)
        self.forward = self._made(Histogram, "forward_seconds", "Time of a forward.", buckets=_SECONDS)
        self.batch = self._made(Histogram, "batch_images", "Images per forward.", buckets=_COUNTS)
        self.batch_domains = self._made(Histogram, "batch_domains", "Domains per forward.", buckets=_COUNTS)
        self.pending = self._gauge("pending_images", "Images accepted and not yet predicted.", "livesum")
        self.adapter_bytes = self._gauge("adapter_bytes", "Bytes of the resident adapters.", "livesum")
        self.domains = self._gauge("domains", "Domains that are served.", "max")
        self.active = self._gauge("active_version", "Active version; 0: source model.", "mostrecent", "domain")
        self.drift = self._gauge("drift", "Drift of the traffic, in deviations.", "mostrecent", "domain")
        self.jobs = self._gauge("jobs", "Offline adaptations.", "mostrecent", "state")

    def _made(self, kind: Any, name: str, text: str, *labels: str, **more: Any) -> Any:
        return kind(f"dept_{name}", text, labels, registry=self.registry, **more)

    def _gauge(self, name: str, text: str, over_processes: str, *labels: str) -> Any:
        return self._made(Gauge, name, text, *labels, multiprocess_mode=over_processes)

    def text(self) -> bytes:
        """The exposition format."""
        if SHARED not in os.environ:
            return generate_latest(self.registry)
        joined = CollectorRegistry()
        MultiProcessCollector(joined)  # type: ignore[no-untyped-call]
        return generate_latest(joined)
