"""`office-home`: all twelve shifts between the four domains of Office-Home, as `pacs`; ViT-B/16, top-1 accuracy."""

from __future__ import annotations

from dataclasses import replace

from dept.bench.suites.pacs import SUITE as PACS
from dept.bench.suites.pacs import all_shifts

SUITE = replace(
    PACS,
    name="office-home",
    title="Office-Home, all twelve shifts, offline and online; ViT-B/16",
    data="office-home",
    shifts=all_shifts(("Art", "Clipart", "Product", "Real World")),
)
