"""`streams-gradual`: corruptions that grow and fade (severity 1 … 5 … 1), one after the other, never forgotten.

Images, source models and settings are those of `imagenet-c-mini`.
"""

from __future__ import annotations

from dataclasses import replace

from dept.bench.shift import Shift
from dept.bench.suites import imagenet_c_mini
from dept.data.corruptions import CORRUPTIONS

MINI = imagenet_c_mini.SUITE
SEVERITIES = (1, 2, 3, 4, 5, 4, 3, 2, 1)

SUITE = replace(
    MINI,
    name="streams-gradual",
    title="15 corruptions that grow and fade, continual; 1,000 ImageNet crops, ViT-Ti/16",
    shifts=(Shift(("clean",), tuple(f"{name}/{severity}" for name in CORRUPTIONS for severity in SEVERITIES)),),
    sources=MINI.lend(),
    rows=tuple(replace(row, extra={**row.extra, "stream": {"reset": "never"}}) for row in MINI.rows),
)
